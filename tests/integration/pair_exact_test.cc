// Mode exact: tokens are made while KV is on the way, and are those of a single process.
#include "tests/integration/pair_harness.h"

namespace smartgen::integration {
namespace {

class PairExactTest : public PairTest {
 protected:
  // So slow that many steps are made before all KV is there.
  void SlowLink(double bytes_per_second) {
    wrap_prefill_ = [=](std::shared_ptr<channel::Channel> inner) {
      channel::FaultOptions faults;
      faults.bandwidth = bytes_per_second;
      return channel::FaultChannel::Wrap(std::move(inner), faults);
    };
  }
  double SplitSteps() {
    return prefill_->metrics().GetCounter("handover_steps_total", {{"kind", "split"}}).value();
  }
};

TEST_F(PairExactTest, StepsBeforeAllKvIsHereMakeTheTokensOfASingleProcess) {
  SlowLink(200'000);
  StartBoth();
  for (const int length : {1, 17, 300, 700}) {
    const auto request =
        MakeRequest(Prompt(length, 5 + static_cast<uint64_t>(length)), 40, v1::MODE_EXACT);
    const Result result = Generate(request);
    ASSERT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.tokens, Expected(request)) << length;
    EXPECT_EQ(result.stats.mode(), v1::MODE_EXACT) << result.stats.fallback_reason();
    EXPECT_EQ(result.stats.fallback_reason(), "");
  }
  EXPECT_GT(SplitSteps(), 20);
  ExpectBaseline();
}

TEST_F(PairExactTest, LayersMoveOverOneAfterTheOtherAndNothingTravelsTwice) {
  SlowLink(400'000);
  StartBoth();
  const auto request = MakeRequest(Prompt(400), 600, v1::MODE_EXACT);
  const Result result = Generate(request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.tokens, Expected(request));
  // It ended with all KV here, so that the later steps were made here alone.
  EXPECT_GT(result.stats.all_local_seconds(), 0);
  EXPECT_GT(result.stats.handover_steps(), 0);
  EXPECT_LT(result.stats.handover_steps(), 599);
  // The prompt's KV once, and of the tokens that were born there less than all of theirs.
  const auto kv = static_cast<uint64_t>(400 * decode_->pool().layout().TokenBytes());
  uint64_t total = 0;
  for (const auto& [path, bytes] : result.stats.path_bytes()) total += bytes;
  EXPECT_EQ(total, result.stats.transfer_bytes());
  EXPECT_GE(total, kv);
  EXPECT_LE(total, kv + static_cast<uint64_t>(result.stats.handover_steps() *
                                              decode_->pool().layout().TokenBytes()));
  ExpectBaseline();
}

// Two of four layers show 100 tokens: the next token sees 99 of the prompt there.
TEST_F(PairExactTest, TokensOutsideALayersWindowDoNotTravel) {
  for (auto* options : {&prefill_executor_, &decode_executor_}) options->windows = {0, 100, 0, 100};
  SlowLink(400'000);
  StartBoth();
  const auto layer_bytes = static_cast<uint64_t>(decode_->pool().layout().TokenBytes(0));
  for (const int length : {50, 400}) {
    const auto kv = 2 * layer_bytes * static_cast<uint64_t>(length + std::min(length, 99));
    const auto full =
        MakeRequest(Prompt(length, 70 + static_cast<uint64_t>(length)), 12, v1::MODE_FULL);
    const Result whole = Generate(full);
    ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();
    EXPECT_EQ(whole.tokens, Expected(full, decode_executor_)) << length;
    EXPECT_EQ(whole.stats.transfer_bytes(), kv) << length;
    const auto exact =
        MakeRequest(Prompt(length, 80 + static_cast<uint64_t>(length)), 400, v1::MODE_EXACT);
    const Result split = Generate(exact);
    ASSERT_TRUE(split.status.ok()) << split.status.error_message();
    EXPECT_EQ(split.tokens, Expected(exact, decode_executor_)) << length;
    EXPECT_GT(split.stats.all_local_seconds(), 0) << length;
    EXPECT_EQ(split.stats.fallback_reason(), "");
  }
  ExpectBaseline();
}

TEST_F(PairExactTest, AFastLinkNeedsNoHandover) {
  StartBoth();
  const auto request = MakeRequest(Prompt(100), 400, v1::MODE_EXACT);
  const Result result = Generate(request);
  EXPECT_EQ(result.tokens, Expected(request));
  EXPECT_LE(result.stats.handover_steps(), 40);  // a tenth, whatever else the machine does
}

TEST_F(PairExactTest, ManyAtOnceShareStepsAndAreAllRight) {
  SlowLink(1'000'000);
  decode_options_.kv_bytes = 32 << 20;
  prefill_options_.kv_bytes = 32 << 20;
  StartBoth();
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < 16; ++i) {
    requests.push_back(MakeRequest(Prompt(20 + i * 31 % 300, static_cast<uint64_t>(i / 2)), 24,
                                   i % 4 == 0 ? v1::MODE_AUTO : v1::MODE_EXACT,
                                   i % 3 == 0 ? 0.8f : 0.0f));
  }
  ExpectAllRight(requests);
  ExpectBaseline();
}

TEST_F(PairExactTest, AClientThatLeavesDuringTheHandoverLeavesNothingBehind) {
  SlowLink(100'000);
  StartBoth();
  const auto call = Begin(MakeRequest(Prompt(500), 500, v1::MODE_EXACT));
  ASSERT_TRUE(WaitUntil([&] { return call->tokens() > 3; }));
  call->Cancel();
  call->Wait();
  ExpectBaseline();
}

TEST_F(PairExactTest, ThePrefillSideDiesDuringTheHandoverAndTheStreamGoesOn) {
  SlowLink(100'000);
  StartBoth();
  const auto request = MakeRequest(Prompt(500), 60, v1::MODE_EXACT);
  const auto call = Begin(request);
  ASSERT_TRUE(WaitUntil([&] { return call->tokens() > 3; }));
  StopPrefill();
  const Result& result = call->Wait();
  EXPECT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.tokens, Expected(request));
  EXPECT_NE(result.stats.fallback_reason(), "");
}

TEST_F(PairExactTest, LostAndDamagedMessagesChangeNoToken) {
  wrap_prefill_ = [](std::shared_ptr<channel::Channel> inner) {
    channel::FaultOptions faults;
    faults.bandwidth = 500'000;
    faults.drop = faults.corrupt = faults.duplicate = faults.reorder = 0.02;
    return channel::FaultChannel::Wrap(std::move(inner), faults);
  };
  decode_options_.stall = std::chrono::milliseconds(150);
  StartBoth();
  for (int i = 0; i < 4; ++i) {
    const auto request = MakeRequest(Prompt(300, static_cast<uint64_t>(i)), 80, v1::MODE_EXACT);
    const Result result = Generate(request);
    ASSERT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.tokens, Expected(request)) << i;
  }
  ExpectBaseline();
}

}  // namespace
}  // namespace smartgen::integration
