#include "common/transfer/probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <thread>

#include "common/channel/fault_channel.h"
#include "common/channel/tcp/tcp_engine.h"

namespace smartgen::transfer {
namespace {

using testing::HasSubstr;
using ChannelPtr = std::shared_ptr<channel::Channel>;

constexpr uint64_t kMiB = 1 << 20;

base::Deadline In(base::Duration d) { return base::Deadline::After(*base::Clock::Real(), d); }

// Both ends over a loopback channel; what the responder sends may pass faults.
class ProbeTest : public testing::Test {
 protected:
  void Connect(ProbeClient::Options options, uint64_t max_bytes = 64 * kMiB,
               int64_t max_pings = 1000, std::optional<channel::FaultOptions> faults = {}) {
    channel_.reset();
    listener_ = *channel::TcpEngine::Create({.listen = "127.0.0.1:0"}, base::Clock::Real());
    dialler_ = *channel::TcpEngine::Create({}, base::Clock::Real());
    responder_ = std::make_shared<ProbeResponder>(max_bytes, max_pings);
    client_ = std::make_shared<ProbeClient>(options);
    const base::ChannelKey key = base::NewChannelKey();
    listener_->Expect(key, responder_, std::chrono::seconds(20),
                      [responder = responder_, faults](absl::StatusOr<ChannelPtr> channel) {
                        ASSERT_TRUE(channel.ok()) << channel.status();
                        if (faults) *channel = channel::FaultChannel::Wrap(*channel, *faults);
                        responder->SetChannel(*std::move(channel));
                      });
    auto channel = dialler_->Connect("127.0.0.1", listener_->listen_port(), key, client_,
                                     In(std::chrono::seconds(20)));
    ASSERT_TRUE(channel.ok()) << channel.status();
    channel_ = *std::move(channel);
  }
  absl::StatusOr<ProbeResult> Run() {
    return client_->Run(*channel_, In(std::chrono::seconds(30)));
  }
  // The client may know before the responder's own thread does.
  bool ResponderCloses() const {
    const base::Deadline deadline = In(std::chrono::seconds(10));
    while (!responder_->closed() && !deadline.Expired(*base::Clock::Real())) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return responder_->closed();
  }
  static std::string Message(const absl::Status& status) {
    return std::string(base::MessageOf(status));
  }

  std::unique_ptr<channel::TcpEngine> listener_, dialler_;
  std::shared_ptr<ProbeResponder> responder_;
  std::shared_ptr<ProbeClient> client_;
  ChannelPtr channel_;
};

TEST_F(ProbeTest, MeasuresLoopbackWithinItsBytes) {
  Connect({.bulk_time = std::chrono::milliseconds(20), .max_bytes = 64 * kMiB});
  const auto result = Run();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->bytes_per_second, 1e6);
  EXPECT_GT(result->round_trip_seconds, 0);
  EXPECT_LT(result->round_trip_seconds, 1);
  EXPECT_GE(result->bytes, 2 * kMiB) << "one round fills buckets, the next is measured";
  EXPECT_LE(result->bytes, 64 * kMiB);
}

TEST_F(ProbeTest, FindsTheRateOfASlowLink) {
  // On a machine that has no time for it just then, a rate can come out lower, never higher.
  double best = 0;
  for (int i = 0; i < 10 && best < 0.8 * 20e6; ++i) {
    Connect({.bulk_time = std::chrono::milliseconds(200), .max_bytes = 64 * kMiB}, 64 * kMiB, 1000,
            channel::FaultOptions{.bandwidth = 20e6});
    const auto result = Run();
    ASSERT_TRUE(result.ok()) << result.status();
    best = std::max(best, result->bytes_per_second);
  }
  EXPECT_NEAR(best / 20e6, 1, 0.2);
}

TEST_F(ProbeTest, RoundTripsAreAsLongAsTheWay) {
  Connect({.round_trips = 5, .bulk_time = std::chrono::milliseconds(1), .max_bytes = 2 * kMiB},
          2 * kMiB, 1000,
          channel::FaultOptions{.delay_min = std::chrono::milliseconds(30),
                                .delay_max = std::chrono::milliseconds(30)});
  const auto result = Run();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GE(result->round_trip_seconds, 0.03);
}

TEST_F(ProbeTest, NoMoreBytesAreSentThanThereMayBe) {
  Connect({.max_bytes = 64 * kMiB}, /*max_bytes=*/2 * kMiB);
  EXPECT_THAT(Message(Run().status()), HasSubstr("closed"));
  EXPECT_TRUE(ResponderCloses());
}

TEST_F(ProbeTest, NoMorePingsAreAnsweredThanThereMayBe) {
  Connect({.round_trips = 10, .max_bytes = kMiB}, kMiB, /*max_pings=*/3);
  EXPECT_FALSE(Run().ok());
  EXPECT_TRUE(ResponderCloses());
}

TEST_F(ProbeTest, AResponderThatIsClosedEndsTheMeasurement) {
  Connect({.max_bytes = 64 * kMiB});
  responder_->Close(base::DeadlineExceeded("time is over"));
  EXPECT_FALSE(Run().ok());
}

TEST_F(ProbeTest, SilenceEndsAtTheDeadline) {
  Connect({.max_bytes = kMiB}, kMiB, 1000, channel::FaultOptions{.drop = 1});
  const auto result = client_->Run(*channel_, In(std::chrono::milliseconds(200)));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(ProbeResponderTest, WhatIsNoQuestionIsRefused) {
  ProbeResponder responder(kMiB, 10);
  const std::vector<std::byte> head(9, std::byte{1});
  EXPECT_TRUE(responder.OnHead(channel::Lane::kOnDemand, head, 0).ok());
  EXPECT_FALSE(responder.OnHead(channel::Lane::kOnDemand, head, 16).ok());
  for (const size_t size : {0, 1, 8, 10, 4096}) {
    EXPECT_FALSE(responder.OnHead(channel::Lane::kOnDemand, std::vector<std::byte>(size), 0).ok());
  }
}

TEST(ProbeClientTest, APayloadBeyondAMessageIsRefused) {
  ProbeClient client({.max_bytes = kMiB});
  std::vector<std::byte> head(9);
  head[0] = std::byte{4};
  EXPECT_TRUE(client.OnHead(channel::Lane::kProactive, head, kProbeMessageBytes).ok());
  EXPECT_FALSE(client.OnHead(channel::Lane::kProactive, head, kProbeMessageBytes + 1).ok());
}

}  // namespace
}  // namespace smartgen::transfer
