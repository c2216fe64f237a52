#include <algorithm>
#include <utility>

#include "common/base/hash.h"
#include "common/base/mutex.h"
#include "common/transfer/arrival.h"
#include "common/transfer/blocks.h"
#include "common/transfer/metadata_ledger.h"
#include "common/transfer/transfer.h"

namespace smartgen::transfer {
namespace {

using channel::Lane;
using channel::Placement;

// Of a message that repeats more than this the missing rest is not worth the memory: it is refused,
// and Missing finds the rest.
constexpr uint64_t kMaxScratchBytes = 64 << 20;

// What a transfer waits for. Guarded by the receiver's mutex, but for the spec's callbacks.
struct Incoming {
  explicit Incoming(ReceiveSpec given)
      : spec(std::move(given)),
        metadata(spec.sequence->layout().num_layers(), spec.sequence->capacity()) {}
  ReceiveSpec spec;         // the sequence is null after End
  MetadataLedger metadata;  // what has come
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
  WireHead head;
  std::unique_ptr<Arrival> arrival;  // KV
  std::vector<std::byte> bytes;      // or what is handed on as it is
  base::TimePoint begun{};           // if somebody watches the transfer
};

// Under the receiver's mutex.
void CountCorrupt(const UnderWay& message) {
  ReceiverStats& stats = message.transfer->stats;
  ++stats.corrupt_messages;
  if (message.head.path != Path::kSpeculative) return;
  stats.corrupt_speculative_bytes +=
      message.head.payload_bytes - message.arrival->duplicate_bytes();
}

void TellMoved(const UnderWay& message, uint64_t bytes, base::TimePoint now) {
  const WireHead& head = message.head;
  MovedMessage moved{.path = head.path,
                     .layer = static_cast<int>(head.layer),
                     .first_token = head.token_begin,
                     .tokens = static_cast<int64_t>(head.token_end) - head.token_begin,
                     .step = head.step,
                     .bytes = bytes,
                     .begun = message.begun,
                     .ended = now};
  if (!head.ranges.empty()) moved.first_token = head.ranges.front().begin;
  for (const WireRange& range : head.ranges) moved.tokens += range.count;
  message.transfer->spec.on_message(moved);
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

  absl::Status Begin(ReceiveSpec spec) override;
  ReceiverStats End(const base::TransferId& id) override;
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

  void Count(Refusal refusal, uint64_t bytes) const {
    if (events_.on_refused) events_.on_refused(refusal, bytes);
  }
  absl::Status CheckHead(const WireHead& head, Refusal* refusal) const;
  // Says in `refusal` what is wrong with a message that does not fit its transfer.
  static absl::Status CheckPlace(const Incoming& transfer, const WireHead& head,
                                 uint64_t payload_bytes, Refusal* refusal);
  absl::StatusOr<std::shared_ptr<UnderWay>> Admit(WireHead head, uint64_t payload_bytes,
                                                  Refusal* refusal);
  absl::Status AdmitKv(UnderWay& message, Refusal* refusal) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Accept(const UnderWay& message, Callbacks* callbacks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void HandOn(Lane lane, UnderWay& message, const Callbacks& callbacks);
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

absl::Status ReceiverImpl::Begin(ReceiveSpec spec) {
  const auto& [begin, end] = std::pair(spec.begin, spec.end);
  if (begin < 0 || begin >= end || end > spec.sequence->capacity() || end > UINT32_MAX) {
    return base::InvalidArgument("transfer {}: tokens [{}, {}): the sequence has room for {}",
                                 spec.id.ToString(), begin, end, spec.sequence->capacity());
  }
  const int layers = spec.sequence->layout().num_layers();
  auto transfer = std::make_shared<Incoming>(std::move(spec));
  transfer->layers_left = layers;
  const base::TransferId& id = transfer->spec.id;
  kv::KvSequence& sequence = *transfer->spec.sequence;
  base::MutexLock lock(mutex_);
  if (transfers_.contains(id)) {
    return base::AlreadyExists("transfer {} is being received already", id.ToString());
  }
  for (int layer = 0; layer < layers; ++layer) {
    const int64_t first = TravelBegin(sequence.layout().layers[layer].window, begin, end);
    const int64_t local_until = sequence.FirstNotLocal(layer, first, end);
    if (local_until == end) {
      return base::FailedPrecondition("transfer {}: layer {}: tokens [{}, {}) are local already",
                                      id.ToString(), layer, first, end);
    }
    transfer->local_until.push_back(local_until);
  }
  for (int layer = 0; layer < layers; ++layer) {
    sequence.MarkRemote(layer, TravelBegin(sequence.layout().layers[layer].window, begin, end),
                        end);
  }
  transfers_.emplace(id, transfer);
  return absl::OkStatus();
}

ReceiverStats ReceiverImpl::End(const base::TransferId& id) {
  std::shared_ptr<Incoming> transfer;  // let go without the lock
  std::shared_ptr<kv::KvSequence> sequence;
  base::MutexLock lock(mutex_);
  const auto it = transfers_.find(id);
  if (it == transfers_.end()) return {};
  transfer = std::move(it->second);
  transfers_.erase(it);
  transfer->ended = true;
  sequence = std::move(transfer->spec.sequence);
  return transfer->stats;
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
    for (int64_t token = transfer.local_until[layer]; token < transfer.spec.end; ++token) {
      if (transfer.spec.sequence->AllLocal(layer, token, token + 1)) continue;
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

absl::Status ReceiverImpl::CheckPlace(const Incoming& transfer, const WireHead& head,
                                      uint64_t payload_bytes, Refusal* refusal) {
  const ReceiveSpec& spec = transfer.spec;
  const kv::KvLayout& layout = spec.sequence->layout();
  *refusal = Refusal::kOutOfRange;
  if (head.layer >= static_cast<uint32_t>(layout.num_layers())) {
    return base::OutOfRange("transfer {}: layer {} of {}", spec.id.ToString(), head.layer,
                            layout.num_layers());
  }
  const int layer = static_cast<int>(head.layer);
  const int heads = layout.layers[layer].kv_heads;
  uint64_t want = 0;
  for (const WireRange& range : head.ranges) {
    if (range.begin < spec.begin || range.end() > spec.sequence->capacity() ||
        range.first_head + range.head_count > heads) {
      return base::OutOfRange(
          "transfer {}: layer {}, tokens [{}, {}) of [{}, {}), KV heads from {} on: {} of {}",
          spec.id.ToString(), layer, range.begin, range.end(), spec.begin,
          spec.sequence->capacity(), range.first_head, range.head_count, heads);
    }
    const int count = range.head_count == 0 ? heads : range.head_count;
    want += static_cast<uint64_t>(range.count * (layout.TokenBytes(layer) / heads) * count);
  }
  if (IsOpaque(head.path)) want = head.payload_bytes;
  if (head.payload_bytes != want || payload_bytes != want) {
    return base::OutOfRange("transfer {}: layer {}, {} ranges: want {} bytes, came {}",
                            spec.id.ToString(), layer, head.ranges.size(), want, payload_bytes);
  }
  return absl::OkStatus();
}

absl::Status ReceiverImpl::AdmitKv(UnderWay& message, Refusal* refusal) {
  Incoming& transfer = *message.transfer;
  std::vector<const Arrival*> others;
  for (const auto& other : under_way_) {
    if (other->arrival != nullptr) others.push_back(other->arrival.get());
  }
  message.arrival = std::make_unique<Arrival>(
      transfer.spec.sequence, static_cast<int>(message.head.layer), message.head.ranges, others);
  const uint64_t duplicate = message.arrival->duplicate_bytes();
  if (duplicate < message.head.payload_bytes && duplicate <= kMaxScratchBytes) {
    return absl::OkStatus();
  }
  *refusal = Refusal::kDuplicate;
  transfer.stats.duplicate_bytes += duplicate;
  return base::AlreadyExists(
      "transfer {}: layer {}: {} of {} bytes are here already, or on the way",
      transfer.spec.id.ToString(), message.head.layer, duplicate, message.head.payload_bytes);
}

absl::StatusOr<std::shared_ptr<UnderWay>> ReceiverImpl::Admit(WireHead head, uint64_t payload_bytes,
                                                              Refusal* refusal) {
  RETURN_IF_ERROR(CheckHead(head, refusal));
  base::MutexLock lock(mutex_);
  const auto it = transfers_.find(head.transfer_id);
  if (it == transfers_.end()) {
    *refusal = Refusal::kUnknownTransfer;
    return base::NotFound("transfer {}: none", head.transfer_id.ToString());
  }
  RETURN_IF_ERROR(CheckPlace(*it->second, head, payload_bytes, refusal));
  auto message = std::make_shared<UnderWay>();
  message->transfer = it->second;
  message->head = std::move(head);
  if (message->transfer->spec.on_message) message->begun = options_.clock->Now();
  if (IsOpaque(message->head.path)) {
    message->bytes.resize(payload_bytes);
  } else {
    RETURN_IF_ERROR(AdmitKv(*message, refusal));
  }
  under_way_.push_back(message);
  return message;
}

absl::StatusOr<Placement> ReceiverImpl::OnHead(Lane /*lane*/, std::span<const std::byte> bytes,
                                               uint64_t payload_bytes) {
  absl::StatusOr<WireHead> head = DecodeWireHead(bytes);
  Refusal refusal = Refusal::kMalformed;
  if (!head.ok()) {
    Count(refusal, payload_bytes);
    return head.status();
  }
  const auto message = Admit(*std::move(head), payload_bytes, &refusal);
  if (!message.ok()) {
    Count(refusal, payload_bytes);
    return message.status();
  }
  Placement placement{.owner = *message};
  if ((*message)->arrival == nullptr) {
    placement.segments.emplace_back((*message)->bytes);
    return placement;
  }
  placement.segments = (*message)->arrival->Segments();
  if (const uint64_t duplicate = (*message)->arrival->duplicate_bytes(); duplicate > 0) {
    Count(Refusal::kDuplicate, duplicate);
  }
  return placement;
}

void ReceiverImpl::Advance(const std::shared_ptr<Incoming>& transfer, int layer,
                           Callbacks* callbacks) {
  if (layer >= static_cast<int>(transfer->local_until.size())) return;
  int64_t& until = transfer->local_until[layer];
  const int64_t end = transfer->spec.end;
  if (until == end) return;
  until = transfer->spec.sequence->FirstNotLocal(layer, until, end);
  if (until < end) return;
  const bool complete = --transfer->layers_left == 0;
  callbacks->push_back({.transfer = transfer, .layer = layer, .complete = complete});
}

void ReceiverImpl::Accept(const UnderWay& message, Callbacks* callbacks) {
  ReceiverStats& stats = message.transfer->stats;
  uint64_t bytes = message.head.payload_bytes;
  if (message.arrival != nullptr) {
    message.arrival->Mark();
    stats.duplicate_bytes += message.arrival->duplicate_bytes();
    bytes -= message.arrival->duplicate_bytes();
    // Others may share the pages.
    for (const auto& [id, transfer] : transfers_) {
      Advance(transfer, message.arrival->layer(), callbacks);
    }
  } else if (message.head.path == Path::kMetadata) {
    // Handed on all the same: who has it leaves it alone, and who lost it asked for it.
    const WireHead& head = message.head;
    const uint64_t duplicate =
        message.transfer->metadata.Note(static_cast<int>(head.layer), head.token_begin,
                                        head.token_end, (head.flags & kFlagHeader) != 0, bytes);
    stats.duplicate_bytes += duplicate;
    bytes -= duplicate;
  }
  stats.bytes += bytes;
  if (bytes > 0) stats.bytes_by_path[message.head.path] += bytes;
  if (message.transfer->spec.on_message) TellMoved(message, bytes, options_.clock->Now());
}

void ReceiverImpl::HandOn(Lane lane, UnderWay& message, const Callbacks& callbacks) {
  const ReceiveSpec& spec = message.transfer->spec;
  const int layer = static_cast<int>(message.head.layer);
  if (message.head.path == Path::kHandover) {
    if (spec.on_reply) spec.on_reply(message.head.step, layer, std::move(message.bytes));
  } else if (message.head.path == Path::kMetadata) {
    if (spec.on_metadata) {
      spec.on_metadata(layer, message.head.token_begin, message.head.token_end,
                       (message.head.flags & kFlagHeader) != 0, std::move(message.bytes));
    }
  } else if (lane == Lane::kOnDemand && spec.on_arrival) {
    spec.on_arrival();
  }
  for (const LayerDone& done : callbacks) {
    const ReceiveSpec& of = done.transfer->spec;
    if (!Ended(*done.transfer) && of.on_layer) of.on_layer(done.layer);
    if (done.complete && !Ended(*done.transfer) && of.on_complete) of.on_complete();
  }
}

void ReceiverImpl::OnPayload(Lane lane, std::span<const std::byte> /*bytes*/, Placement placement) {
  const auto message = std::static_pointer_cast<UnderWay>(placement.owner);
  const bool intact = ChecksumMatches(message->head, placement);
  Callbacks callbacks;
  bool live = false;
  {
    base::MutexLock lock(mutex_);
    std::erase(under_way_, message);
    live = !message->transfer->ended;
    if (live && intact) Accept(*message, &callbacks);
    if (live && !intact) CountCorrupt(*message);
  }
  if (intact) {
    if (live) HandOn(lane, *message, callbacks);
    return;
  }
  Count(Refusal::kCorrupt, message->head.payload_bytes);
  if (live && message->arrival != nullptr && events_.on_damaged) {
    events_.on_damaged(message->head.transfer_id, message->arrival->ranges());
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
