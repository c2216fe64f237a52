// A client that goes away in any state leaves nothing behind, on either side, within a second.
#include "tests/integration/pair_harness.h"

namespace smartgen::integration {
namespace {

constexpr std::chrono::milliseconds kSoon{1000};

class PairCancelTest : public PairTest {};

TEST_F(PairCancelTest, H13_CancelWhilePrefillRunsEndsItWithinALayer) {
  StartBoth();
  prefill_gate_.Close();
  auto call = Begin(MakeRequest(Prompt(300), 8, v1::MODE_FULL));
  ASSERT_TRUE(WaitUntil([&] { return prefill_gate_.Blocked(); }));
  call->Cancel();
  EXPECT_EQ(call->Wait().status.error_code(), grpc::StatusCode::CANCELLED);
  ASSERT_TRUE(WaitUntil([&] { return prefill_->Info().leases() == 0; }, kSoon));
  const int64_t before = prefill_gate_.passes();
  prefill_gate_.Open();
  ExpectBaseline(kSoon);
  EXPECT_LE(prefill_gate_.passes() - before, 2);
}

TEST_F(PairCancelTest, L8_CancelAfterEachChunkLeavesNothing) {
  StartBoth();
  for (int chunk = 0; chunk < 5; ++chunk) {  // 300 tokens are 5 chunks of 64
    prefill_gate_.Close();
    auto call =
        Begin(MakeRequest(Prompt(300, 100 + static_cast<uint64_t>(chunk)), 8, v1::MODE_FULL));
    prefill_gate_.Allow(chunk * 4);
    ASSERT_TRUE(WaitUntil([&] { return prefill_gate_.Blocked(); }));
    call->Cancel();
    call->Wait();
    prefill_gate_.Open();
    ExpectBaseline(kSoon);
  }
}

TEST_F(PairCancelTest, CancelWhileQueuedOnThePrefillSide) {
  prefill_options_.max_running = 1;
  StartBoth();
  prefill_gate_.Close();
  auto first = Begin(MakeRequest(Prompt(64, 1), 2, v1::MODE_FULL));
  ASSERT_TRUE(WaitUntil([&] { return prefill_gate_.Blocked(); }));
  auto second = Begin(MakeRequest(Prompt(64, 2), 2, v1::MODE_FULL));
  ASSERT_TRUE(WaitUntil([&] { return prefill_->Info().waiting() == 1; }));
  second->Cancel();
  EXPECT_EQ(second->Wait().status.error_code(), grpc::StatusCode::CANCELLED);
  prefill_gate_.Open();
  EXPECT_TRUE(first->Wait().status.ok());
  ExpectBaseline(kSoon);
}

TEST_F(PairCancelTest, CancelWhileQueuedOnTheDecodeSide) {
  decode_options_.max_batch = 1;
  StartBoth();
  decode_gate_.Close();
  auto first = Begin(MakeRequest(Prompt(20, 1), 5, v1::MODE_LOCAL));
  ASSERT_TRUE(WaitUntil([&] { return decode_gate_.Blocked(); }));
  auto second = Begin(MakeRequest(Prompt(20, 2), 5, v1::MODE_LOCAL));
  ASSERT_TRUE(WaitUntil([&] { return decode_->Info().waiting() == 1; }));
  second->Cancel();
  EXPECT_EQ(second->Wait().status.error_code(), grpc::StatusCode::CANCELLED);
  decode_gate_.Open();
  EXPECT_TRUE(first->Wait().status.ok());
  ExpectBaseline(kSoon);
}

TEST_F(PairCancelTest, L1_CancelWhileWaitingForKvThatNeverComes) {
  wrap_prefill_ = [](std::shared_ptr<channel::Channel> inner) -> std::shared_ptr<channel::Channel> {
    return channel::FaultChannel::Wrap(std::move(inner), {.drop = 1.0});
  };
  decode_options_.stall = std::chrono::seconds(60);
  StartBoth();
  auto call = Begin(MakeRequest(Prompt(100), 8, v1::MODE_FULL));
  ASSERT_TRUE(WaitUntil([&] { return call->tokens() == 1; }));
  call->Cancel();
  EXPECT_EQ(call->Wait().status.error_code(), grpc::StatusCode::CANCELLED);
  ExpectBaseline(kSoon);
}

TEST_F(PairCancelTest, CancelWhileDecoding) {
  StartBoth();
  auto call = Begin(MakeRequest(Prompt(100), 3000, v1::MODE_FULL));
  ASSERT_TRUE(WaitUntil([&] { return call->tokens() >= 5; }));
  call->Cancel();
  EXPECT_EQ(call->Wait().status.error_code(), grpc::StatusCode::CANCELLED);
  ExpectBaseline(kSoon);
}

TEST_F(PairCancelTest, L6_CancelAtRandomMomentsNeverLeaksAReference) {
  StartBoth();
  for (int i = 0; i < 60; ++i) {
    // The same prompt throughout: prefix pages are shared by all.
    auto call = Begin(MakeRequest(Prompt(150), 20, i % 2 == 0 ? v1::MODE_FULL : v1::MODE_LOCAL));
    if (i % 3 != 0) std::this_thread::sleep_for(std::chrono::microseconds(i * 97 % 3000));
    call->Cancel();
    call->Wait();
  }
  ExpectBaseline(kSoon);
  const auto request = MakeRequest(Prompt(150), 20, v1::MODE_FULL);
  EXPECT_EQ(Generate(request).tokens, Expected(request));
  ExpectBaseline(kSoon);
}

TEST_F(PairCancelTest, TheClientsDeadlineEndsEveryStage) {
  StartBoth();
  prefill_gate_.Close();
  Call call(stub_.get(), MakeRequest(Prompt(100), 8, v1::MODE_FULL),
            std::chrono::milliseconds(300));
  EXPECT_EQ(call.Wait().status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  prefill_gate_.Open();
  ExpectBaseline(kSoon);
}

}  // namespace
}  // namespace smartgen::integration
