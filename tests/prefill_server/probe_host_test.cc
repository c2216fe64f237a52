#include "prefill_server/probe_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace smartgen::prefill_server {
namespace {

class ProbeHostTest : public testing::Test {
 protected:
  ProbeHostTest() {
    tcp_ = *channel::TcpEngine::Create({.listen = "127.0.0.1:0"}, base::Clock::Real());
    dialler_ = *channel::TcpEngine::Create({}, base::Clock::Real());
    host_ = std::make_unique<ProbeHost>(
        ProbeHost::Options{.max_bytes = 8 << 20, .timeout = std::chrono::seconds(20)}, tcp_.get(),
        &clock_);
  }
  ~ProbeHostTest() override {
    host_->Stop();
    dialler_.reset();
    tcp_.reset();
  }
  absl::StatusOr<std::shared_ptr<channel::Channel>> Dial(const v1::ProbeReply& reply) {
    base::ChannelKey key;
    std::copy_n(reinterpret_cast<const std::byte*>(reply.channel_key().data()), key.size(),
                key.begin());
    client_ = std::make_shared<transfer::ProbeClient>(transfer::ProbeClient::Options{
        .bulk_time = std::chrono::milliseconds(1), .max_bytes = reply.max_bytes()});
    return dialler_->Connect("127.0.0.1", static_cast<int>(reply.data_port()), key, client_,
                             Soon());
  }
  static base::Deadline Soon() {
    return base::Deadline::After(*base::Clock::Real(), std::chrono::seconds(20));
  }
  // The other side learns of a closed channel a little later.
  bool BeginsWithin(base::Duration patience) {
    const auto deadline = base::Deadline::After(*base::Clock::Real(), patience);
    while (!host_->Begin().ok()) {
      if (deadline.Expired(*base::Clock::Real())) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  base::SimulatedClock clock_;
  std::unique_ptr<channel::TcpEngine> tcp_, dialler_;
  std::unique_ptr<ProbeHost> host_;
  std::shared_ptr<transfer::ProbeClient> client_;
};

TEST_F(ProbeHostTest, WhoPresentsTheKeyMayMeasure) {
  const auto reply = host_->Begin();
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(static_cast<int>(reply->data_port()), tcp_->listen_port());
  const auto channel = Dial(*reply);
  ASSERT_TRUE(channel.ok()) << channel.status();
  const auto result = client_->Run(**channel, Soon());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->bytes_per_second, 0);
}

TEST_F(ProbeHostTest, OneMeasurementAtATime) {
  const auto reply = host_->Begin();
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(host_->Begin().status().code(), absl::StatusCode::kResourceExhausted);
  const auto channel = Dial(*reply);
  ASSERT_TRUE(channel.ok()) << channel.status();
  EXPECT_EQ(host_->Begin().status().code(), absl::StatusCode::kResourceExhausted);
  (*channel)->Close(base::Cancelled("measured"));
  EXPECT_TRUE(BeginsWithin(std::chrono::seconds(20)));
}

TEST_F(ProbeHostTest, AMeasurementEndsWhenItsTimeIsOver) {
  const auto reply = host_->Begin();
  ASSERT_TRUE(reply.ok());
  const auto channel = Dial(*reply);
  ASSERT_TRUE(channel.ok()) << channel.status();
  host_->Tick();
  clock_.Advance(std::chrono::seconds(21));
  host_->Tick();
  EXPECT_FALSE(client_->Run(**channel, Soon()).ok());
  EXPECT_TRUE(host_->Begin().ok());
}

TEST_F(ProbeHostTest, NobodyMeasuresAfterStop) {
  const auto reply = host_->Begin();
  ASSERT_TRUE(reply.ok());
  const auto channel = Dial(*reply);
  ASSERT_TRUE(channel.ok()) << channel.status();
  host_->Stop();
  EXPECT_FALSE(client_->Run(**channel, Soon()).ok());
  EXPECT_EQ(host_->Begin().status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace smartgen::prefill_server
