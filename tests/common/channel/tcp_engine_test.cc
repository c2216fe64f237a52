#include "common/channel/tcp/tcp_engine.h"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/common/channel/tcp_fixture.h"

namespace smartgen::channel {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class TcpEngineTest : public TcpFixture {};

TEST_F(TcpEngineTest, EveryLaneCarriesMessagesBothWays) {
  Start();
  Pair();
  for (int lane = 0; lane < kNumLanes; ++lane) {
    ASSERT_TRUE(out_->Send(Message(static_cast<Lane>(lane), "out", Pattern(70'000, lane))).ok());
    ASSERT_TRUE(back_->Send(Message(static_cast<Lane>(lane), "back", Pattern(50, lane))).ok());
  }
  ASSERT_TRUE(there_->WaitForMessages(4));
  ASSERT_TRUE(here_->WaitForMessages(4));
  for (const auto& message : there_->messages()) {
    EXPECT_EQ(message.head, "out");
    EXPECT_EQ(message.payload, Pattern(70'000, static_cast<uint64_t>(message.lane)));
  }
  ASSERT_TRUE(done_.WaitForTotal(8));
  EXPECT_EQ(done_.ok(), 8);
  EXPECT_EQ(out_->stats().queued_bytes, 0u);
  EXPECT_EQ(out_->stats().bytes_sent[0], 70'000u);
  EXPECT_EQ(back_->stats().bytes_received[3], 70'000u);
  EXPECT_EQ(out_->transport(), "tcp");
  EXPECT_EQ(out_->peer(), "127.0.0.1:" + std::to_string(listener_->listen_port()));
}

TEST_F(TcpEngineTest, GathersAndScattersMoreSegmentsThanOneCallTakes) {
  Start();
  Pair();
  there_->piece = 100;
  const auto payload = Pattern(1'000'003, 5);
  ASSERT_TRUE(out_->Send(Message(Lane::kProactive, "many", payload, 300)).ok());
  ASSERT_TRUE(there_->WaitForMessages(1));
  EXPECT_EQ(there_->messages()[0].payload, payload);
  ASSERT_TRUE(done_.WaitForTotal(1));
  EXPECT_EQ(out_->stats().segments_sent[2], 3334u);
}

TEST_F(TcpEngineTest, AMessageWithoutPayloadArrives) {
  Start();
  Pair();
  ASSERT_TRUE(out_->Send(Message(Lane::kMetadata, "head only", {})).ok());
  ASSERT_TRUE(there_->WaitForMessages(1));
  EXPECT_EQ(there_->messages()[0].head, "head only");
}

TEST_F(TcpEngineTest, KeepsTheOrderWithinALane) {
  Start();
  Pair();
  for (int i = 0; i < 5000; ++i) {
    ASSERT_TRUE(out_->Send(Message(Lane::kProactive, std::to_string(i), Pattern(i % 300, i))).ok());
  }
  ASSERT_TRUE(there_->WaitForMessages(5000));
  const auto messages = there_->messages();
  for (int i = 0; i < 5000; ++i) {
    EXPECT_EQ(messages[i].head, std::to_string(i));
    EXPECT_EQ(messages[i].payload, Pattern(i % 300, i));
  }
}

TEST_F(TcpEngineTest, ARefusedPayloadIsDrainedAndCounted) {
  Start();
  Pair();
  there_->refuse = "no";
  ASSERT_TRUE(out_->Send(Message(Lane::kProactive, "no", Pattern(3'000'000, 1))).ok());
  ASSERT_TRUE(out_->Send(Message(Lane::kProactive, "yes", Pattern(10, 2))).ok());
  ASSERT_TRUE(there_->WaitForMessages(1));
  EXPECT_EQ(there_->messages()[0].payload, Pattern(10, 2));
  EXPECT_EQ(back_->stats().refused_messages, 1u);
  EXPECT_EQ(back_->stats().refused_bytes, 3'000'000u);
}

TEST_F(TcpEngineTest, OnDoneMaySend) {
  Start();
  Pair();
  OutMessage first = Message(Lane::kProactive, "first", Pattern(10, 1));
  first.on_done = [&](const absl::Status&) {
    EXPECT_TRUE(out_->Send(Message(Lane::kProactive, "second", Pattern(20, 2))).ok());
  };
  ASSERT_TRUE(out_->Send(std::move(first)).ok());
  ASSERT_TRUE(there_->WaitForMessages(2));
}

TEST_F(TcpEngineTest, ASmallOnDemandMessageOvertakesQueuedBackgroundData) {
  Start({.socket_buffer_bytes = 64 << 10});
  Pair();
  there_->CloseGate();
  for (int i = 0; i < 64; ++i) {
    ASSERT_TRUE(out_->Send(Message(Lane::kSpeculative, "bulk", Pattern(128 << 10, i))).ok());
  }
  ASSERT_TRUE(there_->WaitAtGate());
  ASSERT_TRUE(out_->Send(Message(Lane::kOnDemand, "urgent", Pattern(100, 1))).ok());
  there_->OpenGate();
  ASSERT_TRUE(there_->WaitForMessages(65));
  const auto messages = there_->messages();
  const auto it = std::find_if(messages.begin(), messages.end(),
                               [](const auto& m) { return m.head == "urgent"; });
  EXPECT_LE(it - messages.begin(), 2);
}

TEST_F(TcpEngineTest, CancelTagDropsWhatHasNotBegun) {
  Start({.socket_buffer_bytes = 64 << 10});
  Pair();
  there_->CloseGate();
  for (int i = 0; i < 100; ++i) {
    OutMessage message = Message(Lane::kProactive, std::to_string(i), Pattern(128 << 10, i));
    message.tag = i % 2 == 0 ? 7 : 8;
    ASSERT_TRUE(out_->Send(std::move(message)).ok());
  }
  ASSERT_TRUE(there_->WaitAtGate());
  const int64_t dropped = out_->CancelTag(7);
  EXPECT_GE(dropped, 40);
  there_->OpenGate();
  ASSERT_TRUE(done_.WaitForTotal(100));
  EXPECT_EQ(done_.cancelled(), dropped);
  ASSERT_TRUE(there_->WaitForMessages(100 - dropped));
  EXPECT_EQ(out_->stats().queued_bytes, 0u);
  for (const auto& message : there_->messages()) {
    EXPECT_EQ(message.payload, Pattern(128 << 10, std::stoi(message.head)));
  }
}

TEST_F(TcpEngineTest, AFullLaneSaysSo) {
  Start({.socket_buffer_bytes = 64 << 10, .max_queued_bytes = 8 << 20, .max_queued_messages = 100});
  Pair();
  there_->CloseGate();
  absl::Status status;
  int accepted = 0;
  while ((status = out_->Send(Message(Lane::kProactive, "x", Pattern(1 << 20, 1)))).ok()) {
    ASSERT_LT(++accepted, 50);
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_TRUE(out_->Send(Message(Lane::kMetadata, "other lane", {})).ok());
  there_->OpenGate();
  ASSERT_TRUE(there_->WaitForMessages(accepted + 1));
}

TEST_F(TcpEngineTest, SizesBeyondTheLimitsAreRefusedBySend) {
  Start();
  Pair();
  EXPECT_TRUE(absl::IsInvalidArgument(out_->Send(Message(Lane::kProactive, "", {}))));
  EXPECT_TRUE(absl::IsInvalidArgument(
      out_->Send(Message(Lane::kProactive, std::string(kMaxTransportHeadBytes + 1, 'x'), {}))));
  const std::vector<std::byte> piece(64 << 20);
  OutMessage large{.head = Bytes("x"), .on_done = done_.Callback()};
  for (int i = 0; i < 17; ++i) large.segments.push_back(piece);
  EXPECT_TRUE(absl::IsInvalidArgument(out_->Send(std::move(large))));
  EXPECT_EQ(done_.total(), 0);
}

TEST_F(TcpEngineTest, EveryMessageIsDoneOnceWhenTheChannelCloses) {
  Start({.socket_buffer_bytes = 64 << 10});
  Pair();
  there_->CloseGate();
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(out_->Send(Message(static_cast<Lane>(i % 4), "x", Pattern(10'000, i))).ok());
  }
  out_->Close(base::Aborted("enough"));
  EXPECT_TRUE(absl::IsUnavailable(out_->Send(Message(Lane::kProactive, "late", {}))));
  there_->OpenGate();
  ASSERT_TRUE(done_.WaitForTotal(1000));
  EXPECT_EQ(base::MessageOf(here_->WaitForClose().value()), "enough");
  EXPECT_TRUE(there_->WaitForClose().has_value());
  dialler_.reset();
  EXPECT_EQ(done_.total(), 1000);
  EXPECT_EQ(here_->closed_count(), 1);
}

TEST_F(TcpEngineTest, DestroyingTheEngineEndsEverything) {
  Start({.socket_buffer_bytes = 64 << 10});
  Pair();
  there_->CloseGate();
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(out_->Send(Message(Lane::kProactive, "x", Pattern(128 << 10, i))).ok());
  }
  std::future<Result> never = Expect(base::NewChannelKey());
  there_->OpenGate();
  dialler_.reset();
  listener_.reset();
  EXPECT_EQ(done_.total(), 100);
  EXPECT_EQ(here_->closed_count(), 1);
  EXPECT_EQ(there_->closed_count(), 1);
  EXPECT_FALSE(never.get().ok());
  EXPECT_TRUE(absl::IsUnavailable(out_->Send(Message(Lane::kProactive, "late", {}))));
}

TEST_F(TcpEngineTest, WhatWasSentBeforeAPeerClosedStillArrives) {
  Start();
  std::array<Fd, kNumLanes> lanes = RawPair();
  std::vector<std::byte> stream;
  const auto header = EncodeFrameHeader({.head_bytes = 1, .payload_bytes = 500'000});
  stream.insert(stream.end(), header.begin(), header.end());
  stream.push_back(std::byte{'x'});
  const auto payload = Pattern(500'000, 3);
  stream.insert(stream.end(), payload.begin(), payload.end());
  lanes[0].Reset();
  lanes[1].Reset();
  Write(lanes[3], stream);
  lanes[3].Reset();
  lanes[2].Reset();
  ASSERT_TRUE(there_->WaitForClose().has_value());
  ASSERT_EQ(there_->messages().size(), 1u);
  EXPECT_EQ(there_->messages()[0].payload, payload);
}

TEST_F(TcpEngineTest, AWrongKeyIsRefused) {
  Start();
  std::future<Result> expected = Expect(base::NewChannelKey());
  const Result out = dialler_->Connect("127.0.0.1", listener_->listen_port(), base::NewChannelKey(),
                                       here_, In(seconds(20)));
  EXPECT_TRUE(absl::IsUnavailable(out.status())) << out.status();
}

TEST_F(TcpEngineTest, AKeyIsGoodOnce) {
  Start();
  const base::ChannelKey key = base::NewChannelKey();
  std::future<Result> expected = Expect(key);
  const int port = listener_->listen_port();
  ASSERT_TRUE(dialler_->Connect("127.0.0.1", port, key, here_, In(seconds(20))).ok());
  ASSERT_TRUE(expected.get().ok());
  auto second = std::make_shared<RecordingReceiver>();
  EXPECT_FALSE(dialler_->Connect("127.0.0.1", port, key, second, In(seconds(20))).ok());
}

TEST_F(TcpEngineTest, ThreeOfFourLanesTimeOutAndAreClosed) {
  Start({}, "127.0.0.1:0", &clock_);
  const base::ChannelKey key = base::NewChannelKey();
  std::future<Result> expected = Expect(key, seconds(3));
  std::vector<Fd> lanes;
  for (int lane = 0; lane < 3; ++lane) lanes.push_back(RawLane(lane, key));
  // The lane is taken, so that the rightful ones have been seen when this is closed.
  EXPECT_TRUE(IsClosedByPeer(RawLane(2, key)));
  clock_.Advance(seconds(4));
  const Result result = expected.get();
  EXPECT_TRUE(absl::IsDeadlineExceeded(result.status())) << result.status();
  for (const Fd& fd : lanes) EXPECT_TRUE(IsClosedByPeer(fd));
}

TEST_F(TcpEngineTest, ASocketWithoutAKeyIsClosedAfterADeadline) {
  Start({.connect_timeout = seconds(5)}, "127.0.0.1:0", &clock_);
  const Fd silent = RawSocket();
  // The listener serves in order: when this is refused, the silent one has been accepted.
  const Fd wrong = RawLane(0, base::NewChannelKey());
  EXPECT_TRUE(IsClosedByPeer(wrong));
  clock_.Advance(seconds(6));
  EXPECT_TRUE(IsClosedByPeer(silent));
}

TEST_F(TcpEngineTest, SilentSocketsDoNotKeepAPeerOut) {
  Start({.connect_timeout = seconds(60)});
  std::vector<Fd> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(RawSocket());
  Pair();
  EXPECT_TRUE(IsClosedByPeer(silent[0]));
}

TEST_F(TcpEngineTest, AViolationOfTheProtocolClosesTheChannel) {
  Start();
  const std::array<Fd, kNumLanes> lanes = RawPair();
  Write(lanes[1], EncodeFrameHeader({.head_bytes = 5, .payload_bytes = kMaxPayloadBytes + 1}));
  EXPECT_TRUE(absl::IsInvalidArgument(there_->WaitForClose().value()));
  EXPECT_TRUE(IsClosedByPeer(lanes[0]));
}

TEST_F(TcpEngineTest, AMessageThatStallsHalfwayClosesTheChannel) {
  Start({.stall_timeout = seconds(30)}, "127.0.0.1:0", &clock_);
  const std::array<Fd, kNumLanes> lanes = RawPair();
  std::vector<std::byte> half;
  const auto header = EncodeFrameHeader({.head_bytes = 1, .payload_bytes = 100});
  half.insert(half.end(), header.begin(), header.end());
  half.resize(half.size() + 50);
  there_->CloseGate();
  Write(lanes[2], half);
  ASSERT_TRUE(there_->WaitAtGate());
  there_->OpenGate();
  clock_.Advance(seconds(31));
  // Time may have moved before the bytes were noted: once more.
  EXPECT_TRUE(IsClosedByPeer(lanes[2]) || (clock_.Advance(seconds(31)), IsClosedByPeer(lanes[2])));
  EXPECT_TRUE(absl::IsDeadlineExceeded(there_->WaitForClose().value()));
}

TEST_F(TcpEngineTest, APeerThatTakesNoBytesClosesTheChannel) {
  Start({.socket_buffer_bytes = 64 << 10, .stall_timeout = seconds(30)}, "127.0.0.1:0", &clock_);
  const std::array<Fd, kNumLanes> lanes = RawPair();
  ASSERT_TRUE(back_->Send(Message(Lane::kOnDemand, "x", std::vector<std::byte>(64 << 20))).ok());
  std::array<std::byte, 16> some;
  ASSERT_TRUE(ReadFully(lanes[0].get(), some, *base::Clock::Real(), In(seconds(20))).ok());
  // Bytes may still trickle into the kernel's buffers: time passes until none do.
  for (int i = 0; i < 100 && there_->closed_count() == 0; ++i) {
    clock_.Advance(seconds(31));
    poll(nullptr, 0, 30);
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(there_->WaitForClose().value()));
  EXPECT_EQ(done_.failed(), 1);
}

TEST_F(TcpEngineTest, WorksOverIPv6) {
  Start({}, "[::1]:0");
  Pair("::1");
  ASSERT_TRUE(out_->Send(Message(Lane::kProactive, "six", Pattern(10, 1))).ok());
  ASSERT_TRUE(there_->WaitForMessages(1));
}

TEST_F(TcpEngineTest, WorksWithHostNames) {
  Start();
  Pair("localhost");
  ASSERT_TRUE(out_->Send(Message(Lane::kProactive, "name", Pattern(10, 1))).ok());
  ASSERT_TRUE(there_->WaitForMessages(1));
}

TEST_F(TcpEngineTest, AnAddressThatIsTakenIsNamed) {
  Start();
  const std::string taken = "127.0.0.1:" + std::to_string(listener_->listen_port());
  const auto second = TcpEngine::Create({.listen = taken}, base::Clock::Real());
  ASSERT_TRUE(absl::IsUnavailable(second.status()));
  EXPECT_NE(base::MessageOf(second.status()).find(taken), std::string_view::npos);
  for (const char* bad : {"nonsense", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:http"}) {
    EXPECT_TRUE(
        absl::IsInvalidArgument(TcpEngine::Create({.listen = bad}, base::Clock::Real()).status()))
        << bad;
  }
}

TEST_F(TcpEngineTest, ConnectingToNobodyFails) {
  Start();
  const int port = listener_->listen_port();
  listener_.reset();
  const Result out =
      dialler_->Connect("127.0.0.1", port, base::NewChannelKey(), here_, In(seconds(5)));
  EXPECT_TRUE(absl::IsUnavailable(out.status())) << out.status();
}

TEST_F(TcpEngineTest, ManyThreadsSendAtOnce) {
  Start();
  Pair();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        OutMessage message = Message(static_cast<Lane>(t), std::to_string(i), Pattern(1000, i));
        message.tag = i;
        ASSERT_TRUE(out_->Send(std::move(message)).ok());
        if (i % 50 == 0) out_->CancelTag(i);
        out_->stats();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  ASSERT_TRUE(done_.WaitForTotal(2000));
  EXPECT_TRUE(there_->WaitForMessages(done_.ok()));
  EXPECT_EQ(done_.failed(), 0);
}

}  // namespace
}  // namespace smartgen::channel
