// Right tokens, right pages, right statistics when nothing goes wrong.
#include <algorithm>

#include "tests/integration/pair_harness.h"

namespace smartgen::integration {
namespace {

TEST_F(PairTest, FullModeMakesTheTokensOfASingleProcess) {
  StartBoth();
  for (const int length : {1, 15, 16, 17, 64, 65, 300}) {
    const auto request =
        MakeRequest(Prompt(length, 7 + static_cast<uint64_t>(length)), 12, v1::MODE_FULL);
    const Result result = Generate(request);
    ASSERT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.tokens, Expected(request)) << length;
    EXPECT_EQ(result.reason, v1::Finished::REASON_LENGTH);
    EXPECT_EQ(result.stats.mode(), v1::MODE_FULL);
    EXPECT_EQ(result.stats.prefill_address(), prefill_->address());
    EXPECT_EQ(result.stats.fallback_reason(), "");
    EXPECT_EQ(result.stats.prompt_tokens(), length);
    EXPECT_EQ(result.stats.generated_tokens(), 12);
  }
  ExpectBaseline();
}

TEST_F(PairTest, LocalModeMakesTheSameTokensWithoutAnyTransfer) {
  StartBoth();
  const auto request = MakeRequest(Prompt(200), 10, v1::MODE_LOCAL);
  const Result result = Generate(request);
  EXPECT_EQ(result.tokens, Expected(request));
  EXPECT_EQ(result.stats.mode(), v1::MODE_LOCAL);
  EXPECT_EQ(result.stats.transfer_bytes(), 0u);
  EXPECT_EQ(result.stats.fallback_reason(), "");
}

TEST_F(PairTest, SeededSamplingGivesTheSameTokensByEitherWay) {
  StartBoth();
  const auto full = MakeRequest(Prompt(100), 20, v1::MODE_FULL, 1.0f);
  const auto local = MakeRequest(Prompt(100), 20, v1::MODE_LOCAL, 1.0f);
  const Result a = Generate(full);
  const Result b = Generate(local);
  EXPECT_EQ(a.tokens, Expected(full));
  EXPECT_EQ(a.tokens, b.tokens);
}

TEST_F(PairTest, ForcedTokensComeFirstInEveryModeTokenOneIncluded) {
  StartBoth();
  const std::vector<int32_t> forced = {200, 3, 3, 77, 1};
  for (const v1::Mode mode : {v1::MODE_FULL, v1::MODE_LOCAL, v1::MODE_EXACT}) {
    auto request = MakeRequest(Prompt(100), 9, mode);
    request.mutable_sampling()->mutable_forced_ids()->Add(forced.begin(), forced.end());
    const Result result = Generate(request);
    ASSERT_TRUE(result.status.ok()) << result.status.error_message();
    ASSERT_EQ(result.tokens.size(), 9u);
    EXPECT_TRUE(std::equal(forced.begin(), forced.end(), result.tokens.begin())) << mode;
    EXPECT_EQ(result.tokens, Expected(request)) << mode;
  }
}

TEST_F(PairTest, MoreForcedTokensThanMaxTokensAreRefused) {
  StartBoth();
  auto request = MakeRequest(Prompt(100), 2, v1::MODE_FULL);
  for (int i = 0; i < 3; ++i) request.mutable_sampling()->add_forced_ids(i);
  const Result result = Generate(request);
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(result.status.error_message(), ::testing::HasSubstr("forced_ids"));
}

TEST_F(PairTest, ForcedTokensThatDifferFromThoseGeneratedAlreadyAreRefused) {
  StartBoth();
  auto request = MakeRequest(Prompt(100), 9, v1::MODE_FULL);
  for (const int32_t id : {7, 8}) request.add_generated_ids(id);
  for (const int32_t id : {7, 9, 3}) request.mutable_sampling()->add_forced_ids(id);
  const Result result = Generate(request);
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(result.status.error_message(), ::testing::HasSubstr("generated_ids first"));
}

TEST_F(PairTest, TransferredBytesAreTheKvOfThePrompt) {
  StartBoth();
  const Result result = Generate(MakeRequest(Prompt(200), 4, v1::MODE_FULL));
  EXPECT_EQ(result.stats.transfer_bytes(),
            static_cast<uint64_t>(200 * decode_->pool().layout().TokenBytes()));
}

TEST_F(PairTest, PrefixHitOnThePrefillSideIsNotComputedAgainButSent) {
  decode_options_.prefix_cache = false;
  StartBoth();
  const auto request = MakeRequest(Prompt(160), 6, v1::MODE_FULL);
  EXPECT_EQ(Generate(request).tokens, Expected(request));
  const double computed =
      prefill_->metrics().GetCounter("prompt_tokens_total", {{"source", "local"}}).value();
  const Result again = Generate(request);
  EXPECT_EQ(again.tokens, Expected(request));
  // 144 = the whole pages that leave at least one token to compute.
  EXPECT_EQ(again.stats.cached_tokens(), 144);
  EXPECT_EQ(prefill_->metrics().GetCounter("prompt_tokens_total", {{"source", "local"}}).value() -
                computed,
            16);
  EXPECT_EQ(again.stats.transfer_bytes(),
            static_cast<uint64_t>(160 * decode_->pool().layout().TokenBytes()));
}

TEST_F(PairTest, PrefixHitOnTheDecodeSideIsNotSentAgain) {
  StartBoth();
  const auto request = MakeRequest(Prompt(160), 6, v1::MODE_FULL);
  EXPECT_EQ(Generate(request).tokens, Expected(request));
  const Result again = Generate(request);
  EXPECT_EQ(again.tokens, Expected(request));
  EXPECT_EQ(again.stats.cached_tokens(), 144);
  EXPECT_EQ(again.stats.transfer_bytes(),
            static_cast<uint64_t>(16 * decode_->pool().layout().TokenBytes()));
}

TEST_F(PairTest, W12_SecondTurnThatDiffersInsideAPageHitsOnlyTheWholePagesBefore) {
  StartBoth();
  auto prompt = Prompt(100);
  EXPECT_TRUE(Generate(MakeRequest(prompt, 6, v1::MODE_FULL)).status.ok());
  prompt[70] ^= 1;
  const auto request = MakeRequest(prompt, 6, v1::MODE_FULL);
  const Result result = Generate(request);
  EXPECT_EQ(result.tokens, Expected(request));
  EXPECT_EQ(result.stats.cached_tokens(), 64);
}

TEST_F(PairTest, SixtyFourAtOnceOfMixedLengthsAndModesAreAllRight) {
  decode_options_.kv_bytes = 32 << 20;
  prefill_options_.kv_bytes = 32 << 20;
  StartBoth();
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < 64; ++i) {
    const v1::Mode mode = i % 5 == 0 ? v1::MODE_LOCAL : v1::MODE_FULL;
    requests.push_back(MakeRequest(Prompt(1 + i * 13 % 400, static_cast<uint64_t>(i / 2)),
                                   1 + i % 24, mode, i % 3 == 0 ? 0.8f : 0.0f));
  }
  ExpectAllRight(requests);
  ExpectBaseline();
}

TEST_F(PairTest, EndOfTextAsFirstTokenEndsTheRequestWithoutATransfer) {
  StartBoth();
  auto request = MakeRequest(Prompt(50), 10, v1::MODE_FULL);
  request.mutable_sampling()->add_eos_ids(Expected(request).front());
  const Result result = Generate(request);
  EXPECT_TRUE(result.status.ok());
  EXPECT_EQ(result.tokens.size(), 1u);
  EXPECT_EQ(result.reason, v1::Finished::REASON_STOP);
  ExpectBaseline();
}

TEST_F(PairTest, OneTokenNeedsNoTransfer) {
  StartBoth();
  const auto request = MakeRequest(Prompt(50), 1, v1::MODE_FULL);
  const Result result = Generate(request);
  EXPECT_EQ(result.tokens, Expected(request));
  EXPECT_EQ(result.stats.transfer_bytes(), 0u);
  ExpectBaseline();
}

TEST_F(PairTest, AResumedStreamGoesOnIdentically) {
  StartBoth();
  const auto whole = MakeRequest(Prompt(70), 20, v1::MODE_FULL, 0.9f);
  const std::vector<int32_t> expected = Expected(whole);
  for (const v1::Mode mode : {v1::MODE_FULL, v1::MODE_LOCAL}) {
    auto rest = whole;
    rest.set_mode(mode);
    rest.mutable_generated_ids()->Add(expected.begin(), expected.begin() + 7);
    const Result result = Generate(rest);
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.tokens, std::vector<int32_t>(expected.begin() + 7, expected.end()));
  }
}

TEST_F(PairTest, TheContextsEndFinishesWithLength) {
  prefill_options_.context_length = decode_options_.context_length = 64;
  StartBoth();
  for (const v1::Mode mode : {v1::MODE_FULL, v1::MODE_LOCAL}) {
    const Result result = Generate(MakeRequest(Prompt(60), 1000, mode));
    EXPECT_TRUE(result.status.ok());
    EXPECT_EQ(result.tokens.size(), 4u);
    EXPECT_EQ(result.reason, v1::Finished::REASON_LENGTH);
  }
  EXPECT_EQ(Generate(MakeRequest(Prompt(64), 2)).status.error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(PairTest, L2_WhatDecodedRefusesNeverReachesPrefill) {
  StartBoth();
  auto wrong_model = MakeRequest(Prompt(10), 4);
  wrong_model.set_model_fingerprint("another");
  EXPECT_EQ(Generate(wrong_model).status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  auto wrong_id = MakeRequest({1, 2, 256}, 4);
  const Result result = Generate(wrong_id);
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(result.status.error_message(),
              ::testing::HasSubstr("prompt_ids[2]: want 0 to 255, got 256"));
  EXPECT_EQ(Generate(MakeRequest({}, 4)).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Generate(MakeRequest(Prompt(4), 0)).status.error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(AtBaseline());
  EXPECT_EQ(prefill_->metrics().GetCounter("requests_total", {{"code", "OK"}}).value(), 0);
}

TEST_F(PairTest, LogprobsComeWithTheFirstTokenToo) {
  StartBoth();
  auto request = MakeRequest(Prompt(40), 3, v1::MODE_FULL);
  request.mutable_sampling()->set_logprobs(5);
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, request);
  v1::GenerateEvent event;
  int tokens = 0;
  while (reader->Read(&event)) {
    if (!event.has_token()) continue;
    ++tokens;
    EXPECT_EQ(event.token().top_logprobs_size(), 5) << tokens;
    EXPECT_LT(event.token().logprob(), 0);
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(tokens, 3);
}

TEST_F(PairTest, LayersAreOnTheWireWhileLaterOnesAreComputed) {
  StartBoth();
  prefill_gate_.Close();
  auto call = Begin(MakeRequest(Prompt(48), 4, v1::MODE_FULL));
  ASSERT_TRUE(WaitUntil([&] { return prefill_gate_.Blocked(); }));
  EXPECT_EQ(decode_->pairings().Peers().size(), 1u);
  // Lets layers 0 to 2 pass by hand: their KV must arrive before layer 3 is computed.
  prefill_gate_.Allow(3);
  const std::vector<std::string> healthy = decode_->pairings().Healthy({});
  ASSERT_EQ(healthy.size(), 1u);
  const auto layer_bytes = static_cast<uint64_t>(48 * decode_->pool().layout().TokenBytes(0));
  EXPECT_TRUE(
      WaitUntil([&] { return decode_->pairings().received_bytes(healthy[0]) >= 3 * layer_bytes; }));
  EXPECT_EQ(call->tokens(), 0u);
  prefill_gate_.Open();
  EXPECT_TRUE(call->Wait().status.ok());
}

TEST_F(PairTest, InfoAndMetricsTellWhatIsThere) {
  StartBoth();
  EXPECT_TRUE(Generate(MakeRequest(Prompt(100), 5, v1::MODE_FULL)).status.ok());
  ExpectBaseline();
  const v1::DaemonInfo info = decode_->Info();
  EXPECT_EQ(info.daemon(), "decoded");
  EXPECT_EQ(info.model_fingerprint(), kFingerprint);
  ASSERT_EQ(info.peers_size(), 1);
  EXPECT_TRUE(info.peers(0).up());
  const std::string text = decode_->metrics().Serialize();
  for (const char* line :
       {"smartgen_prompt_tokens_total{source=\"remote\"} 100", "smartgen_generation_tokens_total 4",
        "smartgen_requests_total{code=\"OK\"} 1", "smartgen_plan_mode_total{mode=\"full\"} 1",
        "smartgen_requests_running 0"}) {
    EXPECT_THAT(text, ::testing::HasSubstr(line));
  }
  const std::string prefill = prefill_->metrics().Serialize();
  for (const char* line : {"smartgen_prompt_tokens_total{source=\"local\"} 100",
                           "smartgen_kv_leases 0", "smartgen_requests_total{code=\"OK\"} 1"}) {
    EXPECT_THAT(prefill, ::testing::HasSubstr(line));
  }
}

}  // namespace
}  // namespace smartgen::integration
