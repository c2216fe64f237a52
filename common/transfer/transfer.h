// Both ends of a KV transfer over a Channel. TransferSender stands in prefilld, TransferReceiver in
// decoded; each serves all transfers of one pairing. What travels beside the bytes (fetch requests,
// credits, acknowledgements, aborts) goes over the control stream, which the daemons own: see
// proto/transfer.proto.
//
// Thread-safe. No call blocks.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/channel/channel.h"
#include "common/kv/remote_kv.h"
#include "common/kv/sequence.h"
#include "common/transfer/plan.h"
#include "common/transfer/window.h"
#include "common/transfer/wire.h"

namespace smartgen::transfer {

// Tokens [begin, end) of a layer.
struct LayerRange {
  int layer = 0;
  int64_t begin = 0;
  int64_t end = 0;
  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

// One message that went or came, for whoever watches a transfer.
struct MovedMessage {
  Path path = Path::kFull;
  int layer = 0;
  int64_t first_token = 0;  // of KV and metadata
  int64_t tokens = 0;       // whole or some heads of them
  uint64_t step = 0;        // of an answer
  // As bytes_by_path counts them: re-sends (of what is sent) and duplicates (of what came) left
  // out.
  uint64_t bytes = 0;
  base::TimePoint begun;  // given to the channel; its head came
  base::TimePoint ended;  // handed to the network; placed and verified
};

struct SenderStats {
  uint64_t bytes = 0;  // payload handed to the network, re-sends included
  // Of these, what had been handed out before (Resend, Fetch again, Metadata once more).
  uint64_t resent_bytes = 0;
  uint64_t messages = 0;
  uint64_t segments = 0;
  // Re-sends left out: over the KV paths the sum is the prompt's KV, and what was born, when all is
  // sent.
  std::map<Path, uint64_t> bytes_by_path;
  bool failed = false;  // a message could not go out
};

// One transfer, as the prefill side plans it.
struct SendSpec {
  base::TransferId id;
  std::shared_ptr<kv::KvSequence> sequence;  // pinned until End
  // Prompt tokens that the other side lacks, in all layers. Of a layer with a sliding window those
  // that it does not show to the token at `end` stay here (TravelBegin).
  int64_t begin = 0;
  int64_t end = 0;
  bool full = false;  // the background's bytes count as Path::kFull
  // Blocks (over `end` tokens: relative blocks of the whole prompt), most important first. Blocks
  // that it does not name follow, layer by layer. Empty: layer-complete, the lowest layer first,
  // each from the first token on.
  std::vector<BlockId> order;
  int64_t pushed = -1;       // only so many of `order` may go before PromptDone (path 1); -1: all
  bool deliver_rest = true;  // false: what is beyond `pushed` goes only when fetched
  bool credits = false;      // after PromptDone the background needs Credit
  // Called once, without a lock: when every byte of [begin, end) in every layer has been handed to
  // the network, on whatever path, or with the reason why it cannot be (Cancelled after End). From
  // the channel's thread, but for a failure that a call of the sender finds: then from within it.
  std::function<void(const absl::Status&)> on_sent;
  // Called without a lock for each message that was handed to the network, from the channel's
  // thread; must not block. Empty: no clock is read for it.
  std::function<void(const MovedMessage&)> on_message;
};

// Orders all that one instance sends to another. Nothing of the background (paths full, proactive,
// speculative, and metadata) is in the channel beyond a small window (window.h): whenever there is
// room, the transfer that has had the least of the link since it had something to send is next, and
// of it the most important block that is ready and was not handed out. A block is ready when all
// of its tokens that travel are ready in that layer. What is on the on-demand lane (Fetch, Resend,
// Born, Reply) is given to the channel at once, in the order of the calls.
//
// An entry (layer, token, KV head) counts as sent when it is handed to a lane, and is never sent
// twice but by Resend and by Fetch with `again`.
class TransferSender {
 public:
  struct Options {
    uint64_t own_incarnation = 0;
    uint64_t peer_incarnation = 0;
    bool checksum = true;
    // The payload of a message, so that a checksum guards a bounded piece and lanes can take turns.
    int64_t max_message_bytes = 1 << 20;
    LinkWindow::Options window;
    const base::Clock* clock = base::Clock::Real();
  };
  TransferSender(std::shared_ptr<channel::Channel> channel, Options options);
  ~TransferSender();

  // AlreadyExists for an id in use, InvalidArgument for a range that is empty or beyond the
  // sequence, or an order that cannot be.
  absl::Status Begin(SendSpec spec);
  // In what follows: NotFound for a transfer that there is not (any more); the reason if it has
  // failed; InvalidArgument for what cannot be.

  // The prompt's KV of tokens [begin, end) of the layer is final. Tokens outside of the transfer's
  // range, and those that were ready before, are ignored.
  absl::Status LayerReady(const base::TransferId& id, const LayerRange& range);
  // Token 1 is made: path 1 ends, path 3 begins. Background bytes count as kSpeculative from now on
  // and go on that lane (but for `full`, and without `deliver_rest`: then they stay proactive).
  void PromptDone(const base::TransferId& id);
  // So many background bytes more may go after PromptDone. Counts from before it as well.
  void Credit(const base::TransferId& id, int64_t bytes);
  // A generated token's KV was born here in layers [layer_begin, layers). Layers of which every
  // earlier token was handed out send it at once, on the on-demand lane (kOnDemand); the others
  // when their turn comes: in the background, after the layer's earlier tokens. A token that was
  // born before is left out.
  absl::Status Born(const base::TransferId& id, int layer_begin, int64_t token);
  // Entries that a step needs now, on the on-demand lane. head -1: all heads. `again` false: what
  // was handed to a lane already is on its way and left out. Tokens that are not ready are left
  // out. ResourceExhausted if more is asked for than a transfer may have queued.
  absl::Status Fetch(const base::TransferId& id, int layer, std::span<const kv::HeadRange> ranges,
                     bool again);
  // Ranges that were damaged or lost, on the on-demand lane: what was handed out of them goes
  // again. The rest is left out: it comes in its turn, or by Fetch.
  absl::Status Resend(const base::TransferId& id, std::span<const LayerRange> ranges);
  // Selection metadata of a layer's tokens [begin, end), on the metadata lane; `header`: what comes
  // before them. 1 to kMaxOpaqueBytes bytes.
  absl::Status Metadata(const base::TransferId& id, int layer, int64_t begin, int64_t end,
                        bool header, std::vector<std::byte> bytes);
  // The answer to a split step or an attend, on the on-demand lane, after what Born put there. 1 to
  // kMaxOpaqueBytes bytes. `step` and `layer` are echoed.
  absl::Status Reply(const base::TransferId& id, uint64_t step, int layer,
                     std::vector<std::byte> bytes);
  // Reply will be called at about `at`: background that would not be through the link by then waits
  // for it, so that the answer has no queue before it. Until Reply or End; for an answer that is
  // late, until something happens 100 ms after `at`. A transfer that there is not is ignored.
  void ExpectReply(const base::TransferId& id, base::TimePoint at);
  // Nothing more is queued; what is queued and has not begun is dropped. Idempotent; the sequence
  // is let go when the last begun message is out. Returns what the transfer has sent in all
  // (nothing when it was ended before).
  SenderStats End(const base::TransferId& id);
  SenderStats stats(const base::TransferId& id) const;
  LinkEstimate link() const;
  // How long, since the sender began, the channel has had something of it to hand to the network.
  double busy_seconds() const;
  int64_t active() const;

 private:
  class Impl;  // shared with the messages under way, which may outlive this object
  const std::shared_ptr<Impl> impl_;
};

struct ReceiverStats {
  uint64_t bytes = 0;  // placed and verified, answers and metadata included
  // Came again though local, or on the way: drained. Of metadata: handed on, but not counted above.
  uint64_t duplicate_bytes = 0;
  uint64_t corrupt_messages = 0;
  uint64_t corrupt_speculative_bytes =
      0;  // of these, on that path: what comes for them is on demand
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

// One transfer, as the decode side expects it. The callbacks are called on the channel's thread,
// without a lock, and must not block; any may be empty.
struct ReceiveSpec {
  base::TransferId id;
  std::shared_ptr<kv::KvSequence> sequence;
  // Prompt tokens that will come, in every layer (they are marked remote); of a layer with a
  // sliding window those that it shows to the token at `end`. Beyond `end`, tokens that were born
  // on the other side are taken up to the sequence's capacity.
  int64_t begin = 0;
  int64_t end = 0;
  std::function<void(int layer)> on_layer;  // the prompt's tokens of the layer are all here; once
  std::function<void()> on_complete;        // of all layers; once
  // KV came on the on-demand lane (fetched entries, born tokens) and was marked.
  std::function<void()> on_arrival;
  std::function<void(uint64_t step, int layer, std::vector<std::byte> bytes)> on_reply;
  std::function<void(int layer, int64_t begin, int64_t end, bool header,
                     std::vector<std::byte> bytes)>
      on_metadata;
  // For each message that counts in bytes_by_path, in the same moment: under the receiver's lock,
  // so that it must not call back. Empty: no clock is read for it.
  std::function<void(const MovedMessage&)> on_message;
};

// Takes apart what comes. An entry (layer, token, KV head) that is local is never written again: of
// a message that has such entries the others are placed, and these drained beside (counted).
class TransferReceiver : public channel::Receiver {
 public:
  struct Options {
    uint64_t own_incarnation = 0;
    uint64_t peer_incarnation = 0;
    bool require_checksum = true;
    const base::Clock* clock = base::Clock::Real();
  };
  struct Events {
    // All three are called on the I/O thread and must not block.
    std::function<void(Refusal refusal, uint64_t bytes)> on_refused;
    // A message of a live transfer was corrupt: ask for its ranges again (Fetch on the control
    // stream). Answers and metadata have none: who waits for them has a deadline.
    std::function<void(const base::TransferId& id, std::span<const LayerRange> ranges)> on_damaged;
    std::function<void(const absl::Status& reason)> on_closed;
  };
  static std::shared_ptr<TransferReceiver> Create(Options options, Events events);

  // AlreadyExists for an id in use, InvalidArgument for a range that is empty or beyond the
  // sequence, FailedPrecondition if a layer is all local already (it would never be reported).
  virtual absl::Status Begin(ReceiveSpec spec) = 0;
  // After this returns no byte is written for `id` any more, but for a payload under way, which
  // pins the sequence until it has drained and is not marked local. A callback that the I/O thread
  // has begun may still be running; none begins. Late messages are refused and counted. Idempotent.
  // What was counted until then; nothing for a transfer that there is not.
  virtual ReceiverStats End(const base::TransferId& id) = 0;
  // Ranges that are not local yet, merged: what to ask for when a transfer stalls.
  virtual std::vector<LayerRange> Missing(const base::TransferId& id) const = 0;
  virtual ReceiverStats stats(const base::TransferId& id) const = 0;
  virtual int64_t active() const = 0;
};

// KV of prompt tokens [begin, end) that travels.
int64_t TravelBytes(const kv::KvLayout& layout, int64_t begin, int64_t end);

}  // namespace smartgen::transfer
