#include <algorithm>
#include <atomic>
#include <utility>

#include "common/transfer/sender_impl.h"

namespace smartgen::transfer {
namespace {

using channel::Lane;

// What a peer may ask for in one call, and what a transfer may have queued beside the background:
// bounds on memory and time, far above what a stalled transfer needs.
constexpr size_t kMaxRanges = 1 << 17;
constexpr int64_t kMaxQueuedMessages = 1 << 18;
constexpr int64_t kMinQueuedBytes = 256 << 20;
// Calls of the channel do not block: this is never waited for but on a machine that stands still.
constexpr base::Duration kDetachLimit = std::chrono::seconds(5);

// Calls of channels on this thread's stack.
thread_local int uses_of_this_thread = 0;

}  // namespace

TransferSender::Impl::Impl(std::shared_ptr<channel::Channel> channel, Options options)
    : options_(options), channel_(std::move(channel)), window_(options.window) {}

TransferSender::Impl::UseChannel::UseChannel(Impl* impl) : impl_(impl) {
  base::MutexLock lock(impl->mutex_);
  channel_ = impl->channel_;
  ++impl->channel_uses_;
  ++uses_of_this_thread;
}

TransferSender::Impl::UseChannel::~UseChannel() {
  channel_.reset();  // not the last: the sender has one until Detach, which waits for this
  base::MutexLock lock(impl_->mutex_);
  --uses_of_this_thread;
  --impl_->channel_uses_;
  impl_->unused_.NotifyAll();
}

absl::Status TransferSender::Impl::Begin(SendSpec spec) {
  const kv::KvLayout& layout = spec.sequence->layout();
  if (spec.begin < 0 || spec.begin >= spec.end || spec.end > spec.sequence->capacity() ||
      spec.end > UINT32_MAX) {
    return base::InvalidArgument("transfer {}: tokens [{}, {}): the sequence has room for {}",
                                 spec.id.ToString(), spec.begin, spec.end,
                                 spec.sequence->capacity());
  }
  RETURN_IF_ERROR(base::Annotate(TransferState::CheckOrder(spec.order, layout.num_layers()),
                                 fmt::format("transfer {}", spec.id.ToString())));
  // One channel may serve several senders, and a tag must name one transfer of one of them.
  static std::atomic<uint64_t> next_tag{1};
  auto transfer = std::make_shared<Transfer>(
      layout, TransferState::Options{.begin = spec.begin,
                                     .end = spec.end,
                                     .order = std::move(spec.order),
                                     .pushed = spec.pushed,
                                     .deliver_rest = spec.deliver_rest,
                                     .max_message_bytes = options_.max_message_bytes});
  transfer->id = spec.id;
  transfer->tag = next_tag++;
  transfer->begin = spec.begin;
  transfer->end = spec.end;
  transfer->full = spec.full;
  transfer->deliver_rest = spec.deliver_rest;
  transfer->credits = spec.credits;
  transfer->unsent_bytes = transfer->state.prompt_bytes();
  transfer->sequence = std::move(spec.sequence);
  transfer->on_sent = std::move(spec.on_sent);
  transfer->on_message = std::move(spec.on_message);
  base::MutexLock lock(mutex_);
  if (transfers_.emplace(spec.id, std::move(transfer)).second) return absl::OkStatus();
  return base::AlreadyExists("transfer {} is being sent already", spec.id.ToString());
}

absl::StatusOr<std::shared_ptr<TransferSender::Impl::Transfer>> TransferSender::Impl::Find(
    const base::TransferId& id) const {
  const auto it = transfers_.find(id);
  if (it == transfers_.end()) return base::NotFound("transfer {}: none", id.ToString());
  if (!it->second->failure.ok()) return it->second->failure;
  return it->second;
}

absl::Status TransferSender::Impl::CheckRange(const Transfer& transfer, const LayerRange& range) {
  const int layers = transfer.sequence->layout().num_layers();
  if (range.layer >= 0 && range.layer < layers && range.begin >= 0 && range.begin <= range.end) {
    return absl::OkStatus();
  }
  return base::InvalidArgument("transfer {}: layer {} (of {}), tokens [{}, {}): no such range",
                               transfer.id.ToString(), range.layer, layers, range.begin, range.end);
}

absl::Status TransferSender::Impl::CheckFetch(const Transfer& transfer, int layer,
                                              std::span<const kv::HeadRange> ranges) {
  if (ranges.size() > kMaxRanges) {
    return base::InvalidArgument("transfer {}: {} ranges in one call, want at most {}",
                                 transfer.id.ToString(), ranges.size(), kMaxRanges);
  }
  RETURN_IF_ERROR(CheckRange(transfer, {.layer = layer}));
  const int heads = transfer.sequence->layout().layers[layer].kv_heads;
  int64_t entries = 0;
  for (const kv::HeadRange& range : ranges) {
    RETURN_IF_ERROR(CheckRange(transfer, {.layer = layer, .begin = range.begin, .end = range.end}));
    if (range.head < -1 || range.head >= heads) {
      return base::InvalidArgument("transfer {}: layer {}: KV head {} of {}",
                                   transfer.id.ToString(), layer, range.head, heads);
    }
    // One range that begins beyond what there is would take others' entries off the sum.
    const int64_t tokens =
        std::max<int64_t>(std::min(range.end, transfer.sequence->capacity()) - range.begin, 0);
    entries += tokens * (range.head < 0 ? heads : 1);
    if (entries > heads * transfer.sequence->capacity()) {
      return base::InvalidArgument("transfer {}: layer {}: more entries than there are",
                                   transfer.id.ToString(), layer);
    }
  }
  return absl::OkStatus();
}

absl::Status TransferSender::Impl::CheckRoom(const Transfer& transfer, int64_t bytes) {
  // Everything twice, or a quarter of a GiB, whichever is more.
  const int64_t limit = std::max(kMinQueuedBytes, 2 * transfer.state.prompt_bytes());
  if (transfer.outstanding <= kMaxQueuedMessages && transfer.outstanding_bytes + bytes <= limit) {
    return absl::OkStatus();
  }
  return base::ResourceExhausted("transfer {}: {} messages with {} bytes are queued",
                                 transfer.id.ToString(), transfer.outstanding,
                                 transfer.outstanding_bytes);
}

void TransferSender::Impl::Queue(Item item) {
  ++item.transfer->outstanding;
  if (item.lane <= Lane::kMetadata) item.transfer->outstanding_bytes += item.payload_bytes();
  backlog_[static_cast<size_t>(item.lane)].push_back(std::make_shared<Item>(std::move(item)));
}

void TransferSender::Impl::QueueOnDemand(const std::shared_ptr<Transfer>& transfer,
                                         std::vector<Take> takes) {
  for (Take& take : takes) {
    Queue({.transfer = transfer,
           .lane = Lane::kOnDemand,
           .path = Path::kOnDemand,
           .take = std::move(take)});
  }
}

absl::Status TransferSender::Impl::LayerReady(const base::TransferId& id, const LayerRange& range) {
  {
    base::MutexLock lock(mutex_);
    ASSIGN_OR_RETURN(const auto transfer, Find(id));
    RETURN_IF_ERROR(CheckRange(*transfer, range));
    transfer->state.SetReady(range.layer, range.begin, range.end);
    UpdateRunnable(*transfer);
  }
  Pump();
  return absl::OkStatus();
}

void TransferSender::Impl::PromptDone(const base::TransferId& id) {
  {
    base::MutexLock lock(mutex_);
    const auto transfer = Find(id);
    if (!transfer.ok()) return;  // whoever needs to know is told by the next LayerReady, or on_sent
    (*transfer)->state.PromptDone();
    UpdateRunnable(**transfer);
  }
  Pump();
}

void TransferSender::Impl::Credit(const base::TransferId& id, int64_t bytes) {
  {
    base::MutexLock lock(mutex_);
    const auto transfer = Find(id);
    if (!transfer.ok() || bytes <= 0) return;
    // More than all is all: born tokens are few.
    const int64_t most = 2 * (*transfer)->state.prompt_bytes();
    int64_t& credit = (*transfer)->credit;
    credit = std::min(credit + std::min(bytes, most), most);
    UpdateRunnable(**transfer);
  }
  Pump();
}

absl::Status TransferSender::Impl::Born(const base::TransferId& id, int layer_begin,
                                        int64_t token) {
  {
    base::MutexLock lock(mutex_);
    ASSIGN_OR_RETURN(const auto transfer, Find(id));
    const int layers = transfer->sequence->layout().num_layers();
    if (layer_begin < 0 || layer_begin > layers || token < transfer->end ||
        token >= transfer->sequence->capacity()) {
      return base::InvalidArgument(
          "transfer {}: token {} (want {} to {}) born in layers from {} of {} on", id.ToString(),
          token, transfer->end, transfer->sequence->capacity(), layer_begin, layers);
    }
    for (int layer = layer_begin; layer < layers; ++layer) {
      QueueOnDemand(transfer, transfer->state.Born(layer, token));
    }
    UpdateRunnable(*transfer);
  }
  Pump();
  return absl::OkStatus();
}

absl::Status TransferSender::Impl::Fetch(const base::TransferId& id, int layer,
                                         std::span<const kv::HeadRange> ranges, bool again) {
  {
    base::MutexLock lock(mutex_);
    ASSIGN_OR_RETURN(const auto transfer, Find(id));
    RETURN_IF_ERROR(CheckFetch(*transfer, layer, ranges));
    RETURN_IF_ERROR(CheckRoom(*transfer, 0));
    QueueOnDemand(transfer, transfer->state.Fetch(layer, ranges, again));
    UpdateRunnable(*transfer);
  }
  Pump();
  return absl::OkStatus();
}

absl::Status TransferSender::Impl::Resend(const base::TransferId& id,
                                          std::span<const LayerRange> ranges) {
  if (ranges.size() > kMaxRanges) {
    return base::InvalidArgument("transfer {}: {} ranges to send again, want at most {}",
                                 id.ToString(), ranges.size(), kMaxRanges);
  }
  {
    base::MutexLock lock(mutex_);
    ASSIGN_OR_RETURN(const auto transfer, Find(id));
    for (const LayerRange& range : ranges) RETURN_IF_ERROR(CheckRange(*transfer, range));
    for (const LayerRange& range : ranges) {
      RETURN_IF_ERROR(CheckRoom(*transfer, 0));
      QueueOnDemand(transfer, transfer->state.Resend(range.layer, range.begin, range.end));
    }
  }
  Pump();
  return absl::OkStatus();
}

absl::Status TransferSender::Impl::QueueOpaque(Item item, const base::TransferId& id) {
  const int64_t bytes = item.payload_bytes();
  {
    base::MutexLock lock(mutex_);
    // At once with the answer's own place in the queue: no background comes between.
    if (item.path == Path::kHandover) expected_.erase(id);
    if (bytes < 1 || bytes > static_cast<int64_t>(kMaxOpaqueBytes)) {
      return base::InvalidArgument("transfer {}: {} bytes on path {}: want 1 to {}", id.ToString(),
                                   bytes, PathName(item.path), kMaxOpaqueBytes);
    }
    ASSIGN_OR_RETURN(item.transfer, Find(id));
    const LayerRange range{.layer = item.take.layer, .begin = item.begin, .end = item.end};
    RETURN_IF_ERROR(CheckRange(*item.transfer, range));
    if (item.end > UINT32_MAX) {
      return base::InvalidArgument("transfer {}: metadata of tokens [{}, {})", id.ToString(),
                                   item.begin, item.end);
    }
    RETURN_IF_ERROR(CheckRoom(*item.transfer, bytes));
    if (item.path == Path::kMetadata) {
      item.take.repeated_bytes = static_cast<int64_t>(item.transfer->metadata.Note(
          item.take.layer, item.begin, item.end, item.header, static_cast<uint64_t>(bytes)));
    }
    Queue(std::move(item));
  }
  Pump();
  return absl::OkStatus();
}

absl::Status TransferSender::Impl::Metadata(const base::TransferId& id, int layer, int64_t begin,
                                            int64_t end, bool header,
                                            std::vector<std::byte> bytes) {
  return QueueOpaque({.lane = Lane::kMetadata,
                      .path = Path::kMetadata,
                      .take = {.layer = layer},
                      .bytes = std::make_shared<std::vector<std::byte>>(std::move(bytes)),
                      .begin = begin,
                      .end = end,
                      .header = header},
                     id);
}

absl::Status TransferSender::Impl::Reply(const base::TransferId& id, uint64_t step, int layer,
                                         std::vector<std::byte> bytes) {
  return QueueOpaque({.lane = Lane::kOnDemand,
                      .path = Path::kHandover,
                      .take = {.layer = layer},
                      .bytes = std::make_shared<std::vector<std::byte>>(std::move(bytes)),
                      .step = step},
                     id);
}

void TransferSender::Impl::ExpectReply(const base::TransferId& id, base::TimePoint at) {
  base::MutexLock lock(mutex_);
  if (transfers_.contains(id)) expected_[id] = at;
}

SenderStats TransferSender::Impl::End(const base::TransferId& id) {
  std::shared_ptr<Transfer> transfer;
  std::shared_ptr<kv::KvSequence> sequence;  // let go without the lock
  {
    base::MutexLock lock(mutex_);
    const auto it = transfers_.find(id);
    if (it == transfers_.end()) return {};
    transfer = std::move(it->second);
    transfers_.erase(it);
    expected_.erase(id);
    sequence = std::exchange(transfer->sequence, nullptr);
    Unqueue(transfer.get());
    UpdateRunnable(*transfer);
  }
  if (const UseChannel channel(this); channel) channel->CancelTag(transfer->tag);
  std::function<void()> then;
  SenderStats stats;
  {
    base::MutexLock lock(mutex_);
    then = Conclude(*transfer);
    stats = transfer->stats;
  }
  if (then) then();
  Pump();  // others may have what it had of the window
  return stats;
}

void TransferSender::Impl::Detach() {
  std::vector<base::TransferId> ids;
  {
    base::MutexLock lock(mutex_);
    for (const auto& [id, transfer] : transfers_) ids.push_back(id);
  }
  for (const base::TransferId& id : ids) End(id);
  std::shared_ptr<channel::Channel> channel;  // let go without the lock
  const auto deadline = base::Deadline::After(*base::Clock::Real(), kDetachLimit);
  base::MutexLock lock(mutex_);
  channel.swap(channel_);
  // Within a callback of the channel's the call that led here is not waited for.
  while (channel_uses_ > uses_of_this_thread && !deadline.Expired(*base::Clock::Real())) {
    unused_.WaitFor(mutex_, deadline.Remaining(*base::Clock::Real()));
  }
}

SenderStats TransferSender::Impl::Stats(const base::TransferId& id) const {
  base::MutexLock lock(mutex_);
  const auto it = transfers_.find(id);
  return it == transfers_.end() ? SenderStats{} : it->second->stats;
}

LinkEstimate TransferSender::Impl::Link() const {
  base::MutexLock lock(mutex_);
  return window_.estimate();
}

double TransferSender::Impl::BusySeconds() const {
  base::MutexLock lock(mutex_);
  if (under_way_ == 0) return busy_seconds_;
  return busy_seconds_ + base::ToSeconds(options_.clock->Now() - busy_since_);
}

int64_t TransferSender::Impl::Active() const {
  base::MutexLock lock(mutex_);
  return static_cast<int64_t>(transfers_.size());
}

TransferSender::TransferSender(std::shared_ptr<channel::Channel> channel, Options options)
    : impl_(std::make_shared<Impl>(std::move(channel), options)) {}
TransferSender::~TransferSender() { impl_->Detach(); }
absl::Status TransferSender::Begin(SendSpec spec) { return impl_->Begin(std::move(spec)); }
absl::Status TransferSender::LayerReady(const base::TransferId& id, const LayerRange& range) {
  return impl_->LayerReady(id, range);
}
void TransferSender::PromptDone(const base::TransferId& id) { impl_->PromptDone(id); }
void TransferSender::Credit(const base::TransferId& id, int64_t bytes) { impl_->Credit(id, bytes); }
absl::Status TransferSender::Born(const base::TransferId& id, int layer_begin, int64_t token) {
  return impl_->Born(id, layer_begin, token);
}
absl::Status TransferSender::Fetch(const base::TransferId& id, int layer,
                                   std::span<const kv::HeadRange> ranges, bool again) {
  return impl_->Fetch(id, layer, ranges, again);
}
absl::Status TransferSender::Resend(const base::TransferId& id,
                                    std::span<const LayerRange> ranges) {
  return impl_->Resend(id, ranges);
}
absl::Status TransferSender::Metadata(const base::TransferId& id, int layer, int64_t begin,
                                      int64_t end, bool header, std::vector<std::byte> bytes) {
  return impl_->Metadata(id, layer, begin, end, header, std::move(bytes));
}
absl::Status TransferSender::Reply(const base::TransferId& id, uint64_t step, int layer,
                                   std::vector<std::byte> bytes) {
  return impl_->Reply(id, step, layer, std::move(bytes));
}
void TransferSender::ExpectReply(const base::TransferId& id, base::TimePoint at) {
  impl_->ExpectReply(id, at);
}
SenderStats TransferSender::End(const base::TransferId& id) { return impl_->End(id); }
SenderStats TransferSender::stats(const base::TransferId& id) const { return impl_->Stats(id); }
double TransferSender::busy_seconds() const { return impl_->BusySeconds(); }
LinkEstimate TransferSender::link() const { return impl_->Link(); }
int64_t TransferSender::active() const { return impl_->Active(); }

}  // namespace smartgen::transfer
