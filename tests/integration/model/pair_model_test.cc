// prefilld and decoded with the real executor and the default model.
#include "common/tokenizer/tokenizer.h"
#include "tests/integration/model/pair_model_fixture.h"

namespace smartgen::integration {
namespace {

TEST_F(PairModelTest, FullModeMakesTheTokensOfLocalMode) {
  for (const int length : {1, 40, 300}) {
    const Result local = Call(stub_.get(), Request(length, v1::MODE_LOCAL)).Wait();
    ASSERT_TRUE(local.status.ok()) << local.status.error_message();
    decode_->prefix_cache().Clear();
    const Result full = Call(stub_.get(), Request(length, v1::MODE_FULL)).Wait();
    ASSERT_TRUE(full.status.ok()) << full.status.error_message();
    EXPECT_EQ(full.stats.mode(), v1::MODE_FULL) << full.stats.fallback_reason();
    EXPECT_EQ(full.stats.transfer_bytes(),
              static_cast<uint64_t>(length * decode_->pool().layout().TokenBytes()));
    EXPECT_EQ(full.tokens, local.tokens) << length;
    // And again, now with prefix hits on both sides.
    EXPECT_EQ(Call(stub_.get(), Request(length, v1::MODE_FULL)).Wait().tokens, local.tokens)
        << length;
  }
}

TEST_F(SlowPairModelTest, ExactByLayersAndByQueriesMakesTheTokensOfLocalMode) {
  const Result local = Run(Request(1500, v1::MODE_LOCAL));
  const Result split = Run(Request(1500, v1::MODE_EXACT));
  EXPECT_EQ(split.tokens, local.tokens);
  EXPECT_EQ(split.stats.handover_steps(), 15);
  auto attend = Request(1500, v1::MODE_EXACT);
  attend.mutable_transfer()->set_handover(v1::TransferOptions::HANDOVER_ATTEND);
  const Result shipped = Run(attend);
  EXPECT_EQ(shipped.tokens, local.tokens);
  EXPECT_EQ(shipped.stats.handover_steps(), 15);
}

TEST_F(SlowPairModelTest, SelectionOfEverythingMakesTheTokensOfLocalMode) {
  const Result local = Run(Request(700, v1::MODE_LOCAL));
  for (const char* selector : {"quest", "dense"}) {
    auto request = Request(700, v1::MODE_SMARTGEN);
    request.mutable_transfer()->set_selector(selector);
    request.mutable_transfer()->set_selection_budget(1);
    EXPECT_EQ(Run(request).tokens, local.tokens) << selector;
  }
}

// What is selected depends on values alone, never on where they are.
TEST_F(SlowPairModelTest, ASelectionMakesTheSameTokensHoweverItsEntriesCome) {
  int64_t remote = 0;
  for (const char* selector : {"quest", "hata", "infinigen"}) {
    auto request = Request(900, v1::MODE_SMARTGEN);
    request.set_max_tokens(24);
    request.mutable_transfer()->set_selector(selector);
    request.mutable_transfer()->set_selection_budget(0.2);
    const Result slow = Run(request);  // each step by the soonest way
    auto fetching = request;
    fetching.mutable_transfer()->set_handover(v1::TransferOptions::HANDOVER_NONE);
    const Result fetched = Run(fetching);
    EXPECT_EQ(fetched.tokens, slow.tokens) << selector;
    remote += fetched.stats.remote_entries();
    // The same with other blocks pushed, and nothing ahead of need.
    auto other = request;
    other.set_mode(v1::MODE_RANDOM);
    other.mutable_transfer()->set_prefetch(false);
    EXPECT_EQ(Run(other).tokens, slow.tokens) << selector;
    auto serial = request;
    serial.set_mode(v1::MODE_PARTIAL);
    serial.mutable_transfer()->set_parallel(false);
    EXPECT_EQ(Run(serial).tokens, slow.tokens) << selector;
  }
  EXPECT_GT(remote, 0);
}

// Prompts of random tokens have nearly tied logits, where any rounding shows. Natural text, whole
// pages, and the logarithms of the probabilities are compared with a tolerance, not tokens alone.
TEST_F(PairModelTest, W13_LogprobsOfNaturalTextAreThoseOfLocalMode) {
  const auto model = model::Model::Open(ModelPath());
  ASSERT_TRUE(model.ok()) << model.status();
  const auto tokenizer = tokenizer::Tokenizer::Create((*model)->tokenizer_data());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::vector<int32_t> words =
      (*tokenizer)
          ->Encode(
              "The river had risen during the night, and by the morning the lower fields lay under "
              "water. Nobody in the village was surprised: it happened every spring, when the snow "
              "of "
              "the mountains melted, and the old people could tell from the colour of the sky how "
              "long "
              "it would last. The miller carried his sacks to the upper floor, the children were "
              "kept "
              "at home, and the ferry, which on other days took the market women across, was drawn "
              "up "
              "on the bank and tied to the big willow with two ropes. On the third day a stranger "
              "came "
              "down the road from the hills and asked for the way to the town. They told him that "
              "the "
              "bridge was closed and that he would have to wait, and he sat down by the stove of "
              "the "
              "inn, took a book out of his coat, and began to read as if he had all the time in "
              "the "
              "world.",
              /*parse_special=*/false);
  for (const size_t length : {size_t{64}, size_t{144}}) {
    ASSERT_GE(words.size(), length);
    v1::GenerateRequest request = Request(0, v1::MODE_LOCAL);
    request.mutable_prompt_ids()->Add(words.begin(), words.begin() + static_cast<long>(length));
    request.mutable_sampling()->set_logprobs(2);
    const std::vector<float> local = Logprobs(request, /*anew=*/true);
    request.set_mode(v1::MODE_FULL);
    const std::vector<float> full = Logprobs(request, /*anew=*/true);
    const std::vector<float> hit = Logprobs(request, /*anew=*/false);  // with prefix hits
    ASSERT_EQ(local.size(), 16u);
    ASSERT_EQ(full.size(), 16u);
    ASSERT_EQ(hit.size(), 16u);
    for (size_t i = 0; i < 16; ++i) {
      EXPECT_NEAR(full[i], local[i], 1e-3) << length << " tokens, step " << i;
      EXPECT_NEAR(hit[i], local[i], 1e-3) << length << " tokens, step " << i;
    }
  }
}

}  // namespace
}  // namespace smartgen::integration
