#include "common/transfer/probe.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "common/base/hash.h"

namespace smartgen::transfer {
namespace {

using channel::Lane;
using channel::OutMessage;
using channel::Placement;

enum class Kind : uint8_t { kPing = 1, kPong = 2, kSend = 3, kBytes = 4 };

constexpr size_t kHeadBytes = 9;
constexpr uint64_t kFirstRoundBytes = 1 << 20;
constexpr base::Duration kWait = std::chrono::milliseconds(100);

std::vector<std::byte> MakeHead(Kind kind, uint64_t number) {
  std::vector<std::byte> head(kHeadBytes);
  head[0] = static_cast<std::byte>(kind);
  for (size_t i = 0; i < 8; ++i) head[1 + i] = static_cast<std::byte>(number >> (8 * i));
  return head;
}

struct Head {
  Kind kind;
  uint64_t number;
};

absl::StatusOr<Head> ParseHead(std::span<const std::byte> bytes) {
  if (bytes.size() != kHeadBytes) {
    return base::InvalidArgument("probe: want a head of {} bytes, got {}", kHeadBytes,
                                 bytes.size());
  }
  Head head{static_cast<Kind>(bytes[0]), 0};
  for (size_t i = 0; i < 8; ++i) head.number |= static_cast<uint64_t>(bytes[1 + i]) << (8 * i);
  return head;
}

// Bytes that nothing on the way compresses. Never freed: messages may outlive their channel.
const std::vector<std::byte>& Noise() {
  static const auto* noise = [] {
    auto* bytes = new std::vector<std::byte>(kProbeMessageBytes);
    for (uint64_t at = 0; at + 8 <= bytes->size(); at += 8) {
      const uint64_t value = base::Hash64(std::as_bytes(std::span(&at, 1)));
      std::memcpy(bytes->data() + at, &value, 8);
    }
    return bytes;
  }();
  return *noise;
}

OutMessage SmallMessage(Kind kind, uint64_t number) {
  OutMessage message;
  message.lane = Lane::kOnDemand;
  message.head = MakeHead(kind, number);
  message.on_done = [](const absl::Status&) {};
  return message;
}

// The rate of the last four fifths: before, buckets and buffers fill.
double RateOf(std::span<const base::TimePoint> at, std::span<const uint64_t> bytes) {
  const size_t skipped = at.size() / 5;
  uint64_t counted = 0;
  for (size_t i = skipped + 1; i < bytes.size(); ++i) counted += bytes[i];
  const double seconds = base::ToSeconds(at.back() - at[skipped]);
  return seconds > 0 ? static_cast<double>(counted) / seconds : 0;
}

}  // namespace

void ProbeResponder::SetChannel(std::shared_ptr<channel::Channel> channel) {
  absl::Status reason;
  {
    base::MutexLock lock(mutex_);
    if (close_reason_.ok()) {
      channel_ = std::move(channel);
      return;
    }
    reason = close_reason_;
  }
  channel->Close(reason);
}

void ProbeResponder::Close(const absl::Status& reason) {
  std::shared_ptr<channel::Channel> channel;
  {
    base::MutexLock lock(mutex_);
    if (close_reason_.ok()) close_reason_ = reason;
    channel = channel_;
  }
  if (channel != nullptr) {
    channel->Close(reason);
  } else {
    closed_ = true;
  }
}

absl::StatusOr<Placement> ProbeResponder::OnHead(Lane, std::span<const std::byte> head,
                                                 uint64_t payload_bytes) {
  if (payload_bytes > 0) return base::InvalidArgument("probe: questions have no payload");
  RETURN_IF_ERROR(ParseHead(head).status());
  return Placement{};
}

void ProbeResponder::OnPayload(Lane, std::span<const std::byte> head, Placement) {
  if (const absl::Status status = Answer(head); !status.ok()) Close(status);
}

absl::Status ProbeResponder::Answer(std::span<const std::byte> bytes) {
  ASSIGN_OR_RETURN(const Head head, ParseHead(bytes));
  std::shared_ptr<channel::Channel> channel;
  {
    base::MutexLock lock(mutex_);
    if (channel_ == nullptr) return base::Internal("probe: a question came before its channel");
    channel = channel_;
    if (head.kind == Kind::kPing && --pings_left_ < 0) {
      return base::ResourceExhausted("probe: too many round trips");
    }
    if (head.kind == Kind::kSend) {
      if (head.number == 0 || head.number > bytes_left_) {
        return base::ResourceExhausted("probe: want 1 to {} bytes, asked for {}", bytes_left_,
                                       head.number);
      }
      bytes_left_ -= head.number;
    }
  }
  switch (head.kind) {
    case Kind::kPing:
      return channel->Send(SmallMessage(Kind::kPong, head.number));
    case Kind::kSend:
      return SendBytes(*channel, head.number);
    default:
      return base::InvalidArgument("probe: unknown question {}", static_cast<int>(head.kind));
  }
}

absl::Status ProbeResponder::SendBytes(channel::Channel& channel, uint64_t bytes) {
  while (bytes > 0) {
    const uint64_t size = std::min<uint64_t>(bytes, Noise().size());
    bytes -= size;
    OutMessage message;
    message.lane = Lane::kProactive;
    message.head = MakeHead(Kind::kBytes, bytes);
    message.segments.push_back(std::span(Noise()).first(size));
    message.on_done = [](const absl::Status&) {};
    RETURN_IF_ERROR(channel.Send(std::move(message)));
  }
  return absl::OkStatus();
}

void ProbeResponder::OnClosed(const absl::Status&) {
  std::shared_ptr<channel::Channel> channel;
  {
    base::MutexLock lock(mutex_);
    channel = std::move(channel_);
  }
  closed_ = true;
}

absl::StatusOr<Placement> ProbeClient::OnHead(Lane, std::span<const std::byte> head,
                                              uint64_t payload_bytes) {
  RETURN_IF_ERROR(ParseHead(head).status());
  if (payload_bytes > scratch_.size()) {
    return base::InvalidArgument("probe: want at most {} bytes a message, got {}", scratch_.size(),
                                 payload_bytes);
  }
  Placement placement;
  if (payload_bytes > 0) placement.segments.push_back(std::span(scratch_).first(payload_bytes));
  return placement;
}

void ProbeClient::OnPayload(Lane, std::span<const std::byte> bytes, Placement placement) {
  const auto head = ParseHead(bytes);
  if (!head.ok()) return;  // OnHead refused it
  const base::TimePoint now = options_.clock->Now();
  base::MutexLock lock(mutex_);
  if (head->kind == Kind::kPong) {
    pong_ = head->number;
    pong_at_ = now;
  } else if (head->kind == Kind::kBytes && !placement.segments.empty()) {
    arrivals_.push_back({now, placement.segments.front().size()});
    all_came_ = head->number == 0;
  }
  changed_.NotifyAll();
}

void ProbeClient::OnClosed(const absl::Status& reason) {
  base::MutexLock lock(mutex_);
  closed_ = reason.ok() ? base::Unavailable("the channel was closed") : reason;
  changed_.NotifyAll();
}

absl::StatusOr<double> ProbeClient::RoundTrip(channel::Channel& channel, uint64_t number,
                                              base::Deadline deadline) {
  const base::TimePoint start = options_.clock->Now();
  RETURN_IF_ERROR(channel.Send(SmallMessage(Kind::kPing, number)));
  base::MutexLock lock(mutex_);
  while (pong_ != number) {
    if (!closed_.ok()) return closed_;
    if (deadline.Expired(*options_.clock)) return base::DeadlineExceeded("no answer to a ping");
    changed_.WaitFor(mutex_, kWait);
  }
  return base::ToSeconds(pong_at_ - start);
}

absl::StatusOr<std::vector<ProbeClient::Arrival>> ProbeClient::Round(channel::Channel& channel,
                                                                     uint64_t bytes,
                                                                     base::Deadline deadline) {
  {
    base::MutexLock lock(mutex_);
    arrivals_.clear();
    all_came_ = false;
  }
  RETURN_IF_ERROR(channel.Send(SmallMessage(Kind::kSend, bytes)));
  base::MutexLock lock(mutex_);
  while (!all_came_) {
    if (!closed_.ok()) return closed_;
    if (deadline.Expired(*options_.clock)) {
      return base::DeadlineExceeded("{} bytes did not come in time", bytes);
    }
    changed_.WaitFor(mutex_, kWait);
  }
  return arrivals_;
}

absl::StatusOr<ProbeResult> ProbeClient::Run(channel::Channel& channel, base::Deadline deadline) {
  std::vector<double> trips;
  for (int i = 0; i <= options_.round_trips; ++i) {
    ASSIGN_OR_RETURN(const double seconds, RoundTrip(channel, static_cast<uint64_t>(i), deadline));
    if (i > 0) trips.push_back(seconds);  // the first finds cold paths
  }
  ProbeResult result;
  std::nth_element(trips.begin(), trips.begin() + static_cast<ptrdiff_t>(trips.size() / 2),
                   trips.end());
  result.round_trip_seconds = trips[trips.size() / 2];

  uint64_t bytes = kFirstRoundBytes;
  // At least two rounds: the first empties a shaper's bucket.
  for (int round = 0; result.bytes < options_.max_bytes; ++round) {
    bytes = std::min(bytes, options_.max_bytes - result.bytes);
    ASSIGN_OR_RETURN(const std::vector<Arrival> arrivals, Round(channel, bytes, deadline));
    std::vector<base::TimePoint> at;
    std::vector<uint64_t> sizes;
    for (const Arrival& arrival : arrivals) {
      at.push_back(arrival.at);
      sizes.push_back(arrival.bytes);
      result.bytes += arrival.bytes;
    }
    const double rate = RateOf(at, sizes);
    if (rate > 0) result.bytes_per_second = rate;
    if (round > 0 && at.back() - at.front() >= options_.bulk_time) break;
    // Towards a round that lasts long enough, at most sixteen times this one.
    const double wanted = rate * base::ToSeconds(options_.bulk_time) * 1.3;
    bytes = std::clamp(static_cast<uint64_t>(wanted), bytes, bytes * 16);
  }
  if (result.bytes_per_second <= 0) {
    return base::InvalidArgument("probe: {} bytes came at once: no rate", result.bytes);
  }
  return result;
}

}  // namespace smartgen::transfer
