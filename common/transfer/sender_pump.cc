#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "common/base/hash.h"
#include "common/transfer/sender_impl.h"

namespace smartgen::transfer {
namespace {

using channel::Lane;

// Messages that the window is cut into: with two, one is filled while the other drains.
constexpr int64_t kWindowParts = 2;
// The channel's limits follow the estimate in steps of this part.
constexpr int64_t kLimitStep = 8;
// What a link carries beside the payloads that are counted (heads, acknowledgements) and the grain
// of what stands in a path's queues: two full segments.
constexpr int64_t kReplyMarginBytes = 3000;
// How long after its time an answer is still waited for. Nothing wakes the sender then: it goes on
// with what happens next.
constexpr base::Duration kReplyGrace = std::chrono::milliseconds(100);
constexpr Lane kWindowedLanes[] = {Lane::kMetadata, Lane::kProactive, Lane::kSpeculative};

bool Windowed(Lane lane) { return lane != Lane::kOnDemand; }

// Adds the range's bytes to `segments`, in the order of the wire.
void AddSegments(kv::KvSequence& sequence, int layer, const WireRange& range,
                 std::vector<std::span<const std::byte>>* segments) {
  const auto add = [&](const std::vector<std::span<std::byte>>& parts) {
    segments->insert(segments->end(), parts.begin(), parts.end());
  };
  if (range.head_count == 0) return add(sequence.Segments(layer, range.begin, range.end()));
  for (int head = range.first_head; head < range.first_head + range.head_count; ++head) {
    add(sequence.Segments(layer, head, range.begin, range.end()));
  }
}

}  // namespace

void TransferSender::Impl::UpdateRunnable(Transfer& transfer) {
  bool runnable = false;
  if (transfer.sequence != nullptr && transfer.failure.ok()) {
    const int64_t next = transfer.state.NextBytes();
    const bool free = !transfer.credits || !transfer.state.prompt_done();
    runnable = next > 0 && (free || transfer.credit >= next);
  }
  if (runnable == transfer.runnable) return;
  transfer.runnable = runnable;
  // No claim grows while there is nothing to send.
  if (runnable) transfer.virtual_time = std::max(transfer.virtual_time, virtual_time_);
  const RunnableKey key{transfer.virtual_time, transfer.tag, &transfer};
  if (runnable) {
    runnable_.insert(key);
  } else {
    runnable_.erase(key);
  }
}

bool TransferSender::Impl::Fits(int64_t bytes) const {
  return windowed_bytes_ == 0 || windowed_bytes_ + bytes <= window_.bytes();
}

bool TransferSender::Impl::WouldDelayReply(int64_t bytes) const {
  if (expected_.empty()) return false;
  const base::TimePoint now = options_.clock->Now();
  const std::optional<base::TimePoint> through = window_.ThroughAt(bytes + kReplyMarginBytes, now);
  if (!through.has_value()) return false;
  return std::any_of(expected_.begin(), expected_.end(), [&](const auto& expected) {
    return *through > expected.second && now < expected.second + kReplyGrace;
  });
}

void TransferSender::Impl::OnWindowed(int64_t bytes) {
  if (windowed_bytes_ == 0) window_.OnBusy(options_.clock->Now());
  windowed_bytes_ += bytes;
}

void TransferSender::Impl::GatherBackground() {
  if (runnable_.empty()) return;
  const int64_t quantum =
      std::max<int64_t>(1, std::min(window_.bytes() / kWindowParts, options_.max_message_bytes));
  if (!Fits(quantum)) return;
  Transfer& next = *std::get<Transfer*>(*runnable_.begin());
  const auto transfer = transfers_.at(next.id);
  const bool done = next.state.prompt_done();
  int64_t budget = quantum;
  if (next.credits && done) budget = std::min(budget, next.credit);
  // A single token may be more than the quantum.
  const int64_t least = std::max(budget, next.state.NextBytes());
  if (!Fits(least) || WouldDelayReply(least)) return;
  const Path path = next.full                   ? Path::kFull
                    : done && next.deliver_rest ? Path::kSpeculative
                                                : Path::kProactive;
  const Lane lane = path == Path::kSpeculative ? Lane::kSpeculative : Lane::kProactive;
  runnable_.erase(runnable_.begin());
  next.runnable = false;
  virtual_time_ = next.virtual_time;
  for (Take& take : next.state.TakeNext(budget)) {
    next.virtual_time += static_cast<uint64_t>(take.bytes);
    if (next.credits && done) next.credit -= take.bytes;
    OnWindowed(take.bytes);
    Queue({.transfer = transfer, .lane = lane, .path = path, .take = std::move(take)});
  }
  UpdateRunnable(next);
}

void TransferSender::Impl::OnPosted(size_t lane, int count) {
  posted_[lane] += count;
  const bool was_busy = under_way_ > 0;
  under_way_ += count;
  if (was_busy == (under_way_ > 0)) return;
  const base::TimePoint now = options_.clock->Now();
  if (was_busy) busy_seconds_ += base::ToSeconds(now - busy_since_);
  busy_since_ = now;
}

TransferSender::Impl::ItemPtr TransferSender::Impl::TakeFrom(Lane lane) {
  const auto index = static_cast<size_t>(lane);
  if (full_[index] || backlog_[index].empty()) return nullptr;
  ItemPtr item = std::move(backlog_[index].front());
  backlog_[index].pop_front();
  OnPosted(index, 1);
  return item;
}

TransferSender::Impl::ItemPtr TransferSender::Impl::Next(bool background) {
  if (ItemPtr item = TakeFrom(Lane::kOnDemand)) return item;
  if (!background) return nullptr;
  const auto& metadata = backlog_[static_cast<size_t>(Lane::kMetadata)];
  const bool gathered = !backlog_[static_cast<size_t>(Lane::kProactive)].empty() ||
                        !backlog_[static_cast<size_t>(Lane::kSpeculative)].empty();
  if (!metadata.empty() && !full_[static_cast<size_t>(Lane::kMetadata)]) {
    const int64_t bytes = metadata.front()->payload_bytes();
    if (Fits(bytes) && !WouldDelayReply(bytes)) {
      OnWindowed(bytes);
      return TakeFrom(Lane::kMetadata);
    }
    // What is less important does not take the room that it waits for. What was gathered before has
    // that room, and goes, or the metadata would wait for ever.
  } else if (!gathered) {
    GatherBackground();
  }
  if (ItemPtr item = TakeFrom(Lane::kProactive)) return item;
  return TakeFrom(Lane::kSpeculative);
}

void TransferSender::Impl::Pump(bool by_channel) {
  {
    base::MutexLock lock(mutex_);
    if (std::exchange(pumping_, true)) return;
  }
  // A caller's thread (one that computes, perhaps) is not kept for as long as the link has room: it
  // fills the window once, and what is done then brings the channel's thread here.
  int64_t allowed = std::numeric_limits<int64_t>::max();
  for (bool first = true;; first = false) {
    LimitLanes();
    ItemPtr item;
    std::shared_ptr<kv::KvSequence> sequence;
    uint64_t number = 0;
    {
      base::MutexLock lock(mutex_);
      if (first && !by_channel) allowed = window_.bytes();
      int64_t posted = 0;
      for (const Lane lane : kWindowedLanes) posted += posted_[static_cast<size_t>(lane)];
      item = Next(allowed > 0 || posted == 0);
      if (item == nullptr) {
        pumping_ = false;
        return;
      }
      if (Windowed(item->lane)) allowed -= item->payload_bytes();
      sequence = item->transfer->sequence;
      number = item->transfer->next_sequence++;
    }
    Post(item, std::move(sequence), number);
  }
}

void TransferSender::Impl::LimitLanes() {
  int64_t limit = 0;
  {
    base::MutexLock lock(mutex_);
    limit = window_.in_flight_bytes();
    if (std::abs(limit - lane_limit_) * kLimitStep <= lane_limit_) return;
    lane_limit_ = limit;
  }
  const UseChannel channel(this);
  if (!channel) return;
  for (const Lane lane : kWindowedLanes) {
    channel->LimitInFlight(lane, static_cast<uint64_t>(limit));
  }
}

channel::OutMessage TransferSender::Impl::MakeMessage(const Item& item,
                                                      std::shared_ptr<kv::KvSequence> sequence,
                                                      uint64_t number) const {
  channel::OutMessage message;
  message.lane = item.lane;
  message.tag = item.transfer->tag;
  if (item.bytes != nullptr) {
    message.segments.push_back(*item.bytes);
    message.owner = item.bytes;
  } else {
    for (const WireRange& range : item.take.ranges) {
      AddSegments(*sequence, item.take.layer, range, &message.segments);
    }
    message.owner = std::move(sequence);
  }
  WireHead head{.path = item.path,
                .transfer_id = item.transfer->id,
                .sender_incarnation = options_.own_incarnation,
                .receiver_incarnation = options_.peer_incarnation,
                .sequence = number,
                .layer = static_cast<uint32_t>(item.take.layer),
                .payload_bytes = static_cast<uint64_t>(item.payload_bytes()),
                .step = item.step,
                .token_begin = static_cast<uint32_t>(item.begin),
                .token_end = static_cast<uint32_t>(item.end),
                .ranges = item.take.ranges};
  if (item.header) head.flags |= kFlagHeader;
  if (options_.checksum) {
    head.flags |= kFlagChecksum;
    base::Hasher64 hasher;
    for (const auto& segment : message.segments) hasher.Update(segment);
    head.checksum = hasher.Digest();
  }
  message.head = EncodeWireHead(head);
  return message;
}

void TransferSender::Impl::Post(const ItemPtr& item, std::shared_ptr<kv::KvSequence> sequence,
                                uint64_t number) {
  const auto lane = static_cast<size_t>(item->lane);
  if (sequence == nullptr) {  // End came between
    OnDone(*item, 0, base::Cancelled("transfer {} was ended", item->transfer->id.ToString()));
    return;
  }
  if (item->transfer->on_message) item->posted_at = options_.clock->Now();
  channel::OutMessage message = MakeMessage(*item, std::move(sequence), number);
  const uint64_t segments = message.segments.size();
  message.on_done = [self = shared_from_this(), item, segments](const absl::Status& status) {
    self->OnDone(*item, segments, status);
  };
  int64_t done_before = 0;
  {
    base::MutexLock lock(mutex_);
    done_before = done_[lane];
    Count(*item, segments);
    // Before it can be done.
    window_.OnPosted(item->payload_bytes(), Windowed(item->lane), options_.clock->Now());
  }
  const UseChannel channel(this);
  const absl::Status status =
      channel ? channel->Send(std::move(message)) : base::Cancelled("the sender is gone");
  if (!status.ok()) {
    OnRefused(item, segments, done_before, status);
    return;
  }
  bool ended = false;
  {
    base::MutexLock lock(mutex_);
    ended = item->transfer->sequence == nullptr;
  }
  // End came between Next and Send, and has not seen this message.
  if (ended) channel->CancelTag(item->transfer->tag);
}

void TransferSender::Impl::Count(Item& item, uint64_t segments) {
  const auto bytes = static_cast<uint64_t>(item.payload_bytes());
  const auto repeated = static_cast<uint64_t>(item.take.repeated_bytes);
  SenderStats& stats = item.transfer->stats;
  item.counted = true;
  stats.bytes += bytes;
  stats.resent_bytes += repeated;
  if (bytes > repeated) stats.bytes_by_path[item.path] += bytes - repeated;
  ++stats.messages;
  stats.segments += segments;
}

void TransferSender::Impl::Uncount(Item& item, uint64_t segments) {
  if (!std::exchange(item.counted, false)) return;
  const auto bytes = static_cast<uint64_t>(item.payload_bytes());
  const auto repeated = static_cast<uint64_t>(item.take.repeated_bytes);
  SenderStats& stats = item.transfer->stats;
  stats.bytes -= bytes;
  stats.resent_bytes -= repeated;
  if (bytes > repeated) stats.bytes_by_path[item.path] -= bytes - repeated;
  --stats.messages;
  stats.segments -= segments;
}

void TransferSender::Impl::OnRefused(const ItemPtr& item, uint64_t segments, int64_t done_before,
                                     const absl::Status& status) {
  const auto lane = static_cast<size_t>(item->lane);
  {
    base::MutexLock lock(mutex_);
    // Full: once one of ours is done there is room, and OnDone pumps again. With none of ours there
    // nobody would, unless one was done meanwhile.
    const bool others = posted_[lane] > 1;
    const bool retry = others || done_[lane] != done_before;
    if (absl::IsResourceExhausted(status) && retry && item->transfer->sequence != nullptr) {
      OnPosted(lane, -1);
      full_[lane] = others;
      Uncount(*item, segments);
      // Metadata enters the window when it is taken.
      if (item->lane == Lane::kMetadata) windowed_bytes_ -= item->payload_bytes();
      backlog_[lane].push_front(item);
      return;
    }
  }
  OnDone(*item, segments, status);
}

void TransferSender::Impl::Settle(const Item& item) {
  Transfer& transfer = *item.transfer;
  --transfer.outstanding;
  if (item.lane <= Lane::kMetadata) transfer.outstanding_bytes -= item.payload_bytes();
}

void TransferSender::Impl::OnDone(Item& item, uint64_t segments, const absl::Status& status) {
  Transfer& transfer = *item.transfer;
  if (status.ok() && transfer.on_message) TellMoved(item);
  channel::LinkInfo link;
  if (const UseChannel channel(this); channel) link = channel->link_info();
  std::function<void()> then;
  {
    base::MutexLock lock(mutex_);
    const auto lane = static_cast<size_t>(item.lane);
    OnPosted(lane, -1);
    ++done_[lane];
    full_[lane] = false;
    Settle(item);
    const auto bytes = static_cast<uint64_t>(item.payload_bytes());
    if (Windowed(item.lane)) windowed_bytes_ -= item.payload_bytes();
    if (status.ok()) {
      window_.OnHandedOut(bytes, link, options_.clock->Now());
      transfer.unsent_bytes -= item.take.prompt_bytes;
    } else {
      Uncount(item, segments);
    }
    if (!status.ok() && transfer.sequence != nullptr && transfer.failure.ok()) {
      transfer.failure = status;
      transfer.stats.failed = true;
      Unqueue(&transfer);
      UpdateRunnable(transfer);
    }
    if (windowed_bytes_ == 0) window_.OnIdle();
    if (under_way_ == 0) window_.OnAllHandedOut(options_.clock->Now());
    then = Conclude(transfer);
  }
  if (then) then();
  Pump(true);
}

void TransferSender::Impl::TellMoved(const Item& item) const {
  MovedMessage moved{.path = item.path,
                     .layer = item.take.layer,
                     .first_token = item.begin,
                     .tokens = item.end - item.begin,
                     .step = item.step,
                     .begun = item.posted_at,
                     .ended = options_.clock->Now()};
  if (!item.take.ranges.empty()) moved.first_token = item.take.ranges.front().begin;
  for (const WireRange& range : item.take.ranges) moved.tokens += range.count;
  moved.bytes =
      static_cast<uint64_t>(std::max<int64_t>(0, item.payload_bytes() - item.take.repeated_bytes));
  item.transfer->on_message(moved);
}

std::function<void()> TransferSender::Impl::Conclude(Transfer& transfer) {
  if (!transfer.on_sent) return nullptr;
  absl::Status result;
  if (transfer.unsent_bytes > 0) {
    if (!transfer.failure.ok()) {
      result = transfer.failure;
    } else if (transfer.sequence == nullptr && transfer.outstanding == 0) {
      result = base::Cancelled("transfer {} was ended", transfer.id.ToString());
    } else {
      return nullptr;
    }
  }
  return [on_sent = std::exchange(transfer.on_sent, nullptr), result] { on_sent(result); };
}

void TransferSender::Impl::Unqueue(Transfer* transfer) {
  for (size_t lane = 0; lane < channel::kNumLanes; ++lane) {
    std::deque<ItemPtr> kept;
    for (ItemPtr& item : backlog_[lane]) {
      if (item->transfer.get() != transfer) {
        kept.push_back(std::move(item));
        continue;
      }
      Settle(*item);
      // Metadata enters the window when it is taken.
      if (item->lane >= Lane::kProactive) windowed_bytes_ -= item->payload_bytes();
    }
    backlog_[lane].swap(kept);
  }
}

}  // namespace smartgen::transfer
