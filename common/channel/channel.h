// Moves messages between two peers in four priority lanes. Knows bytes, nothing of KV: a message is
// a small head (opaque to the channel) and a payload that is gathered from, and scattered to, the
// owners' memory without a copy of its own.
//
// Threads: Send, Close and stats may be called concurrently from any thread. Callbacks (on_done and
// the Receiver's) run on threads of the channel's own, one at a time, and must not block.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/status.h"

namespace smartgen::channel {

// In order of priority. Within a lane messages arrive in order; between lanes there is no order.
enum class Lane : uint8_t { kOnDemand = 0, kMetadata = 1, kProactive = 2, kSpeculative = 3 };
inline constexpr int kNumLanes = 4;
std::string_view LaneName(Lane lane);

inline constexpr uint32_t kMaxHeadBytes = 4096;
// What a channel that carries another one's messages may put before their heads.
inline constexpr uint32_t kMaxEnvelopeBytes = 32;
inline constexpr uint32_t kMaxTransportHeadBytes = kMaxHeadBytes + kMaxEnvelopeBytes;
inline constexpr uint64_t kMaxPayloadBytes = 1ull << 30;

struct OutMessage {
  Lane lane = Lane::kProactive;
  std::vector<std::byte> head;  // 1 to kMaxHeadBytes
  std::vector<std::span<const std::byte>> segments;
  // Keeps the segments' memory alive until on_done has returned.
  std::shared_ptr<const void> owner;
  // Called exactly once if Send returned OK: OK when the last byte was handed to the network, else
  // why it never will be. Not called if Send failed.
  std::function<void(const absl::Status&)> on_done;
  // Of any value; CancelTag drops messages of that tag that have not begun to go out.
  uint64_t tag = 0;
};

// Where a payload goes. `owner` pins the memory until OnPayload or OnClosed has returned.
struct Placement {
  std::vector<std::span<std::byte>> segments;  // sizes sum up to the payload's
  std::shared_ptr<void> owner;
};

class Receiver {
 public:
  virtual ~Receiver() = default;
  // A head has come; payload_bytes follow. An error refuses the payload: it is drained, counted,
  // and never touches memory.
  virtual absl::StatusOr<Placement> OnHead(Lane lane, std::span<const std::byte> head,
                                           uint64_t payload_bytes) = 0;
  // The payload of the head is complete in its place.
  virtual void OnPayload(Lane lane, std::span<const std::byte> head, Placement placement) = 0;
  // The channel is gone (peer closed, protocol violation, Close). Called exactly once; nothing
  // follows.
  virtual void OnClosed(const absl::Status& reason) = 0;
};

struct ChannelStats {
  std::array<uint64_t, kNumLanes> bytes_sent{};      // payload handed to the network
  std::array<uint64_t, kNumLanes> bytes_received{};  // payload placed
  std::array<uint64_t, kNumLanes> messages_sent{};
  std::array<uint64_t, kNumLanes> messages_received{};
  std::array<uint64_t, kNumLanes> segments_sent{};
  uint64_t refused_messages = 0;  // OnHead said no
  uint64_t refused_bytes = 0;
  uint64_t queued_bytes = 0;  // accepted by Send, not yet handed to the network
};

// What the transport has seen of the way to the peer. Zeros: it cannot tell.
struct LinkInfo {
  uint64_t acked_bytes = 0;  // of ours that the peer's system has acknowledged, all lanes together
  base::TimePoint at;        // when that was so
  double min_rtt_seconds = 0;
};

class Channel {
 public:
  virtual ~Channel() = default;
  // ResourceExhausted if the lane's queue is full (try again when something was done), Unavailable
  // with the reason after the channel closed, InvalidArgument for sizes beyond the limits.
  virtual absl::Status Send(OutMessage message) = 0;
  // Drops queued messages of `tag` that have not begun (their on_done gets Cancelled). Returns how
  // many.
  virtual int64_t CancelTag(uint64_t tag) = 0;
  // Of this lane at most so many bytes are on the way at any time: handed to the network and not
  // yet acknowledged by the peer's system (what waits in a queue of the path counts). 0: no limit.
  // Lanes below wait as well while a lane is at its limit. From now on; what is out already stays
  // out.
  virtual void LimitInFlight(Lane lane, uint64_t bytes) = 0;
  virtual ChannelStats stats() const = 0;
  // Up to a few milliseconds old while bytes are going out. Cheap.
  virtual LinkInfo link_info() const = 0;
  // Asynchronous; the Receiver gets OnClosed, queued messages their on_done with `reason`.
  virtual void Close(const absl::Status& reason) = 0;
  virtual std::string_view transport() const = 0;  // "tcp", "nccl"
  virtual std::string peer() const = 0;            // "10.0.0.3:7102"
};

}  // namespace smartgen::channel
