// Two engines in one process, paired over loopback.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <future>
#include <memory>
#include <string>

#include "common/channel/tcp/frame.h"
#include "common/channel/tcp/socket.h"
#include "common/channel/tcp/tcp_engine.h"
#include "tests/common/channel/recording_receiver.h"

namespace smartgen::channel {

inline base::Deadline In(base::Duration d) {
  return base::Deadline::After(*base::Clock::Real(), d);
}

class TcpFixture : public testing::Test {
 protected:
  using Result = absl::StatusOr<std::shared_ptr<Channel>>;

  void Start(TcpEngine::Options options = {}, std::string address = "127.0.0.1:0",
             const base::Clock* clock = base::Clock::Real()) {
    options.listen = address;
    auto listener = TcpEngine::Create(options, clock);
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
    options.listen.clear();
    auto dialler = TcpEngine::Create(options, clock);
    ASSERT_TRUE(dialler.ok()) << dialler.status();
    dialler_ = *std::move(dialler);
  }
  std::future<Result> Expect(const base::ChannelKey& key,
                             base::Duration timeout = std::chrono::seconds(20)) {
    auto promise = std::make_shared<std::promise<Result>>();
    listener_->Expect(key, there_, timeout,
                      [promise](Result result) { promise->set_value(std::move(result)); });
    return promise->get_future();
  }
  void Pair(const std::string& host = "127.0.0.1") {
    const base::ChannelKey key = base::NewChannelKey();
    std::future<Result> expected = Expect(key);
    Result out =
        dialler_->Connect(host, listener_->listen_port(), key, here_, In(std::chrono::seconds(20)));
    ASSERT_TRUE(out.ok()) << out.status();
    out_ = *std::move(out);
    Result back = expected.get();
    ASSERT_TRUE(back.ok()) << back.status();
    back_ = *std::move(back);
  }
  OutMessage Message(Lane lane, std::string_view head, std::vector<std::byte> payload,
                     size_t piece = 0) {
    return MakeMessage(lane, head, std::move(payload), piece, done_.Callback());
  }
  // Dials a lane by hand.
  Fd RawSocket() {
    auto addresses = Resolve("127.0.0.1", listener_->listen_port());
    auto fd = Dial(*addresses, 0, *base::Clock::Real(), In(std::chrono::seconds(20)));
    EXPECT_TRUE(fd.ok()) << fd.status();
    return *std::move(fd);
  }
  Fd RawLane(int lane, const base::ChannelKey& key) {
    Fd fd = RawSocket();
    Write(fd, EncodePreamble({.lane = static_cast<Lane>(lane), .key = key}));
    return fd;
  }
  // All four lanes, welcomed.
  std::array<Fd, kNumLanes> RawPair() {
    const base::ChannelKey key = base::NewChannelKey();
    std::future<Result> expected = Expect(key);
    std::array<Fd, kNumLanes> lanes;
    for (int lane = 0; lane < kNumLanes; ++lane) lanes[lane] = RawLane(lane, key);
    for (int lane = 0; lane < kNumLanes; ++lane) {
      std::array<std::byte, kWelcomeBytes> welcome;
      EXPECT_TRUE(
          ReadFully(lanes[lane].get(), welcome, *base::Clock::Real(), In(std::chrono::seconds(20)))
              .ok());
    }
    back_ = *expected.get();
    return lanes;
  }
  static void Write(const Fd& fd, std::span<const std::byte> bytes) {
    EXPECT_TRUE(
        WriteFully(fd.get(), bytes, *base::Clock::Real(), In(std::chrono::seconds(20))).ok());
  }
  // True if the other side closes the socket.
  static bool IsClosedByPeer(const Fd& fd) {
    std::array<std::byte, 1> byte;
    return absl::IsUnavailable(
        ReadFully(fd.get(), byte, *base::Clock::Real(), In(std::chrono::seconds(20))));
  }

  base::SimulatedClock clock_;  // outlives the engines
  DoneCounter done_;            // outlives the engines, which call it last
  std::shared_ptr<RecordingReceiver> here_ = std::make_shared<RecordingReceiver>();
  std::shared_ptr<RecordingReceiver> there_ = std::make_shared<RecordingReceiver>();
  std::unique_ptr<TcpEngine> listener_;
  std::unique_ptr<TcpEngine> dialler_;
  std::shared_ptr<Channel> out_;
  std::shared_ptr<Channel> back_;
};

}  // namespace smartgen::channel
