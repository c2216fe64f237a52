// A token's result is a function of the tokens before it and of whether it was part of a prompt or
// a step's, and of nothing else, bit for bit; of the tokens alone where products are made in float.
#include "tests/common/executor/model/fixture.h"

namespace smartgen::executor {
namespace {

std::vector<TokenId> Prompt(int64_t length) {
  std::vector<TokenId> ids;
  const nlohmann::json golden = ReadGolden("logits_smol.json");
  for (const auto& c : golden["cases"]) {
    for (const auto& id : c["ids"]) ids.push_back(id.get<TokenId>());
  }
  EXPECT_GE(static_cast<int64_t>(ids.size()), length);
  ids.resize(length);
  return ids;
}

// Where the machine multiplies bf16 faster than float, a prompt's rows are rounded to bf16; a
// decode step's are not.
bool RoundsPrompts() {
#ifdef __x86_64__
  return __builtin_cpu_supports("avx512bf16") > 0;
#else
  return true;
#endif
}

class Invariance : public testing::TestWithParam<ComputeType> {
 protected:
  static Bench Make(int threads = 0) {
    return Bench::Make(*DefaultModel(), {.compute = GetParam(), .threads = threads}, 1024);
  }
  void SetUp() override { ASSERT_NE(DefaultModel(), nullptr); }
};

TEST_P(Invariance, ChunksDoNotMatter) {
  Bench b = Make();
  const std::vector<TokenId> prompt = Prompt(600);
  kv::KvSequence whole(b.pool.get());
  const std::vector<float> want = PrefillAll(b, whole, prompt, 600);
  for (int64_t step : {1, 7, 64, 250}) {
    kv::KvSequence sequence(b.pool.get());
    EXPECT_EQ(PrefillAll(b, sequence, prompt, step == 1 ? 599 : step), want)
        << "chunks of " << step;
  }
}

TEST_P(Invariance, APrefixComputedByAnotherSequenceServesAsWell) {
  Bench b = Make();
  const std::vector<TokenId> prompt = Prompt(400);
  kv::KvSequence first(b.pool.get());
  const std::vector<float> want = PrefillAll(b, first, prompt, 400);
  for (int64_t pages : {1, 13, 24}) {
    std::vector<kv::PageId> shared(first.pages().begin(), first.pages().begin() + pages);
    for (kv::PageId page : shared) b.pool->AddRef(page);
    kv::KvSequence second(b.pool.get(), shared);
    EXPECT_EQ(PrefillAll(b, second, prompt, 512, pages * kv::kPageTokens), want)
        << pages << " pages";
  }
}

TEST_P(Invariance, DecodeComputesWhatPrefillComputes) {
  Bench b = Make();
  const std::vector<TokenId> prompt = Prompt(330);
  kv::KvSequence whole(b.pool.get());
  const std::vector<float> want = PrefillAll(b, whole, prompt, 330);
  kv::KvSequence steps(b.pool.get());
  std::vector<float> got = PrefillAll(b, steps, {prompt.data(), 250}, 250);
  for (int64_t at = 250; at < 330; ++at) got = DecodeOne(b, steps, at, prompt[at]);
  if (GetParam() == ComputeType::kBF16 && RoundsPrompts()) {
    ExpectClose(got, want, 0.01);
  } else {
    EXPECT_EQ(got, want);
  }
}

TEST_P(Invariance, NeighboursInABatchDoNotMatter) {
  Bench b = Make();
  constexpr int kBatch = 8;
  const std::vector<TokenId> prompt = Prompt(500);
  std::vector<std::unique_ptr<kv::KvSequence>> alone, together;
  std::vector<std::vector<float>> want(kBatch), got(kBatch, std::vector<float>(b.vocab()));
  std::vector<int64_t> lengths;
  for (int i = 0; i < kBatch; ++i) {
    lengths.push_back(5 + 61 * i);
    for (auto* list : {&alone, &together}) {
      list->push_back(std::make_unique<kv::KvSequence>(b.pool.get()));
      PrefillAll(b, *list->back(), {prompt.data(), static_cast<size_t>(lengths[i])}, 512);
      ASSERT_TRUE(list->back()->Reserve(lengths[i] + 1).ok());
    }
    want[i] = DecodeOne(b, *alone[i], lengths[i], prompt[i]);
  }
  for (int count : {2, 3, 4, 8}) {
    std::vector<DecodeSlot> batch;
    for (int i = 0; i < count; ++i) {
      batch.push_back({together[i].get(), lengths[i], prompt[i], got[i]});
    }
    ASSERT_TRUE(b.executor->Decode(batch).ok());
    for (int i = 0; i < count; ++i) EXPECT_EQ(got[i], want[i]) << "slot " << i << " of " << count;
  }
}

TEST_P(Invariance, ThreadsDoNotMatter) {
  const std::vector<TokenId> prompt = Prompt(300);
  std::vector<std::vector<float>> results;
  for (int threads : {1, 2, 3}) {
    Bench b = Make(threads);
    kv::KvSequence sequence(b.pool.get());
    PrefillAll(b, sequence, prompt, 512);
    results.push_back(DecodeOne(b, sequence, 300, prompt[0]));
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

INSTANTIATE_TEST_SUITE_P(Computes, Invariance,
                         testing::Values(ComputeType::kF32, ComputeType::kBF16),
                         [](const auto& info) { return std::string(ComputeTypeName(info.param)); });

}  // namespace
}  // namespace smartgen::executor
