#include "common/channel/fault_channel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "tests/common/channel/recording_receiver.h"

namespace smartgen::channel {
namespace {

// Takes everything and is done with it at once, as an endless network would.
class InstantChannel : public Channel {
 public:
  struct Sent {
    Lane lane;
    std::vector<std::byte> head;
    std::vector<std::byte> payload;
    base::TimePoint at;
  };
  absl::Status Send(OutMessage message) override {
    {
      base::MutexLock lock(mutex_);
      if (refusals_ > 0) {
        --refusals_;
        return base::ResourceExhausted("full");
      }
      if (!closed_.ok()) return base::Unavailable("closed");
      Sent sent{.lane = message.lane, .head = message.head, .at = base::Clock::Real()->Now()};
      for (const auto& segment : message.segments) {
        sent.payload.insert(sent.payload.end(), segment.begin(), segment.end());
      }
      sent_.push_back(std::move(sent));
    }
    if (message.on_done) message.on_done(absl::OkStatus());
    return absl::OkStatus();
  }
  void LimitInFlight(Lane lane, uint64_t bytes) override {
    base::MutexLock lock(mutex_);
    limits_.emplace_back(lane, bytes);
  }
  LinkInfo link_info() const override { return {.acked_bytes = 77}; }
  int64_t CancelTag(uint64_t) override { return 0; }
  ChannelStats stats() const override { return {}; }
  void Close(const absl::Status& reason) override {
    base::MutexLock lock(mutex_);
    closed_ = reason;
  }
  std::string_view transport() const override { return "instant"; }
  std::string peer() const override { return "nowhere"; }

  std::vector<Sent> sent() const {
    base::MutexLock lock(mutex_);
    return sent_;
  }
  bool closed() const {
    base::MutexLock lock(mutex_);
    return !closed_.ok();
  }
  std::vector<std::pair<Lane, uint64_t>> limits() const {
    base::MutexLock lock(mutex_);
    return limits_;
  }
  void RefuseNext(int count) {
    base::MutexLock lock(mutex_);
    refusals_ = count;
  }

 private:
  mutable base::Mutex mutex_;
  std::vector<Sent> sent_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<Lane, uint64_t>> limits_ ABSL_GUARDED_BY(mutex_);
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
  int refusals_ ABSL_GUARDED_BY(mutex_) = 0;
};

class FaultChannelTest : public testing::Test {
 protected:
  void Wrap(const FaultOptions& options) { faulty_ = FaultChannel::Wrap(inner_, options); }
  absl::Status Send(int number, Lane lane = Lane::kProactive, uint64_t tag = 0) {
    auto owner = std::make_shared<std::vector<std::byte>>(Pattern(1000, number));
    return faulty_->Send(
        {.lane = lane,
         .head = Bytes(std::to_string(number)),
         .segments = {std::span(*owner).first(300), std::span(*owner).subspan(300)},
         .owner = owner,
         .on_done = done_.Callback(),
         .tag = tag});
  }
  void SendAll(int count) {
    for (int i = 0; i < count; ++i) ASSERT_TRUE(Send(i).ok());
    ASSERT_TRUE(done_.WaitForTotal(count));
  }

  DoneCounter done_;
  std::shared_ptr<InstantChannel> inner_ = std::make_shared<InstantChannel>();
  std::shared_ptr<FaultChannel> faulty_;
};

TEST_F(FaultChannelTest, WithoutFaultsAllPassesInOrder) {
  Wrap({});
  SendAll(100);
  const auto sent = inner_->sent();
  ASSERT_EQ(sent.size(), 100u);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(sent[i].head, Bytes(std::to_string(i)));
    EXPECT_EQ(sent[i].payload, Pattern(1000, i));
  }
}

TEST_F(FaultChannelTest, DroppedMessagesAreDoneButNeverSent) {
  Wrap({.drop = 0.3});
  SendAll(1000);
  EXPECT_EQ(done_.ok(), 1000);
  EXPECT_GT(faulty_->counts().dropped, 200);
  EXPECT_EQ(inner_->sent().size(), 1000u - faulty_->counts().dropped);
}

TEST_F(FaultChannelTest, ACorruptMessageDiffersInOneByteAndTheOriginalDoesNot) {
  Wrap({.corrupt = 1});
  const auto original = std::make_shared<std::vector<std::byte>>(Pattern(1000, 1));
  ASSERT_TRUE(faulty_
                  ->Send({.head = Bytes("1"),
                          .segments = {*original},
                          .owner = original,
                          .on_done = done_.Callback()})
                  .ok());
  ASSERT_TRUE(done_.WaitForTotal(1));
  const auto sent = inner_->sent();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(*original, Pattern(1000, 1));
  int differing = 0;
  for (size_t i = 0; i < 1000; ++i) differing += sent[0].payload[i] != (*original)[i];
  EXPECT_EQ(differing, 1);
}

TEST_F(FaultChannelTest, ADuplicateIsDoneOnce) {
  Wrap({.duplicate = 1});
  SendAll(50);
  faulty_.reset();
  EXPECT_EQ(done_.total(), 50);
  EXPECT_GE(inner_->sent().size(), 99u);  // the last twin may have been waiting
}

TEST_F(FaultChannelTest, ReorderingLosesNothing) {
  Wrap({.reorder = 0.2});
  SendAll(500);
  const auto sent = inner_->sent();
  ASSERT_EQ(sent.size(), 500u);
  std::vector<std::vector<std::byte>> heads;
  for (const auto& message : sent) heads.push_back(message.head);
  std::vector<std::vector<std::byte>> want;
  for (int i = 0; i < 500; ++i) want.push_back(Bytes(std::to_string(i)));
  EXPECT_NE(heads, want);
  EXPECT_TRUE(std::is_permutation(heads.begin(), heads.end(), want.begin()));
  EXPECT_GT(faulty_->counts().reordered, 0);
}

TEST_F(FaultChannelTest, AHeldMessageGoesOutEvenIfNoneFollows) {
  Wrap({.reorder = 1});
  SendAll(1);
  EXPECT_EQ(inner_->sent().size(), 1u);
}

TEST_F(FaultChannelTest, ADelayKeepsTheOrderOfALane) {
  Wrap({.delay_min = std::chrono::milliseconds(1), .delay_max = std::chrono::milliseconds(20)});
  const base::TimePoint start = base::Clock::Real()->Now();
  SendAll(50);
  const auto sent = inner_->sent();
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(sent[i].head, Bytes(std::to_string(i)));
    EXPECT_GE(sent[i].at - start, std::chrono::milliseconds(1));
  }
}

TEST_F(FaultChannelTest, BreaksAfterTheGivenNumberOfMessages) {
  Wrap({.close_after_messages = 10});
  for (int i = 0; i < 50; ++i) (void)Send(i).ok();
  ASSERT_TRUE(done_.WaitForTotal(11));
  faulty_.reset();
  EXPECT_EQ(inner_->sent().size(), 10u);
  EXPECT_TRUE(inner_->closed());
  EXPECT_EQ(done_.ok(), 10);
}

TEST_F(FaultChannelTest, PacingHoldsTheBandwidthAndTheOrderOfLanes) {
  Wrap({.bandwidth = 1e6});  // 1,000 bytes a millisecond
  const base::TimePoint start = base::Clock::Real()->Now();
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(Send(i, Lane::kSpeculative).ok());
  ASSERT_TRUE(Send(1000, Lane::kOnDemand).ok());
  ASSERT_TRUE(done_.WaitForTotal(51));
  EXPECT_GE(base::Clock::Real()->Now() - start, std::chrono::milliseconds(50));
  const auto sent = inner_->sent();
  const auto urgent = std::find_if(sent.begin(), sent.end(),
                                   [](const auto& m) { return m.lane == Lane::kOnDemand; });
  EXPECT_LT(urgent - sent.begin(), 50);
}

TEST_F(FaultChannelTest, WaitsForAFullChannelBelow) {
  inner_->RefuseNext(20);
  Wrap({});
  SendAll(10);
  EXPECT_EQ(done_.ok(), 10);
  EXPECT_EQ(inner_->sent().size(), 10u);
}

TEST_F(FaultChannelTest, CancelTagDropsWhatWaits) {
  Wrap({.bandwidth = 1000});  // a second a message
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Send(i, Lane::kProactive, i % 2).ok());
  const int64_t dropped = faulty_->CancelTag(1);
  EXPECT_GE(dropped, 9);
  ASSERT_TRUE(done_.WaitForTotal(dropped));
  EXPECT_EQ(done_.cancelled(), dropped);
  faulty_->Close(base::Aborted("enough"));
  ASSERT_TRUE(done_.WaitForTotal(20));
  EXPECT_EQ(done_.total(), 20);
  EXPECT_TRUE(absl::IsUnavailable(Send(1)));
}

TEST(FaultChannel, LimitsAndLinkAreThoseOfTheChannelBelow) {
  auto inner = std::make_shared<InstantChannel>();
  const auto channel = FaultChannel::Wrap(inner, {});
  channel->LimitInFlight(Lane::kSpeculative, 1234);
  EXPECT_EQ(inner->limits(), (std::vector<std::pair<Lane, uint64_t>>{{Lane::kSpeculative, 1234}}));
  EXPECT_EQ(channel->link_info().acked_bytes, 77u);
}

}  // namespace
}  // namespace smartgen::channel
