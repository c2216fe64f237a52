// A receiver for tests: keeps what comes and lets the test wait for it.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/channel/channel.h"

namespace smartgen::channel {

inline std::vector<std::byte> Bytes(std::string_view text) {
  const auto* at = reinterpret_cast<const std::byte*>(text.data());
  return {at, at + text.size()};
}

// Bytes that differ from message to message and from place to place.
inline std::vector<std::byte> Pattern(size_t size, uint64_t seed) {
  std::vector<std::byte> bytes(size);
  uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
  for (auto& byte : bytes) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    byte = static_cast<std::byte>(x);
  }
  return bytes;
}

class RecordingReceiver : public Receiver {
 public:
  struct Message {
    Lane lane;
    std::string head;
    std::vector<std::byte> payload;
  };

  // Messages with this head are refused.
  std::string refuse;
  // Payloads are placed into pieces of this size; 0: one piece.
  size_t piece = 0;

  absl::StatusOr<Placement> OnHead(Lane, std::span<const std::byte> head,
                                   uint64_t payload_bytes) override {
    {
      base::MutexLock lock(mutex_);
      at_gate_ = true;
      changed_.NotifyAll();
      const auto deadline = base::Deadline::After(*base::Clock::Real(), std::chrono::seconds(60));
      while (gate_closed_ && !deadline.Expired(*base::Clock::Real())) {
        changed_.WaitFor(mutex_, std::chrono::seconds(1));
      }
    }
    if (!refuse.empty() && Text(head) == refuse) return base::NotFound("not wanted");
    auto memory = std::make_shared<std::vector<std::byte>>(payload_bytes);
    Placement placement{.owner = memory};
    const size_t step = piece == 0 ? std::max<size_t>(payload_bytes, 1) : piece;
    for (size_t at = 0; at < payload_bytes; at += step) {
      placement.segments.push_back(
          std::span(*memory).subspan(at, std::min<size_t>(step, payload_bytes - at)));
    }
    return placement;
  }
  void OnPayload(Lane lane, std::span<const std::byte> head, Placement placement) override {
    Message message{.lane = lane, .head = Text(head)};
    for (const auto& segment : placement.segments) {
      message.payload.insert(message.payload.end(), segment.begin(), segment.end());
    }
    base::MutexLock lock(mutex_);
    messages_.push_back(std::move(message));
    changed_.NotifyAll();
  }
  void OnClosed(const absl::Status& reason) override {
    base::MutexLock lock(mutex_);
    ++closed_count_;
    closed_ = reason;
    changed_.NotifyAll();
  }

  // Holds the I/O thread in OnHead, so that the sender's queue fills.
  void CloseGate() {
    base::MutexLock lock(mutex_);
    gate_closed_ = true;
    at_gate_ = false;
  }
  void OpenGate() {
    base::MutexLock lock(mutex_);
    gate_closed_ = false;
    changed_.NotifyAll();
  }
  bool WaitAtGate() {
    return Wait([this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return at_gate_; });
  }
  bool WaitForMessages(size_t count) {
    return Wait([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return messages_.size() >= count; });
  }
  // The reason; nullopt if it does not come.
  std::optional<absl::Status> WaitForClose() {
    if (!Wait([this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return closed_count_ > 0; })) {
      return std::nullopt;
    }
    base::MutexLock lock(mutex_);
    return closed_;
  }
  std::vector<Message> messages() const {
    base::MutexLock lock(mutex_);
    return messages_;
  }
  int closed_count() const {
    base::MutexLock lock(mutex_);
    return closed_count_;
  }

 private:
  static std::string Text(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  template <typename Condition>
  bool Wait(Condition condition) {
    const auto deadline = base::Deadline::After(*base::Clock::Real(), std::chrono::seconds(60));
    base::MutexLock lock(mutex_);
    while (!condition()) {
      if (deadline.Expired(*base::Clock::Real())) return false;
      changed_.WaitFor(mutex_, std::chrono::milliseconds(100));
    }
    return true;
  }

  mutable base::Mutex mutex_;
  base::CondVar changed_;
  std::vector<Message> messages_ ABSL_GUARDED_BY(mutex_);
  bool gate_closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool at_gate_ ABSL_GUARDED_BY(mutex_) = false;
  int closed_count_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
};

// A message that owns its payload, in segments of `piece` bytes; 0: one segment.
inline OutMessage MakeMessage(Lane lane, std::string_view head, std::vector<std::byte> payload,
                              size_t piece, std::function<void(const absl::Status&)> on_done) {
  auto owner = std::make_shared<std::vector<std::byte>>(std::move(payload));
  OutMessage message{
      .lane = lane, .head = Bytes(head), .owner = owner, .on_done = std::move(on_done)};
  const size_t step = piece == 0 ? std::max<size_t>(owner->size(), 1) : piece;
  for (size_t at = 0; at < owner->size(); at += step) {
    message.segments.push_back(
        std::span<const std::byte>(*owner).subspan(at, std::min(step, owner->size() - at)));
  }
  return message;
}

// Counts on_done calls.
class DoneCounter {
 public:
  std::function<void(const absl::Status&)> Callback() {
    return [this](const absl::Status& status) {
      base::MutexLock lock(mutex_);
      ++(status.ok() ? ok_ : absl::IsCancelled(status) ? cancelled_ : failed_);
      changed_.NotifyAll();
    };
  }
  bool WaitForTotal(int64_t count) {
    const auto deadline = base::Deadline::After(*base::Clock::Real(), std::chrono::seconds(60));
    base::MutexLock lock(mutex_);
    while (ok_ + cancelled_ + failed_ < count) {
      if (deadline.Expired(*base::Clock::Real())) return false;
      changed_.WaitFor(mutex_, std::chrono::milliseconds(100));
    }
    return true;
  }
  int64_t ok() const { return Read(ok_); }
  int64_t cancelled() const { return Read(cancelled_); }
  int64_t failed() const { return Read(failed_); }
  int64_t total() const { return ok() + cancelled() + failed(); }

 private:
  int64_t Read(const int64_t& value) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
    base::MutexLock lock(mutex_);
    return value;
  }
  mutable base::Mutex mutex_;
  base::CondVar changed_;
  int64_t ok_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t cancelled_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t failed_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace smartgen::channel
