#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <utility>

#include "common/base/hash.h"
#include "common/base/mutex.h"
#include "common/transfer/transfer.h"

namespace smartgen::transfer {
namespace {

using channel::kNumLanes;
using channel::Lane;
using channel::OutMessage;

// What a peer may ask for again in one call, and what a transfer may have queued in all: a bound on
// memory, far above what a stalled transfer needs.
constexpr size_t kMaxResendRanges = 1 << 16;
constexpr int64_t kMaxQueuedMessages = 1 << 20;

Lane LaneOf(Path path) {
  switch (path) {
    case Path::kOnDemand:
      return Lane::kOnDemand;
    case Path::kMetadata:
      return Lane::kMetadata;
    case Path::kSpeculative:
      return Lane::kSpeculative;
    case Path::kFull:
    case Path::kProactive:
      break;
  }
  return Lane::kProactive;
}

// Tokens a message: whole pages where one fits, so that messages begin and end at page borders and
// most are one segment.
int64_t TokensPerMessage(int64_t max_bytes, int64_t token_bytes) {
  const int64_t tokens = std::max<int64_t>(1, max_bytes / token_bytes);
  return tokens < kv::kPageTokens ? tokens : tokens - tokens % kv::kPageTokens;
}

// Disjoint token ranges in ascending order.
class Intervals {
 public:
  struct Interval {
    int64_t begin;
    int64_t end;
  };

  // Adds [begin, end) and returns the parts that are new.
  std::vector<Interval> Add(int64_t begin, int64_t end) {
    std::vector<Interval> fresh;
    std::vector<Interval> merged;
    Interval grown{begin, end};
    int64_t at = begin;
    for (const Interval& have : list_) {
      if (have.end < begin || have.begin > end) {
        merged.push_back(have);
        continue;
      }
      if (have.begin > at) fresh.push_back({at, have.begin});
      at = std::max(at, have.end);
      grown = {std::min(grown.begin, have.begin), std::max(grown.end, have.end)};
    }
    if (at < end) fresh.push_back({at, end});
    merged.insert(
        std::lower_bound(merged.begin(), merged.end(), grown,
                         [](const Interval& a, const Interval& b) { return a.begin < b.begin; }),
        grown);
    list_ = std::move(merged);
    return fresh;
  }

  std::vector<Interval> Intersect(int64_t begin, int64_t end) const {
    std::vector<Interval> common;
    for (const Interval& have : list_) {
      const Interval part{std::max(begin, have.begin), std::min(end, have.end)};
      if (part.begin < part.end) common.push_back(part);
    }
    return common;
  }

 private:
  std::vector<Interval> list_;
};

}  // namespace

// A message is in the backlog until the channel has taken it (which may refuse while its lane is
// full), then posted until its on_done. Segments and checksum are made when it is posted. One
// thread at a time posts ("pumps"), without the lock, because the channel must not be called under
// it.
class TransferSender::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(std::shared_ptr<channel::Channel> channel, Options options)
      : channel_(std::move(channel)), options_(options) {}

  absl::Status Begin(const base::TransferId& id, std::shared_ptr<kv::KvSequence> sequence,
                     int64_t begin, int64_t end, std::function<void(const absl::Status&)> on_sent);
  absl::Status LayerReady(const base::TransferId& id, Path path, const LayerRange& range);
  absl::Status Resend(const base::TransferId& id, std::span<const LayerRange> ranges);
  void End(const base::TransferId& id);
  void EndAll();
  SenderStats Stats(const base::TransferId& id) const;
  int64_t Active() const;

 private:
  using OnSent = std::function<void(const absl::Status&)>;
  struct Transfer {
    base::TransferId id;
    uint64_t tag = 0;
    int64_t begin = 0;
    int64_t end = 0;
    // All below: guarded by the mutex.
    std::shared_ptr<kv::KvSequence> sequence;  // null after End
    OnSent on_sent;                            // null when it was called
    std::vector<Intervals> ready;              // by layer
    int64_t tokens_to_queue = 0;               // over all layers
    int64_t tokens_to_send = 0;
    int64_t outstanding = 0;  // messages in the backlog or posted
    uint64_t next_sequence = 1;
    absl::Status failure;
    SenderStats stats;
  };
  struct Item {
    std::shared_ptr<Transfer> transfer;
    Path path = Path::kFull;
    LayerRange range;
    bool resend = false;
    bool last = false;
  };

  // Not OK if the range is none of the transfer's layers and tokens >= 0.
  static absl::Status CheckRange(const Transfer& transfer, const LayerRange& range);
  void QueueMessages(const std::shared_ptr<Transfer>& transfer, Path path, const LayerRange& range,
                     bool resend) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Pump();
  // The next item that the channel may take. Sets `sequence` and its number.
  bool Next(Item* item, std::shared_ptr<kv::KvSequence>* sequence, uint64_t* number)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Post(Item item, std::shared_ptr<kv::KvSequence> sequence, uint64_t number);
  // `done_before`: how many of the lane's messages had been done before Send was called.
  void OnRefused(Item item, int64_t done_before, const absl::Status& status);
  void OnDone(const Item& item, uint64_t bytes, uint64_t segments, const absl::Status& status);
  // What remains to be done without the lock once the transfer's state changed.
  static std::function<void()> Conclude(Transfer& transfer);
  void Unqueue(const Transfer* transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<channel::Channel> channel_;
  const Options options_;
  mutable base::Mutex mutex_;
  std::map<base::TransferId, std::shared_ptr<Transfer>> transfers_ ABSL_GUARDED_BY(mutex_);
  std::array<std::deque<Item>, kNumLanes> backlog_ ABSL_GUARDED_BY(mutex_);
  std::array<int64_t, kNumLanes> posted_ ABSL_GUARDED_BY(mutex_){};
  std::array<int64_t, kNumLanes> done_ ABSL_GUARDED_BY(mutex_){};
  std::array<bool, kNumLanes> full_ ABSL_GUARDED_BY(mutex_){};  // until something is done
  bool pumping_ ABSL_GUARDED_BY(mutex_) = false;
};

absl::Status TransferSender::Impl::Begin(const base::TransferId& id,
                                         std::shared_ptr<kv::KvSequence> sequence, int64_t begin,
                                         int64_t end, OnSent on_sent) {
  if (begin < 0 || begin >= end || end > sequence->capacity() || end > UINT32_MAX) {
    return base::InvalidArgument("transfer {}: tokens [{}, {}): the sequence has room for {}",
                                 id.ToString(), begin, end, sequence->capacity());
  }
  // One channel may serve several senders, and a tag must name one transfer of one of them.
  static std::atomic<uint64_t> next_tag{1};
  auto transfer = std::make_shared<Transfer>();
  transfer->id = id;
  transfer->tag = next_tag++;
  transfer->begin = begin;
  transfer->end = end;
  transfer->on_sent = std::move(on_sent);
  transfer->ready.resize(static_cast<size_t>(sequence->layout().num_layers()));
  transfer->tokens_to_queue = (end - begin) * sequence->layout().num_layers();
  transfer->tokens_to_send = transfer->tokens_to_queue;
  transfer->sequence = std::move(sequence);
  base::MutexLock lock(mutex_);
  if (transfers_.emplace(id, std::move(transfer)).second) return absl::OkStatus();
  return base::AlreadyExists("transfer {} is being sent already", id.ToString());
}

absl::Status TransferSender::Impl::CheckRange(const Transfer& transfer, const LayerRange& range) {
  const int layers = transfer.sequence->layout().num_layers();
  if (range.layer >= 0 && range.layer < layers && range.begin >= 0 && range.begin <= range.end) {
    return absl::OkStatus();
  }
  return base::InvalidArgument("transfer {}: layer {} (of {}), tokens [{}, {}): no such range",
                               transfer.id.ToString(), range.layer, layers, range.begin, range.end);
}

void TransferSender::Impl::QueueMessages(const std::shared_ptr<Transfer>& transfer, Path path,
                                         const LayerRange& range, bool resend) {
  const int64_t step = TokensPerMessage(options_.max_message_bytes,
                                        transfer->sequence->layout().TokenBytes(range.layer));
  for (int64_t begin = range.begin; begin < range.end;) {
    // Aligned at absolute positions.
    const int64_t end = std::min(range.end, (begin / step + 1) * step);
    if (!resend) transfer->tokens_to_queue -= end - begin;
    backlog_[static_cast<int>(LaneOf(path))].push_back(
        {.transfer = transfer,
         .path = path,
         .range = {.layer = range.layer, .begin = begin, .end = end},
         .resend = resend,
         .last = !resend && transfer->tokens_to_queue == 0});
    ++transfer->outstanding;
    begin = end;
  }
}

absl::Status TransferSender::Impl::LayerReady(const base::TransferId& id, Path path,
                                              const LayerRange& range) {
  {
    base::MutexLock lock(mutex_);
    const auto it = transfers_.find(id);
    if (it == transfers_.end()) return base::NotFound("transfer {}: none", id.ToString());
    Transfer& transfer = *it->second;
    if (!transfer.failure.ok()) return transfer.failure;
    RETURN_IF_ERROR(CheckRange(transfer, range));
    const int64_t begin = std::max(range.begin, transfer.begin);
    const int64_t end = std::min(range.end, transfer.end);
    if (begin >= end) return absl::OkStatus();
    for (const auto& part : transfer.ready[range.layer].Add(begin, end)) {
      QueueMessages(it->second, path, {.layer = range.layer, .begin = part.begin, .end = part.end},
                    false);
    }
  }
  Pump();
  return absl::OkStatus();
}

absl::Status TransferSender::Impl::Resend(const base::TransferId& id,
                                          std::span<const LayerRange> ranges) {
  if (ranges.size() > kMaxResendRanges) {
    return base::InvalidArgument("transfer {}: {} ranges to send again, want at most {}",
                                 id.ToString(), ranges.size(), kMaxResendRanges);
  }
  {
    base::MutexLock lock(mutex_);
    const auto it = transfers_.find(id);
    if (it == transfers_.end()) return base::NotFound("transfer {}: none", id.ToString());
    Transfer& transfer = *it->second;
    if (!transfer.failure.ok()) return transfer.failure;
    for (const LayerRange& range : ranges) RETURN_IF_ERROR(CheckRange(transfer, range));
    for (const LayerRange& range : ranges) {
      if (transfer.outstanding > kMaxQueuedMessages) {
        return base::ResourceExhausted("transfer {}: {} messages are queued", id.ToString(),
                                       transfer.outstanding);
      }
      for (const auto& part : transfer.ready[range.layer].Intersect(range.begin, range.end)) {
        QueueMessages(it->second, Path::kOnDemand,
                      {.layer = range.layer, .begin = part.begin, .end = part.end}, true);
      }
    }
  }
  Pump();
  return absl::OkStatus();
}

bool TransferSender::Impl::Next(Item* item, std::shared_ptr<kv::KvSequence>* sequence,
                                uint64_t* number) {
  for (int lane = 0; lane < kNumLanes; ++lane) {
    if (full_[lane] || backlog_[lane].empty()) continue;
    *item = std::move(backlog_[lane].front());
    backlog_[lane].pop_front();
    ++posted_[lane];
    *sequence = item->transfer->sequence;
    *number = item->transfer->next_sequence++;
    return true;
  }
  return false;
}

void TransferSender::Impl::Pump() {
  {
    base::MutexLock lock(mutex_);
    if (std::exchange(pumping_, true)) return;
  }
  for (;;) {
    Item item;
    std::shared_ptr<kv::KvSequence> sequence;
    uint64_t number = 0;
    {
      base::MutexLock lock(mutex_);
      if (!Next(&item, &sequence, &number)) {
        pumping_ = false;
        return;
      }
    }
    Post(std::move(item), std::move(sequence), number);
  }
}

void TransferSender::Impl::Post(Item item, std::shared_ptr<kv::KvSequence> sequence,
                                uint64_t number) {
  const LayerRange& range = item.range;
  OutMessage message;
  message.lane = LaneOf(item.path);
  message.tag = item.transfer->tag;
  WireHead head{.path = item.path,
                .transfer_id = item.transfer->id,
                .sender_incarnation = options_.own_incarnation,
                .receiver_incarnation = options_.peer_incarnation,
                .sequence = number,
                .layer = static_cast<uint32_t>(range.layer),
                .token_begin = static_cast<uint32_t>(range.begin),
                .token_end = static_cast<uint32_t>(range.end)};
  if (item.last) head.flags |= kFlagLast;
  if (options_.checksum) head.flags |= kFlagChecksum;
  base::Hasher64 hasher;
  for (const auto& segment : sequence->Segments(range.layer, range.begin, range.end)) {
    head.payload_bytes += segment.size();
    if (options_.checksum) hasher.Update(segment);
    message.segments.push_back(segment);
  }
  if (options_.checksum) head.checksum = hasher.Digest();
  const auto encoded = EncodeWireHead(head);
  message.head.assign(encoded.begin(), encoded.end());
  message.owner = std::move(sequence);
  const uint64_t segments = message.segments.size();
  message.on_done = [self = shared_from_this(), item, bytes = head.payload_bytes,
                     segments](const absl::Status& status) {
    self->OnDone(item, bytes, segments, status);
  };
  int64_t done_before = 0;
  {
    base::MutexLock lock(mutex_);
    done_before = done_[static_cast<int>(message.lane)];
  }
  const absl::Status status = channel_->Send(std::move(message));
  if (!status.ok()) {
    OnRefused(std::move(item), done_before, status);
    return;
  }
  bool ended = false;
  {
    base::MutexLock lock(mutex_);
    ended = item.transfer->sequence == nullptr;
  }
  // End came between Next and Send, and has not seen this message.
  if (ended) channel_->CancelTag(item.transfer->tag);
}

void TransferSender::Impl::OnRefused(Item item, int64_t done_before, const absl::Status& status) {
  const int lane = static_cast<int>(LaneOf(item.path));
  {
    base::MutexLock lock(mutex_);
    // Full: once one of ours is done there is room, and OnDone pumps again. With none of ours there
    // nobody would, unless one was done meanwhile.
    const bool others = posted_[lane] > 1;
    const bool retry = others || done_[lane] != done_before;
    if (absl::IsResourceExhausted(status) && retry && item.transfer->sequence != nullptr) {
      --posted_[lane];
      full_[lane] = others;
      backlog_[lane].push_front(std::move(item));
      return;
    }
  }
  OnDone(item, 0, 0, status);
}

void TransferSender::Impl::OnDone(const Item& item, uint64_t bytes, uint64_t segments,
                                  const absl::Status& status) {
  Transfer& transfer = *item.transfer;
  std::function<void()> then;
  {
    base::MutexLock lock(mutex_);
    const int lane = static_cast<int>(LaneOf(item.path));
    --posted_[lane];
    ++done_[lane];
    full_[lane] = false;
    --transfer.outstanding;
    if (status.ok()) {
      transfer.stats.bytes += bytes;
      if (item.resend) transfer.stats.resent_bytes += bytes;
      ++transfer.stats.messages;
      transfer.stats.segments += segments;
      if (!item.resend) transfer.tokens_to_send -= item.range.end - item.range.begin;
    } else if (transfer.sequence != nullptr && transfer.failure.ok()) {
      transfer.failure = status;
      transfer.stats.failed = true;
      Unqueue(&transfer);
    }
    then = Conclude(transfer);
  }
  if (then) then();
  Pump();
}

std::function<void()> TransferSender::Impl::Conclude(Transfer& transfer) {
  if (!transfer.on_sent) return nullptr;
  absl::Status result;
  if (transfer.tokens_to_send > 0) {
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

void TransferSender::Impl::Unqueue(const Transfer* transfer) {
  for (auto& lane : backlog_) {
    std::erase_if(lane, [&](const Item& item) {
      if (item.transfer.get() != transfer) return false;
      --item.transfer->outstanding;
      return true;
    });
  }
}

void TransferSender::Impl::End(const base::TransferId& id) {
  std::shared_ptr<Transfer> transfer;
  std::shared_ptr<kv::KvSequence> sequence;  // let go without the lock
  {
    base::MutexLock lock(mutex_);
    const auto it = transfers_.find(id);
    if (it == transfers_.end()) return;
    transfer = std::move(it->second);
    transfers_.erase(it);
    sequence = std::exchange(transfer->sequence, nullptr);
    Unqueue(transfer.get());
  }
  channel_->CancelTag(transfer->tag);
  std::function<void()> then;
  {
    base::MutexLock lock(mutex_);
    then = Conclude(*transfer);
  }
  if (then) then();
}

void TransferSender::Impl::EndAll() {
  std::vector<base::TransferId> ids;
  {
    base::MutexLock lock(mutex_);
    for (const auto& [id, transfer] : transfers_) ids.push_back(id);
  }
  for (const base::TransferId& id : ids) End(id);
}

SenderStats TransferSender::Impl::Stats(const base::TransferId& id) const {
  base::MutexLock lock(mutex_);
  const auto it = transfers_.find(id);
  return it == transfers_.end() ? SenderStats{} : it->second->stats;
}

int64_t TransferSender::Impl::Active() const {
  base::MutexLock lock(mutex_);
  return static_cast<int64_t>(transfers_.size());
}

TransferSender::TransferSender(std::shared_ptr<channel::Channel> channel, Options options)
    : impl_(std::make_shared<Impl>(std::move(channel), options)) {}
TransferSender::~TransferSender() { impl_->EndAll(); }
absl::Status TransferSender::Begin(const base::TransferId& id,
                                   std::shared_ptr<kv::KvSequence> sequence, int64_t begin,
                                   int64_t end, std::function<void(const absl::Status&)> on_sent) {
  return impl_->Begin(id, std::move(sequence), begin, end, std::move(on_sent));
}
absl::Status TransferSender::LayerReady(const base::TransferId& id, Path path,
                                        const LayerRange& range) {
  return impl_->LayerReady(id, path, range);
}
absl::Status TransferSender::Resend(const base::TransferId& id,
                                    std::span<const LayerRange> ranges) {
  return impl_->Resend(id, ranges);
}
void TransferSender::End(const base::TransferId& id) { impl_->End(id); }
SenderStats TransferSender::stats(const base::TransferId& id) const { return impl_->Stats(id); }
int64_t TransferSender::active() const { return impl_->Active(); }

}  // namespace smartgen::transfer
