// Many requests while everything that can fail does.
#include <atomic>
#include <random>

#include "tests/integration/pair_harness.h"

namespace smartgen::integration {
namespace {

class PairSoakTest : public PairTest {};

TEST_F(PairSoakTest, L14_TransferFaultsUnderLoadLeaveNothingBehind) {
  wrap_prefill_ = [](std::shared_ptr<channel::Channel> inner) -> std::shared_ptr<channel::Channel> {
    channel::FaultOptions faults;
    faults.seed = 11;
    faults.drop = faults.corrupt = faults.duplicate = faults.reorder = 0.03;
    faults.delay_max = std::chrono::milliseconds(2);
    return channel::FaultChannel::Wrap(std::move(inner), faults);
  };
  decode_options_.kv_bytes = 24 << 20;
  prefill_options_.kv_bytes = 24 << 20;
  StartBoth();
  for (int round = 0; round < 4; ++round) {
    std::vector<std::unique_ptr<Call>> calls;
    std::vector<v1::GenerateRequest> requests;
    for (int i = 0; i < 256; ++i) {
      requests.push_back(
          MakeRequest(Prompt(1 + (i * 37 + round) % 300, static_cast<uint64_t>(i / 2)), 1 + i % 12,
                      v1::MODE_FULL));
      calls.push_back(Begin(requests.back()));
    }
    for (size_t i = 0; i < calls.size(); ++i) {
      const Result& result = calls[i]->Wait();
      if (result.status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED)
        continue;  // refused at the door
      EXPECT_TRUE(result.status.ok()) << result.status.error_message();
      EXPECT_EQ(result.tokens, Expected(requests[i])) << i;
    }
    ExpectBaseline();
  }
}

TEST_F(PairSoakTest, PrefillKilledAtRandomMomentsNeverChangesAToken) {
  StartBoth();
  const int port = prefill_->port();
  std::atomic<bool> stop{false};
  std::atomic<int> served{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < 4; ++c) {
    clients.emplace_back([&, c] {
      for (uint64_t i = 0; !stop; ++i) {
        const auto request = MakeRequest(
            Prompt(static_cast<int>(20 + (i * 53) % 250), i * 4 + static_cast<uint64_t>(c)), 8,
            v1::MODE_AUTO, i % 2 ? 0.9f : 0.0f);
        const Result result = Generate(request);
        EXPECT_TRUE(result.status.ok()) << result.status.error_message();
        EXPECT_EQ(result.tokens, Expected(request));
        ++served;
      }
    });
  }
  std::mt19937 random(5);
  for (int kill = 0; kill < 12; ++kill) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + random() % 200));
    StopPrefill();
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 100));
    StartPrefill(port);
    WaitPaired();
  }
  stop = true;
  for (auto& client : clients) client.join();
  EXPECT_GT(served.load(), 50);
  ExpectBaseline();
  const auto request = MakeRequest(Prompt(77, 9999), 5, v1::MODE_FULL);
  EXPECT_EQ(Generate(request).stats.mode(), v1::MODE_FULL);
}

TEST_F(PairSoakTest, AThousandRequestsATenthOfThemCancelledLeaveNothing) {
  decode_options_.kv_bytes = 24 << 20;
  StartBoth();
  std::atomic<int> next{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < 16; ++c) {
    clients.emplace_back([&] {
      for (int i = next++; i < 1000; i = next++) {
        const auto request =
            MakeRequest(Prompt(1 + i * 31 % 300, static_cast<uint64_t>(i % 100)), 1 + i % 16);
        Call call(stub_.get(), request);
        if (i % 10 == 0) {
          std::this_thread::sleep_for(std::chrono::microseconds(i * 131 % 5000));
          call.Cancel();
          call.Wait();
          continue;
        }
        const Result& result = call.Wait();
        EXPECT_TRUE(result.status.ok()) << result.status.error_message();
        EXPECT_EQ(result.tokens, Expected(request)) << i;
      }
    });
  }
  for (auto& client : clients) client.join();
  ExpectBaseline(std::chrono::seconds(1));
}

}  // namespace
}  // namespace smartgen::integration
