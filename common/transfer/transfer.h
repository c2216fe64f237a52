// Both ends of a KV transfer over a Channel. TransferSender stands in prefilld, TransferReceiver in
// decoded; each serves all transfers of one pairing. What travels beside the bytes (fetch requests,
// acknowledgements, aborts) goes over the control stream, which the daemons own: see
// proto/transfer.proto.
//
// Thread-safe. No call blocks.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/channel/channel.h"
#include "common/kv/sequence.h"
#include "common/transfer/wire.h"

namespace smartgen::transfer {

// Tokens [begin, end) of a layer.
struct LayerRange {
  int layer = 0;
  int64_t begin = 0;
  int64_t end = 0;
  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

struct SenderStats {
  uint64_t bytes = 0;         // payload handed to the network, re-sends included
  uint64_t resent_bytes = 0;  // of these, by Resend
  uint64_t messages = 0;
  uint64_t segments = 0;
  bool failed = false;  // a message could not go out
};

class TransferSender {
 public:
  struct Options {
    uint64_t own_incarnation = 0;
    uint64_t peer_incarnation = 0;
    bool checksum = true;
    // A layer's range is cut into messages of at most this payload, so that a checksum guards a
    // bounded piece and lanes can take turns.
    int64_t max_message_bytes = 1 << 20;
  };
  TransferSender(std::shared_ptr<channel::Channel> channel, Options options);
  ~TransferSender();

  // The decode side lacks tokens [begin, end) of every layer. `sequence` is pinned while messages
  // are queued. AlreadyExists for an id in use, InvalidArgument for a range that is empty or beyond
  // the sequence. `on_sent` is called once, without a lock: when every message of every layer's
  // range has been handed to the network, or with the reason why it cannot be (Cancelled after
  // End). From the I/O thread, but for a failure that End, LayerReady or Resend finds: then from
  // within these.
  absl::Status Begin(const base::TransferId& id, std::shared_ptr<kv::KvSequence> sequence,
                     int64_t begin, int64_t end, std::function<void(const absl::Status&)> on_sent);
  // The layer's KV of tokens [begin, end) is final: queue what the other side lacks of it. Tokens
  // outside of the transfer's range, and those queued before, are ignored. NotFound after End; the
  // reason if the transfer has failed.
  absl::Status LayerReady(const base::TransferId& id, Path path, const LayerRange& range);
  // The other side asks again for ranges that were damaged or lost, on the on-demand lane. Tokens
  // that are not ready yet are left out: they come by LayerReady. ResourceExhausted if more is
  // asked for than a transfer may have queued.
  absl::Status Resend(const base::TransferId& id, std::span<const LayerRange> ranges);
  // Nothing more is queued; what is queued and has not begun is dropped. Idempotent; the sequence
  // is let go when the last begun message is out.
  void End(const base::TransferId& id);
  SenderStats stats(const base::TransferId& id) const;
  int64_t active() const;

 private:
  class Impl;  // shared with the messages under way, which may outlive this object
  const std::shared_ptr<Impl> impl_;
};

struct ReceiverStats {
  uint64_t bytes = 0;            // placed and verified
  uint64_t duplicate_bytes = 0;  // came again though local: refused, drained
  uint64_t corrupt_messages = 0;
  std::map<Path, uint64_t> bytes_by_path;
};

// Reasons why a message was refused; each is counted by the daemon.
enum class Refusal {
  kMalformed,
  kOldIncarnation,
  kUnknownTransfer,
  kOutOfRange,
  kDuplicate,
  kCorrupt
};
std::string_view RefusalName(Refusal refusal);

class TransferReceiver : public channel::Receiver {
 public:
  struct Options {
    uint64_t own_incarnation = 0;
    uint64_t peer_incarnation = 0;
    bool require_checksum = true;
  };
  struct Events {
    // All three are called on the I/O thread and must not block.
    std::function<void(Refusal refusal, uint64_t bytes)> on_refused;
    // A message of a live transfer was corrupt: ask for the range again (Fetch on the control
    // stream).
    std::function<void(const base::TransferId& id, const LayerRange& range)> on_damaged;
    std::function<void(const absl::Status& reason)> on_closed;
  };
  static std::shared_ptr<TransferReceiver> Create(Options options, Events events);

  // Tokens [begin, end) of every layer of `sequence` will come (they are marked remote).
  // `on_progress` is called once for each layer after it became all local within the range,
  // `on_complete` once when all layers are; both from the I/O thread, without a lock.
  // AlreadyExists for an id in use, InvalidArgument for a range that is empty or beyond the
  // sequence, FailedPrecondition if a layer is all local already (it would never be reported).
  virtual absl::Status Begin(const base::TransferId& id, std::shared_ptr<kv::KvSequence> sequence,
                             int64_t begin, int64_t end, std::function<void(int layer)> on_progress,
                             std::function<void()> on_complete) = 0;
  // After this returns no byte is written for `id` any more, but for a payload under way, which
  // pins the sequence until it has drained and is not marked local. A callback that the I/O thread
  // has begun may still be running; none begins. Late messages are refused and counted. Idempotent.
  virtual void End(const base::TransferId& id) = 0;
  // Ranges that are not local yet, merged: what to ask for when a transfer stalls.
  virtual std::vector<LayerRange> Missing(const base::TransferId& id) const = 0;
  virtual ReceiverStats stats(const base::TransferId& id) const = 0;
  virtual int64_t active() const = 0;
};

}  // namespace smartgen::transfer
