#include "common/channel/tcp/tcp_channel.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/channel/tcp/tcp_info.h"

namespace smartgen::channel {
namespace {

// What is written before the lanes above are looked at again.
constexpr size_t kWriteQuantum = 256 << 10;
// A lane at its limit of bytes in flight writes again when this part of the limit is free: full
// segments, and few system calls.
constexpr uint64_t kLimitPart = 8;
// The system's view of the link is asked for no more often: a sample costs a system call a lane.
constexpr base::Duration kSampleInterval = std::chrono::milliseconds(1);
// What is read from a lane before the other lanes get their turn.
constexpr size_t kReadQuantum = 512 << 10;
// Writes of a channel before the other channels get their turn.
constexpr int kWritesPerTurn = 4;
// When a lane of the peer has ended, the others may take so long to end as well.
constexpr base::Duration kEndGrace = std::chrono::seconds(1);

}  // namespace

Outgoing::Outgoing(OutMessage message) : message_(std::move(message)) {
  std::erase_if(message_.segments, [](const auto& segment) { return segment.empty(); });
  for (const auto& segment : message_.segments) payload_bytes_ += segment.size();
  header_ = EncodeFrameHeader(
      {.head_bytes = static_cast<uint32_t>(message_.head.size()), .payload_bytes = payload_bytes_});
}

std::span<const std::byte> Outgoing::Part(size_t index) const {
  if (index == 0) return header_;
  if (index == 1) return message_.head;
  return message_.segments[index - kHeadParts];
}

size_t Outgoing::Gather(std::span<iovec> iov, size_t* count, size_t max_bytes) {
  size_t bytes = 0;
  size_t offset = offset_;
  for (size_t p = part_; p < num_parts() && bytes < max_bytes && *count < iov.size(); ++p) {
    const auto rest = Part(p).subspan(offset);
    const size_t take = std::min(rest.size(), max_bytes - bytes);
    iov[(*count)++] = {const_cast<std::byte*>(rest.data()), take};
    bytes += take;
    offset = 0;
  }
  return bytes;
}

uint64_t Outgoing::Advance(size_t* bytes) {
  uint64_t payload = 0;
  while (*bytes > 0 && !finished()) {
    const size_t take = std::min(*bytes, Part(part_).size() - offset_);
    if (part_ >= kHeadParts) payload += take;
    *bytes -= take;
    offset_ += take;
    if (offset_ == Part(part_).size()) {
      ++part_;
      offset_ = 0;
    }
  }
  return payload;
}

absl::StatusOr<Placement> TcpChannel::LaneSink::OnHead(std::span<const std::byte> head,
                                                       uint64_t payload_bytes) {
  payload_bytes_ = payload_bytes;
  auto placement = channel_->receiver_->OnHead(lane_, head, payload_bytes);
  if (!placement.ok()) {
    base::MutexLock lock(channel_->mutex_);
    ++channel_->stats_.refused_messages;
    channel_->stats_.refused_bytes += payload_bytes;
  }
  return placement;
}

void TcpChannel::LaneSink::OnPayload(std::span<const std::byte> head, Placement placement) {
  {
    base::MutexLock lock(channel_->mutex_);
    ++channel_->stats_.messages_received[static_cast<int>(lane_)];
    channel_->stats_.bytes_received[static_cast<int>(lane_)] += payload_bytes_;
  }
  channel_->receiver_->OnPayload(lane_, head, std::move(placement));
}

TcpChannel::TcpChannel(Sockets sockets, std::shared_ptr<Receiver> receiver, Options options,
                       std::shared_ptr<Waker> waker)
    : options_(options),
      waker_(std::move(waker)),
      peer_(PeerName(sockets[0].get())),
      receiver_(std::move(receiver)) {
  for (int lane = 0; lane < kNumLanes; ++lane) {
    io_[lane].socket = std::move(sockets[lane]);
    io_[lane].sink.Init(this, static_cast<Lane>(lane));
    io_[lane].reader = std::make_unique<FrameReader>(&io_[lane].sink, options_.scratch);
  }
}

TcpChannel::~TcpChannel() = default;

absl::Status TcpChannel::Send(OutMessage message) {
  const int lane = static_cast<int>(message.lane);
  if (lane >= kNumLanes) return base::InvalidArgument("lane {}: want below {}", lane, kNumLanes);
  if (message.head.empty() || message.head.size() > kMaxTransportHeadBytes) {
    return base::InvalidArgument("head of {} bytes: want 1 to {}", message.head.size(),
                                 kMaxTransportHeadBytes);
  }
  uint64_t bytes = 0;
  for (const auto& segment : message.segments) {
    if (segment.size() > kMaxPayloadBytes - bytes) {
      return base::InvalidArgument("payload of more than {} bytes", kMaxPayloadBytes);
    }
    bytes += segment.size();
  }
  {
    base::MutexLock lock(mutex_);
    if (!close_reason_.ok()) {
      return base::Unavailable("the channel to {} is closed: {}", peer_,
                               base::MessageOf(close_reason_));
    }
    LaneQueue& queue = queues_[lane];
    if (queue.messages.size() >= static_cast<size_t>(options_.max_queued_messages) ||
        (!queue.messages.empty() && queue.queued_bytes + bytes > options_.max_queued_bytes)) {
      return base::ResourceExhausted("lane {}: {} messages with {} bytes are queued",
                                     LaneName(message.lane), queue.messages.size(),
                                     queue.queued_bytes);
    }
    queue.messages.push_back(std::make_unique<Outgoing>(std::move(message)));
    queue.queued_bytes += bytes;
    stats_.queued_bytes += bytes;
    if (std::exchange(posted_, true)) return absl::OkStatus();
  }
  waker_->PostChannel(shared_from_this());
  return absl::OkStatus();
}

int64_t TcpChannel::CancelTag(uint64_t tag) {
  int64_t dropped = 0;
  {
    base::MutexLock lock(mutex_);
    for (LaneQueue& queue : queues_) {
      const auto from = queue.messages.begin() + static_cast<ptrdiff_t>(queue.pinned);
      const auto kept = std::stable_partition(
          from, queue.messages.end(), [&](const auto& m) { return m->message().tag != tag; });
      for (auto it = kept; it != queue.messages.end(); ++it) {
        queue.queued_bytes -= (*it)->payload_bytes();
        stats_.queued_bytes -= (*it)->payload_bytes();
        cancelled_.push_back(std::move(*it));
        ++dropped;
      }
      queue.messages.erase(kept, queue.messages.end());
    }
    if (dropped == 0 || std::exchange(posted_, true)) return dropped;
  }
  waker_->PostChannel(shared_from_this());
  return dropped;
}

void TcpChannel::LimitInFlight(Lane lane, uint64_t bytes) {
  in_flight_limit_[static_cast<size_t>(lane)].store(bytes, std::memory_order_relaxed);
}

LinkInfo TcpChannel::link_info() const {
  base::MutexLock lock(mutex_);
  return link_info_;
}

ChannelStats TcpChannel::stats() const {
  base::MutexLock lock(mutex_);
  return stats_;
}

void TcpChannel::Close(const absl::Status& reason) {
  {
    base::MutexLock lock(mutex_);
    if (!close_reason_.ok()) return;
    close_reason_ = reason.ok() ? base::Unavailable("closed") : reason;
    if (std::exchange(posted_, true)) return;
  }
  waker_->PostChannel(shared_from_this());
}

void TcpChannel::OnEvents(int lane, uint32_t events) {
  LaneIo& io = io_[lane];
  // An error is told by the next read.
  if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) io.readable = true;
  if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) io.hung_up = true;
  if (events & EPOLLOUT) io.writable = true;
}

absl::Status TcpChannel::CloseRequested() const {
  base::MutexLock lock(mutex_);
  return close_reason_;
}

void TcpChannel::TakeCancelled(Messages* cancelled) {
  base::MutexLock lock(mutex_);
  posted_ = false;
  cancelled->swap(cancelled_);
}

void TcpChannel::CallDone(Messages& messages, const absl::Status& status) {
  for (auto& outgoing : messages) {
    if (outgoing->message().on_done) outgoing->message().on_done(status);
    outgoing.reset();  // lets go of the owner
  }
  messages.clear();
}

absl::StatusOr<bool> TcpChannel::Work(base::TimePoint now) {
  Messages cancelled;
  TakeCancelled(&cancelled);
  CallDone(cancelled, base::Cancelled("dropped before it was sent"));
  RETURN_IF_ERROR(CloseRequested());
  bool more = false;
  for (int lane = 0; lane < kNumLanes; ++lane) {
    if (!io_[lane].readable) continue;
    RETURN_IF_ERROR(Read(lane, now));
    more |= io_[lane].readable;
  }
  ASSIGN_OR_RETURN(const bool more_to_write, Write(now));
  return more || more_to_write;
}

absl::Status TcpChannel::Read(int lane, base::TimePoint now) {
  LaneIo& io = io_[lane];
  const size_t count = io.reader->Want(iov_, kReadQuantum);
  size_t wanted = 0;
  for (size_t i = 0; i < count; ++i) wanted += iov_[i].iov_len;
  const ssize_t n = readv(io.socket.get(), iov_.data(), static_cast<int>(count));
  if (n == 0) return ReadEnd(lane, now);
  if (n < 0) {
    if (errno == EINTR) return absl::OkStatus();
    if (errno == EAGAIN) {
      io.readable = false;
      return absl::OkStatus();
    }
    return base::Unavailable("reading from {}, lane {}: {}", peer_,
                             LaneName(static_cast<Lane>(lane)), ErrnoText(errno));
  }
  last_received_ = now;
  // A short read has emptied the socket, so that a new edge comes with new bytes; after a hang-up
  // none would, and reading goes on to the end.
  if (static_cast<size_t>(n) < wanted && !io.hung_up) io.readable = false;
  return base::Annotate(
      io.reader->Advance(static_cast<size_t>(n)),
      fmt::format("protocol violation by {}, lane {}", peer_, LaneName(static_cast<Lane>(lane))));
}

absl::Status TcpChannel::ReadEnd(int lane, base::TimePoint now) {
  LaneIo& io = io_[lane];
  io.readable = false;
  if (io.ended) return absl::OkStatus();
  io.ended = true;
  if (ended_lanes_++ == 0) first_end_ = now;
  // What stands in the other lanes was sent before the peer closed and is still to be had.
  if (io.reader->AtBoundary() && ended_lanes_ < kNumLanes) return absl::OkStatus();
  return base::Unavailable("{} closed the connection", peer_);
}

int TcpChannel::HighestLaneWithWork() const {
  base::MutexLock lock(mutex_);
  for (int lane = 0; lane < kNumLanes; ++lane) {
    if (!queues_[lane].messages.empty()) return lane;
  }
  return kNumLanes;
}

size_t TcpChannel::Room(int lane) const {
  const uint64_t limit = in_flight_limit_[lane].load(std::memory_order_relaxed);
  if (limit == 0) return kWriteQuantum;
  const uint64_t unacknowledged = UnacknowledgedBytes(io_[lane].socket.get());
  if (unacknowledged >= limit) return 0;
  const uint64_t room = limit - unacknowledged;
  return room * kLimitPart < limit ? 0 : std::min<uint64_t>(room, kWriteQuantum);
}

void TcpChannel::SampleLink() {
  // Not the engine's clock, which may be a simulated one: this is about a real network.
  const base::TimePoint now = base::Clock::Real()->Now();
  if (now - sampled_at_ < kSampleInterval) return;
  sampled_at_ = now;
  LinkInfo info{.at = now};
  for (const LaneIo& io : io_) {
    const TcpInfo tcp = QueryTcpInfo(io.socket.get());
    info.acked_bytes += tcp.acked_bytes;
    if (tcp.min_rtt_seconds > 0 &&
        (info.min_rtt_seconds == 0 || tcp.min_rtt_seconds < info.min_rtt_seconds)) {
      info.min_rtt_seconds = tcp.min_rtt_seconds;
    }
  }
  base::MutexLock lock(mutex_);
  link_info_ = info;
}

absl::StatusOr<bool> TcpChannel::Write(base::TimePoint now) {
  throttled_ = false;
  for (int turn = 0;; ++turn) {
    const int lane = HighestLaneWithWork();
    if (lane == kNumLanes) {
      sending_ = false;
      return false;
    }
    if (!std::exchange(sending_, true)) last_sent_ = now;
    // Lanes below wait, even for a lane that has no room just now.
    if (!io_[lane].writable) return false;
    if (turn == kWritesPerTurn) return true;
    SampleLink();
    const size_t room = Room(lane);
    if (room == 0) {
      throttled_ = true;
      return false;
    }
    RETURN_IF_ERROR(WriteLane(lane, room, now));
  }
}

size_t TcpChannel::GatherLane(int lane, size_t max_bytes, size_t* count) {
  base::MutexLock lock(mutex_);
  LaneQueue& queue = queues_[lane];
  size_t bytes = 0;
  queue.pinned = 0;
  for (auto& outgoing : queue.messages) {
    if (bytes >= max_bytes || *count == iov_.size()) break;
    bytes += outgoing->Gather(iov_, count, max_bytes - bytes);
    ++queue.pinned;
  }
  return bytes;
}

void TcpChannel::FinishWrite(int lane, size_t bytes, Messages* finished) {
  base::MutexLock lock(mutex_);
  LaneQueue& queue = queues_[lane];
  while (bytes > 0) {
    Outgoing& front = *queue.messages.front();
    const uint64_t payload = front.Advance(&bytes);
    queue.queued_bytes -= payload;
    stats_.queued_bytes -= payload;
    stats_.bytes_sent[lane] += payload;
    if (!front.finished()) break;
    ++stats_.messages_sent[lane];
    stats_.segments_sent[lane] += front.message().segments.size();
    finished->push_back(std::move(queue.messages.front()));
    queue.messages.pop_front();
  }
  queue.pinned = !queue.messages.empty() && queue.messages.front()->begun() ? 1 : 0;
}

absl::Status TcpChannel::WriteLane(int lane, size_t max_bytes, base::TimePoint now) {
  LaneIo& io = io_[lane];
  size_t count = 0;
  GatherLane(lane, max_bytes, &count);
  msghdr header{};
  header.msg_iov = iov_.data();
  header.msg_iovlen = count;
  const ssize_t n = sendmsg(io.socket.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  const int error = n < 0 ? errno : 0;
  Messages finished;
  FinishWrite(lane, n > 0 ? static_cast<size_t>(n) : 0, &finished);
  if (n > 0) last_sent_ = now;
  CallDone(finished, absl::OkStatus());
  if (error == 0 || error == EINTR) return absl::OkStatus();
  if (error == EAGAIN) {
    io.writable = false;
    return absl::OkStatus();
  }
  return base::Unavailable("writing to {}, lane {}: {}", peer_, LaneName(static_cast<Lane>(lane)),
                           ErrnoText(error));
}

bool TcpChannel::MayTimeOut() const {
  if (sending_ || ended_lanes_ > 0) return true;
  return std::any_of(io_.begin(), io_.end(), [](const LaneIo& io) {
    return io.reader != nullptr && !io.reader->AtBoundary();
  });
}

absl::Status TcpChannel::CheckTimeouts(base::TimePoint now) {
  if (ended_lanes_ > 0 && now - first_end_ >= kEndGrace) {
    return base::Unavailable("{} closed the connection", peer_);
  }
  const double seconds = base::ToSeconds(options_.stall_timeout);
  if (sending_ && now - last_sent_ >= options_.stall_timeout) {
    return base::DeadlineExceeded("{} has taken no bytes for {} s", peer_, seconds);
  }
  const bool within = std::any_of(io_.begin(), io_.end(),
                                  [](const LaneIo& io) { return !io.reader->AtBoundary(); });
  // Counted over all lanes: a sender leaves a payload alone while a lane above is busy.
  if (within && now - last_received_ >= options_.stall_timeout) {
    return base::DeadlineExceeded("{} has sent no bytes of a begun message for {} s", peer_,
                                  seconds);
  }
  return absl::OkStatus();
}

void TcpChannel::Shutdown(const absl::Status& reason) {
  Messages dropped;
  absl::Status final_reason;
  {
    base::MutexLock lock(mutex_);
    if (std::exchange(shut_down_, true)) return;
    if (close_reason_.ok()) close_reason_ = reason;
    final_reason = close_reason_;
    dropped.swap(cancelled_);
  }
  CallDone(dropped, base::Cancelled("dropped before it was sent"));
  {
    base::MutexLock lock(mutex_);
    for (LaneQueue& queue : queues_) {
      for (auto& outgoing : queue.messages) dropped.push_back(std::move(outgoing));
      queue.messages.clear();
      queue.pinned = 0;
      queue.queued_bytes = 0;
    }
    stats_.queued_bytes = 0;
    // CancelTag in an on_done before this may have moved some here.
    for (auto& outgoing : cancelled_) dropped.push_back(std::move(outgoing));
    cancelled_.clear();
  }
  for (LaneIo& io : io_) io.socket.Reset();
  CallDone(dropped, final_reason);
  const std::shared_ptr<Receiver> receiver = std::move(receiver_);
  receiver->OnClosed(final_reason);
  for (LaneIo& io : io_) io.reader.reset();  // lets go of placements under way
}

}  // namespace smartgen::channel
