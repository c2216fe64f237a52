#include <algorithm>
#include <utility>

#include "common/base/hash.h"
#include "common/base/mutex.h"
#include "common/transfer/transfer.h"

namespace smartgen::transfer {
namespace {

using channel::Lane;
using channel::Placement;

// What a transfer waits for. Guarded by the receiver's mutex.
struct Incoming {
  base::TransferId id;
  std::shared_ptr<kv::KvSequence> sequence;
  int64_t begin = 0;
  int64_t end = 0;
  std::function<void(int)> on_progress;
  std::function<void()> on_complete;
  // By layer: the first token that is not known to be local. Completion is counted in tokens, never
  // in messages, which may be cut anyhow and come twice.
  std::vector<int64_t> local_until;
  int layers_left = 0;
  bool ended = false;
  ReceiverStats stats;
};

// A payload under way. Keeps the pages, whatever becomes of the transfer.
struct UnderWay {
  std::shared_ptr<Incoming> transfer;
  std::shared_ptr<kv::KvSequence> sequence;
  WireHead head;

  LayerRange range() const {
    return {
        .layer = static_cast<int>(head.layer), .begin = head.token_begin, .end = head.token_end};
  }
};

// True if both would write to one page's tokens. Sequences may share pages.
bool SameBytes(const UnderWay& a, const UnderWay& b) {
  if (a.head.layer != b.head.layer || a.sequence->pool() != b.sequence->pool()) return false;
  const int64_t begin = std::max(a.head.token_begin, b.head.token_begin);
  const int64_t end = std::min(a.head.token_end, b.head.token_end);
  for (int64_t page = begin / kv::kPageTokens; page * kv::kPageTokens < end; ++page) {
    if (a.sequence->pages()[page] == b.sequence->pages()[page] && begin < end) return true;
  }
  return false;
}

bool ChecksumMatches(const WireHead& head, const Placement& placement) {
  if ((head.flags & kFlagChecksum) == 0) return true;
  base::Hasher64 hasher;
  for (const auto& segment : placement.segments) hasher.Update(segment);
  return hasher.Digest() == head.checksum;
}

class ReceiverImpl final : public TransferReceiver {
 public:
  ReceiverImpl(Options options, Events events) : options_(options), events_(std::move(events)) {}

  absl::Status Begin(const base::TransferId& id, std::shared_ptr<kv::KvSequence> sequence,
                     int64_t begin, int64_t end, std::function<void(int)> on_progress,
                     std::function<void()> on_complete) override;
  void End(const base::TransferId& id) override;
  std::vector<LayerRange> Missing(const base::TransferId& id) const override;
  ReceiverStats stats(const base::TransferId& id) const override;
  int64_t active() const override;

  absl::StatusOr<Placement> OnHead(Lane lane, std::span<const std::byte> bytes,
                                   uint64_t payload_bytes) override;
  void OnPayload(Lane lane, std::span<const std::byte> bytes, Placement placement) override;
  void OnClosed(const absl::Status& reason) override;

 private:
  struct LayerDone {
    std::shared_ptr<Incoming> transfer;
    int layer = 0;
    bool complete = false;
  };
  using Callbacks = std::vector<LayerDone>;

  absl::Status Refuse(Refusal refusal, uint64_t bytes, const absl::Status& why) {
    if (events_.on_refused) events_.on_refused(refusal, bytes);
    return why;
  }
  // Says in `refusal` what is wrong with a message that does not fit its transfer.
  absl::Status CheckPlace(const UnderWay& message, uint64_t payload_bytes, Refusal* refusal)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::shared_ptr<UnderWay>> Admit(const WireHead& head, uint64_t payload_bytes,
                                                  Refusal* refusal);
  absl::Status CheckHead(const WireHead& head, Refusal* refusal) const;
  void Accept(const UnderWay& message, Callbacks* callbacks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Ended(const Incoming& transfer) const {
    base::MutexLock lock(mutex_);
    return transfer.ended;
  }
  // Collects what is to be reported after tokens of `layer` became local.
  static void Advance(const std::shared_ptr<Incoming>& transfer, int layer, Callbacks* callbacks);

  const Options options_;
  const Events events_;
  mutable base::Mutex mutex_;
  std::map<base::TransferId, std::shared_ptr<Incoming>> transfers_ ABSL_GUARDED_BY(mutex_);
  // At most one a lane.
  std::vector<std::shared_ptr<UnderWay>> under_way_ ABSL_GUARDED_BY(mutex_);
};

absl::Status ReceiverImpl::Begin(const base::TransferId& id,
                                 std::shared_ptr<kv::KvSequence> sequence, int64_t begin,
                                 int64_t end, std::function<void(int)> on_progress,
                                 std::function<void()> on_complete) {
  if (begin < 0 || begin >= end || end > sequence->capacity() || end > UINT32_MAX) {
    return base::InvalidArgument("transfer {}: tokens [{}, {}): the sequence has room for {}",
                                 id.ToString(), begin, end, sequence->capacity());
  }
  const int layers = sequence->layout().num_layers();
  auto transfer = std::make_shared<Incoming>();
  transfer->id = id;
  transfer->begin = begin;
  transfer->end = end;
  transfer->on_progress = std::move(on_progress);
  transfer->on_complete = std::move(on_complete);
  transfer->layers_left = layers;
  transfer->sequence = std::move(sequence);
  base::MutexLock lock(mutex_);
  if (transfers_.contains(id)) {
    return base::AlreadyExists("transfer {} is being received already", id.ToString());
  }
  for (int layer = 0; layer < layers; ++layer) {
    const int64_t local_until = transfer->sequence->FirstNotLocal(layer, begin, end);
    if (local_until == end) {
      return base::FailedPrecondition("transfer {}: layer {}: tokens [{}, {}) are local already",
                                      id.ToString(), layer, begin, end);
    }
    transfer->local_until.push_back(local_until);
  }
  for (int layer = 0; layer < layers; ++layer) transfer->sequence->MarkRemote(layer, begin, end);
  transfers_.emplace(id, std::move(transfer));
  return absl::OkStatus();
}

void ReceiverImpl::End(const base::TransferId& id) {
  std::shared_ptr<Incoming> transfer;  // let go without the lock
  std::shared_ptr<kv::KvSequence> sequence;
  base::MutexLock lock(mutex_);
  const auto it = transfers_.find(id);
  if (it == transfers_.end()) return;
  transfer = std::move(it->second);
  transfers_.erase(it);
  transfer->ended = true;
  sequence = std::move(transfer->sequence);
}

std::vector<LayerRange> ReceiverImpl::Missing(const base::TransferId& id) const {
  base::MutexLock lock(mutex_);
  std::vector<LayerRange> missing;
  const auto it = transfers_.find(id);
  if (it == transfers_.end()) return missing;
  const Incoming& transfer = *it->second;
  const int layers = static_cast<int>(transfer.local_until.size());
  for (int layer = 0; layer < layers; ++layer) {
    LayerRange run{.layer = layer};
    for (int64_t token = transfer.local_until[layer]; token < transfer.end; ++token) {
      if (transfer.sequence->AllLocal(layer, token, token + 1)) continue;
      if (run.end != token || run.begin == run.end) {
        if (run.begin < run.end) missing.push_back(run);
        run.begin = token;
      }
      run.end = token + 1;
    }
    if (run.begin < run.end) missing.push_back(run);
  }
  return missing;
}

ReceiverStats ReceiverImpl::stats(const base::TransferId& id) const {
  base::MutexLock lock(mutex_);
  const auto it = transfers_.find(id);
  return it == transfers_.end() ? ReceiverStats{} : it->second->stats;
}

int64_t ReceiverImpl::active() const {
  base::MutexLock lock(mutex_);
  return static_cast<int64_t>(transfers_.size());
}

absl::Status ReceiverImpl::CheckHead(const WireHead& head, Refusal* refusal) const {
  if (head.receiver_incarnation != options_.own_incarnation ||
      head.sender_incarnation != options_.peer_incarnation) {
    *refusal = Refusal::kOldIncarnation;
    return base::FailedPrecondition("incarnations {:x} to {:x}: this pairing is {:x} to {:x}",
                                    head.sender_incarnation, head.receiver_incarnation,
                                    options_.peer_incarnation, options_.own_incarnation);
  }
  if (options_.require_checksum && (head.flags & kFlagChecksum) == 0) {
    *refusal = Refusal::kMalformed;
    return base::InvalidArgument("transfer {}: a message without checksum",
                                 head.transfer_id.ToString());
  }
  return absl::OkStatus();
}

absl::Status ReceiverImpl::CheckPlace(const UnderWay& message, uint64_t payload_bytes,
                                      Refusal* refusal) {
  const WireHead& head = message.head;
  Incoming& transfer = *message.transfer;
  const kv::KvLayout& layout = message.sequence->layout();
  *refusal = Refusal::kOutOfRange;
  if (head.layer >= static_cast<uint32_t>(layout.num_layers()) ||
      head.token_begin < transfer.begin || head.token_end > transfer.end) {
    return base::OutOfRange("transfer {}: layer {} of {}, tokens [{}, {}) of [{}, {})",
                            transfer.id.ToString(), head.layer, layout.num_layers(),
                            head.token_begin, head.token_end, transfer.begin, transfer.end);
  }
  const LayerRange range = message.range();
  const uint64_t want =
      static_cast<uint64_t>((range.end - range.begin) * layout.TokenBytes(range.layer));
  if (head.payload_bytes != want || payload_bytes != want) {
    return base::OutOfRange("transfer {}: layer {}, tokens [{}, {}): want {} bytes, came {}",
                            transfer.id.ToString(), range.layer, range.begin, range.end, want,
                            payload_bytes);
  }
  *refusal = Refusal::kDuplicate;
  // A reader may be at any local token already, so that not one may be written again. And never
  // two writers.
  bool taken = std::any_of(under_way_.begin(), under_way_.end(),
                           [&](const auto& other) { return SameBytes(*other, message); });
  for (int64_t token = range.begin; token < range.end && !taken; ++token) {
    taken = message.sequence->AllLocal(range.layer, token, token + 1);
  }
  if (!taken) return absl::OkStatus();
  transfer.stats.duplicate_bytes += payload_bytes;
  return base::AlreadyExists("transfer {}: layer {}, tokens [{}, {}): here already, or on the way",
                             transfer.id.ToString(), range.layer, range.begin, range.end);
}

absl::StatusOr<std::shared_ptr<UnderWay>> ReceiverImpl::Admit(const WireHead& head,
                                                              uint64_t payload_bytes,
                                                              Refusal* refusal) {
  RETURN_IF_ERROR(CheckHead(head, refusal));
  base::MutexLock lock(mutex_);
  const auto it = transfers_.find(head.transfer_id);
  if (it == transfers_.end()) {
    *refusal = Refusal::kUnknownTransfer;
    return base::NotFound("transfer {}: none", head.transfer_id.ToString());
  }
  auto message = std::make_shared<UnderWay>(
      UnderWay{.transfer = it->second, .sequence = it->second->sequence, .head = head});
  RETURN_IF_ERROR(CheckPlace(*message, payload_bytes, refusal));
  under_way_.push_back(message);
  return message;
}

absl::StatusOr<Placement> ReceiverImpl::OnHead(Lane /*lane*/, std::span<const std::byte> bytes,
                                               uint64_t payload_bytes) {
  const absl::StatusOr<WireHead> head = DecodeWireHead(bytes);
  if (!head.ok()) return Refuse(Refusal::kMalformed, payload_bytes, head.status());
  Refusal refusal = Refusal::kMalformed;
  const auto message = Admit(*head, payload_bytes, &refusal);
  if (!message.ok()) return Refuse(refusal, payload_bytes, message.status());
  const LayerRange range = (*message)->range();
  return Placement{.segments = (*message)->sequence->Segments(range.layer, range.begin, range.end),
                   .owner = *message};
}

void ReceiverImpl::Advance(const std::shared_ptr<Incoming>& transfer, int layer,
                           Callbacks* callbacks) {
  if (layer >= static_cast<int>(transfer->local_until.size())) return;
  int64_t& until = transfer->local_until[layer];
  if (until == transfer->end) return;
  until = transfer->sequence->FirstNotLocal(layer, until, transfer->end);
  if (until < transfer->end) return;
  const bool complete = --transfer->layers_left == 0;
  callbacks->push_back({.transfer = transfer, .layer = layer, .complete = complete});
}

void ReceiverImpl::Accept(const UnderWay& message, Callbacks* callbacks) {
  const LayerRange range = message.range();
  message.sequence->MarkLocal(range.layer, range.begin, range.end);
  message.transfer->stats.bytes += message.head.payload_bytes;
  message.transfer->stats.bytes_by_path[message.head.path] += message.head.payload_bytes;
  // Others may share the pages.
  for (const auto& [id, transfer] : transfers_) Advance(transfer, range.layer, callbacks);
}

void ReceiverImpl::OnPayload(Lane /*lane*/, std::span<const std::byte> /*bytes*/,
                             Placement placement) {
  const auto message = std::static_pointer_cast<UnderWay>(placement.owner);
  const bool intact = ChecksumMatches(message->head, placement);
  Callbacks callbacks;
  bool damaged = false;
  {
    base::MutexLock lock(mutex_);
    std::erase(under_way_, message);
    if (!message->transfer->ended) {
      if (intact) {
        Accept(*message, &callbacks);
      } else {
        ++message->transfer->stats.corrupt_messages;
        damaged = true;
      }
    }
  }
  if (!intact && events_.on_refused) {
    events_.on_refused(Refusal::kCorrupt, message->head.payload_bytes);
  }
  if (damaged && events_.on_damaged) {
    events_.on_damaged(message->head.transfer_id, message->range());
  }
  for (const LayerDone& done : callbacks) {
    if (!Ended(*done.transfer) && done.transfer->on_progress) {
      done.transfer->on_progress(done.layer);
    }
    if (done.complete && !Ended(*done.transfer) && done.transfer->on_complete) {
      done.transfer->on_complete();
    }
  }
}

void ReceiverImpl::OnClosed(const absl::Status& reason) {
  std::vector<std::shared_ptr<UnderWay>> under_way;  // let go without the lock
  {
    base::MutexLock lock(mutex_);
    under_way.swap(under_way_);
  }
  if (events_.on_closed) events_.on_closed(reason);
}

}  // namespace

std::string_view RefusalName(Refusal refusal) {
  switch (refusal) {
    case Refusal::kMalformed:
      return "malformed";
    case Refusal::kOldIncarnation:
      return "old_incarnation";
    case Refusal::kUnknownTransfer:
      return "unknown_transfer";
    case Refusal::kOutOfRange:
      return "out_of_range";
    case Refusal::kDuplicate:
      return "duplicate";
    case Refusal::kCorrupt:
      return "corrupt";
  }
  return "unknown";
}

std::shared_ptr<TransferReceiver> TransferReceiver::Create(Options options, Events events) {
  return std::make_shared<ReceiverImpl>(options, std::move(events));
}

}  // namespace smartgen::transfer
