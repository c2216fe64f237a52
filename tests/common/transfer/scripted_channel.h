// A channel that the test works by hand: what was sent waits, in lanes, until the test hands it
// out.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/channel/channel.h"
#include "common/transfer/wire.h"

namespace smartgen::transfer {

class ScriptedChannel : public channel::Channel {
 public:
  struct Sent {
    channel::Lane lane = channel::Lane::kOnDemand;
    WireHead head;
    std::vector<std::byte> encoded;
    std::vector<std::byte> payload;
  };

  absl::Status Send(channel::OutMessage message) override {
    base::MutexLock lock(mutex_);
    if (!closed_.ok()) return base::Unavailable("closed");
    queued_bytes_ += Bytes(message);
    if (message.lane != channel::Lane::kOnDemand) {
      windowed_bytes_ += Bytes(message);
      most_windowed_bytes_ = std::max(most_windowed_bytes_, windowed_bytes_);
    }
    queues_[static_cast<size_t>(message.lane)].push_back(std::move(message));
    return absl::OkStatus();
  }
  int64_t CancelTag(uint64_t tag) override {
    std::vector<channel::OutMessage> dropped;
    {
      base::MutexLock lock(mutex_);
      for (auto& queue : queues_) {
        std::erase_if(queue, [&](channel::OutMessage& message) {
          if (message.tag != tag) return false;
          Forget(message);
          dropped.push_back(std::move(message));
          return true;
        });
      }
    }
    for (auto& message : dropped) message.on_done(base::Cancelled("dropped"));
    return static_cast<int64_t>(dropped.size());
  }
  void LimitInFlight(channel::Lane lane, uint64_t bytes) override {
    base::MutexLock lock(mutex_);
    limits_[static_cast<size_t>(lane)] = bytes;
  }
  channel::ChannelStats stats() const override {
    base::MutexLock lock(mutex_);
    return {.queued_bytes = static_cast<uint64_t>(queued_bytes_)};
  }
  channel::LinkInfo link_info() const override {
    base::MutexLock lock(mutex_);
    return link_;
  }
  void Close(const absl::Status& reason) override {
    base::MutexLock lock(mutex_);
    closed_ = reason;
  }
  std::string_view transport() const override { return "scripted"; }
  std::string peer() const override { return "the test"; }

  // Hands out the first message of the highest lane that has one. False: there is none.
  bool HandOutOne() {
    channel::OutMessage message;
    {
      base::MutexLock lock(mutex_);
      auto queue = std::find_if(queues_.begin(), queues_.end(),
                                [](const auto& lane) { return !lane.empty(); });
      if (queue == queues_.end()) return false;
      message = std::move(queue->front());
      queue->pop_front();
      Forget(message);
      Sent sent{
          .lane = message.lane, .head = *DecodeWireHead(message.head), .encoded = message.head};
      for (const auto& segment : message.segments) {
        sent.payload.insert(sent.payload.end(), segment.begin(), segment.end());
      }
      sent_.push_back(std::move(sent));
    }
    message.on_done(absl::OkStatus());
    return true;
  }
  void HandOutAll() {
    while (HandOutOne()) {
    }
  }
  // What was handed out since the last call.
  std::vector<Sent> TakeSent() {
    base::MutexLock lock(mutex_);
    return std::exchange(sent_, {});
  }
  int64_t most_windowed_bytes() const {
    base::MutexLock lock(mutex_);
    return most_windowed_bytes_;
  }
  size_t queued(channel::Lane lane) const {
    base::MutexLock lock(mutex_);
    return queues_[static_cast<size_t>(lane)].size();
  }
  uint64_t limit(channel::Lane lane) const {
    base::MutexLock lock(mutex_);
    return limits_[static_cast<size_t>(lane)];
  }
  void set_link(channel::LinkInfo link) {
    base::MutexLock lock(mutex_);
    link_ = link;
  }

 private:
  static int64_t Bytes(const channel::OutMessage& message) {
    int64_t bytes = 0;
    for (const auto& segment : message.segments) bytes += static_cast<int64_t>(segment.size());
    return bytes;
  }
  void Forget(const channel::OutMessage& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    queued_bytes_ -= Bytes(message);
    if (message.lane != channel::Lane::kOnDemand) windowed_bytes_ -= Bytes(message);
  }

  mutable base::Mutex mutex_;
  std::array<std::deque<channel::OutMessage>, channel::kNumLanes> queues_ ABSL_GUARDED_BY(mutex_);
  std::vector<Sent> sent_ ABSL_GUARDED_BY(mutex_);
  std::array<uint64_t, channel::kNumLanes> limits_ ABSL_GUARDED_BY(mutex_){};
  channel::LinkInfo link_ ABSL_GUARDED_BY(mutex_);
  int64_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t windowed_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t most_windowed_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace smartgen::transfer
