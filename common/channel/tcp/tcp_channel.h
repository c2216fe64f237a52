// One channel: kNumLanes sockets, their queues, and what the I/O thread does with them.
//
// States: open -> closing (Close was called, or the engine stops) -> closed (sockets gone, every
// on_done called, OnClosed called). Only the I/O thread makes it closed.
#pragma once

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/channel/channel.h"
#include "common/channel/tcp/frame.h"
#include "common/channel/tcp/socket.h"
#include "common/channel/tcp/waker.h"

namespace smartgen::channel {

// A message on its way out, and how far it is.
class Outgoing {
 public:
  explicit Outgoing(OutMessage message);

  OutMessage& message() { return message_; }
  uint64_t payload_bytes() const { return payload_bytes_; }
  bool begun() const { return part_ > 0 || offset_ > 0; }
  bool finished() const { return part_ == num_parts(); }
  // Adds what is left, up to `max_bytes`, to iov[*count...]; returns the bytes added.
  size_t Gather(std::span<iovec> iov, size_t* count, size_t max_bytes);
  // Up to `bytes` bytes of the rest have gone out: takes those off `bytes` and returns how many of
  // them were payload.
  uint64_t Advance(size_t* bytes);

 private:
  static constexpr size_t kHeadParts = 2;  // the frame's header, the message's head
  size_t num_parts() const { return kHeadParts + message_.segments.size(); }
  std::span<const std::byte> Part(size_t index) const;

  OutMessage message_;
  uint64_t payload_bytes_ = 0;
  std::array<std::byte, kFrameHeaderBytes> header_;
  size_t part_ = 0;
  size_t offset_ = 0;
};

class TcpChannel final : public Channel, public std::enable_shared_from_this<TcpChannel> {
 public:
  struct Options {
    uint64_t max_queued_bytes = 0;
    int max_queued_messages = 0;
    base::Duration stall_timeout{0};
    // Where refused payloads go; shared by all channels of the engine's thread.
    std::span<std::byte> scratch;
  };
  using Sockets = std::array<Fd, kNumLanes>;

  TcpChannel(Sockets sockets, std::shared_ptr<Receiver> receiver, Options options,
             std::shared_ptr<Waker> waker);
  ~TcpChannel() override;

  absl::Status Send(OutMessage message) override;
  int64_t CancelTag(uint64_t tag) override;
  void LimitInFlight(Lane lane, uint64_t bytes) override;
  ChannelStats stats() const override;
  LinkInfo link_info() const override;
  void Close(const absl::Status& reason) override;
  std::string_view transport() const override { return "tcp"; }
  std::string peer() const override { return peer_; }

  // The rest is for the I/O thread alone.

  int fd(int lane) const { return io_[lane].socket.get(); }
  // What epoll said of a lane's socket.
  void OnEvents(int lane, uint32_t events);
  // Reads and writes a bounded amount. True if there is more that can be done at once; an error
  // says why the channel must be shut down.
  absl::StatusOr<bool> Work(base::TimePoint now);
  // The last Work stopped at a lane's limit of bytes in flight. No event tells when the peer
  // acknowledges them: look again soon.
  bool throttled() const { return throttled_; }
  // Unavailable or DeadlineExceeded if the peer has stalled.
  absl::Status CheckTimeouts(base::TimePoint now);
  // True if CheckTimeouts could fail some time without any further event.
  bool MayTimeOut() const;
  // Ends everything: see the states above.
  void Shutdown(const absl::Status& reason);

  // For the engine's lists of channels with work, and with work soon.
  uint64_t id = 0;
  bool active = false;
  bool waiting = false;

 private:
  struct LaneQueue {
    std::deque<std::unique_ptr<Outgoing>> messages;
    size_t pinned = 0;  // so many at the front are used by the I/O thread right now
    uint64_t queued_bytes = 0;
  };
  using Messages = std::vector<std::unique_ptr<Outgoing>>;

  // Receives the frames of a lane.
  class LaneSink final : public FrameSink {
   public:
    void Init(TcpChannel* channel, Lane lane) {
      channel_ = channel;
      lane_ = lane;
    }
    absl::StatusOr<Placement> OnHead(std::span<const std::byte> head,
                                     uint64_t payload_bytes) override;
    void OnPayload(std::span<const std::byte> head, Placement placement) override;

   private:
    TcpChannel* channel_ = nullptr;
    Lane lane_ = Lane::kOnDemand;
    uint64_t payload_bytes_ = 0;
  };
  struct LaneIo {
    Fd socket;
    LaneSink sink;
    std::unique_ptr<FrameReader> reader;
    bool readable = false;
    bool writable = true;
    bool hung_up = false;  // the peer will send no more: read to the end whatever a read returns
    bool ended = false;    // the end has been read
  };

  absl::Status Read(int lane, base::TimePoint now);
  absl::Status ReadEnd(int lane, base::TimePoint now);
  // True if there is more to write and room for it.
  absl::StatusOr<bool> Write(base::TimePoint now);
  int HighestLaneWithWork() const;
  // How much the lane may write now: kWriteQuantum, or less by its limit. 0: nothing worth a write.
  size_t Room(int lane) const;
  absl::Status WriteLane(int lane, size_t max_bytes, base::TimePoint now);
  size_t GatherLane(int lane, size_t max_bytes, size_t* count);
  void SampleLink();
  void FinishWrite(int lane, size_t bytes, Messages* finished);
  absl::Status CloseRequested() const;
  void TakeCancelled(Messages* cancelled);
  static void CallDone(Messages& messages, const absl::Status& status);

  const Options options_;
  const std::shared_ptr<Waker> waker_;
  const std::string peer_;

  mutable base::Mutex mutex_;
  std::array<LaneQueue, kNumLanes> queues_ ABSL_GUARDED_BY(mutex_);
  Messages cancelled_ ABSL_GUARDED_BY(mutex_);  // their on_done is called on the I/O thread
  ChannelStats stats_ ABSL_GUARDED_BY(mutex_);
  absl::Status close_reason_ ABSL_GUARDED_BY(mutex_);  // not OK: closing or closed
  bool posted_ ABSL_GUARDED_BY(mutex_) = false;        // the I/O thread will look at the channel
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;
  LinkInfo link_info_ ABSL_GUARDED_BY(mutex_);
  std::array<std::atomic<uint64_t>, kNumLanes> in_flight_limit_{};

  // Of the I/O thread alone.
  std::shared_ptr<Receiver> receiver_;
  std::array<LaneIo, kNumLanes> io_;
  std::array<iovec, 1024> iov_;  // IOV_MAX
  bool sending_ = false;         // there was something to send when last looked
  bool throttled_ = false;
  base::TimePoint sampled_at_;
  base::TimePoint last_sent_;
  base::TimePoint last_received_;
  base::TimePoint first_end_;  // when the first lane ended
  int ended_lanes_ = 0;
};

}  // namespace smartgen::channel
