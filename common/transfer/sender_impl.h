// The inside of TransferSender: what sender.cc (the calls) and sender_pump.cc (the scheduler)
// share.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <vector>

#include "common/base/mutex.h"
#include "common/transfer/metadata_ledger.h"
#include "common/transfer/transfer.h"
#include "common/transfer/transfer_state.h"

namespace smartgen::transfer {

// A message (Item) is in a lane's backlog until the channel has taken it (which may refuse while
// the lane is full), then posted until its on_done. Background items are made only when there is
// room in the window, so that the backlog holds little of them. Segments and checksum are made when
// an item is posted. One thread at a time posts ("pumps"), without the lock, because the channel
// must not be called under it.
class TransferSender::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(std::shared_ptr<channel::Channel> channel, Options options);

  absl::Status Begin(SendSpec spec);
  absl::Status LayerReady(const base::TransferId& id, const LayerRange& range);
  void PromptDone(const base::TransferId& id);
  void Credit(const base::TransferId& id, int64_t bytes);
  absl::Status Born(const base::TransferId& id, int layer_begin, int64_t token);
  absl::Status Fetch(const base::TransferId& id, int layer, std::span<const kv::HeadRange> ranges,
                     bool again);
  absl::Status Resend(const base::TransferId& id, std::span<const LayerRange> ranges);
  absl::Status Metadata(const base::TransferId& id, int layer, int64_t begin, int64_t end,
                        bool header, std::vector<std::byte> bytes);
  absl::Status Reply(const base::TransferId& id, uint64_t step, int layer,
                     std::vector<std::byte> bytes);
  void ExpectReply(const base::TransferId& id, base::TimePoint at);
  SenderStats End(const base::TransferId& id);
  // The sender is gone: ends all, and lets the channel go. Messages under way keep this object, but
  // not the channel, which may therefore end (and let go of what messages pin) before the memory
  // does.
  void Detach();
  SenderStats Stats(const base::TransferId& id) const;
  LinkEstimate Link() const;
  double BusySeconds() const;
  int64_t Active() const;

 private:
  struct Transfer {
    Transfer(const kv::KvLayout& layout, TransferState::Options options)
        : state(layout, std::move(options)), metadata(layout.num_layers(), layout.token_capacity) {}
    base::TransferId id;
    uint64_t tag = 0;
    int64_t begin = 0;
    int64_t end = 0;
    bool full = false;
    bool deliver_rest = true;
    bool credits = false;
    std::function<void(const MovedMessage&)> on_message;
    // All below: guarded by the mutex.
    TransferState state;
    MetadataLedger metadata;                           // what was given to the lane
    std::shared_ptr<kv::KvSequence> sequence;          // null after End
    std::function<void(const absl::Status&)> on_sent;  // null when it was called
    int64_t credit = 0;
    int64_t unsent_bytes = 0;       // of the prompt's, not yet handed to the network
    int64_t outstanding = 0;        // items in a backlog or posted
    int64_t outstanding_bytes = 0;  // of them, but for the background's
    uint64_t next_sequence = 1;
    bool runnable = false;  // in runnable_
    // What it has had of the link: background bytes, from where the others stood when it began to
    // have something to send.
    uint64_t virtual_time = 0;
    absl::Status failure;
    SenderStats stats;
  };
  struct Item {
    std::shared_ptr<Transfer> transfer;
    channel::Lane lane = channel::Lane::kProactive;
    Path path = Path::kFull;
    Take take;                                      // KV
    std::shared_ptr<std::vector<std::byte>> bytes;  // or what no transfer looks into
    uint64_t step = 0;
    int64_t begin = 0;
    int64_t end = 0;
    bool header = false;
    bool counted = false;  // in the transfer's statistics
    base::TimePoint posted_at{};
    int64_t payload_bytes() const {
      return bytes != nullptr ? static_cast<int64_t>(bytes->size()) : take.bytes;
    }
  };
  using ItemPtr = std::shared_ptr<Item>;
  // The channel, for the time of one call; null after Detach, which waits for the calls begun.
  class UseChannel {
   public:
    explicit UseChannel(Impl* impl);
    ~UseChannel();
    UseChannel(const UseChannel&) = delete;
    UseChannel& operator=(const UseChannel&) = delete;
    channel::Channel* operator->() const { return channel_.get(); }
    explicit operator bool() const { return channel_ != nullptr; }

   private:
    Impl* const impl_;
    std::shared_ptr<channel::Channel> channel_;
  };
  // By what it has had; the tag makes it total.
  using RunnableKey = std::tuple<uint64_t, uint64_t, Transfer*>;

  // sender.cc
  absl::StatusOr<std::shared_ptr<Transfer>> Find(const base::TransferId& id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Not OK if the range is none of the transfer's layers and tokens >= 0.
  static absl::Status CheckRange(const Transfer& transfer, const LayerRange& range);
  static absl::Status CheckFetch(const Transfer& transfer, int layer,
                                 std::span<const kv::HeadRange> ranges);
  static absl::Status CheckRoom(const Transfer& transfer, int64_t bytes);
  absl::Status QueueOpaque(Item item, const base::TransferId& id);
  void QueueOnDemand(const std::shared_ptr<Transfer>& transfer, std::vector<Take> takes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Queue(Item item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // sender_pump.cc
  // Posts what may go. `by_channel`: on the channel's thread, in on_done.
  void Pump(bool by_channel = false);
  // After anything that may have changed whether the transfer has background to send.
  void UpdateRunnable(Transfer& transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The next item that the channel may take; null: none. Without `background`: only on demand.
  ItemPtr Next(bool background) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A message more, or less, is posted on the lane.
  void OnPosted(size_t lane, int count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ItemPtr TakeFrom(channel::Lane lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Room in the window for so many bytes; one message, of whatever size, may always be under way.
  bool Fits(int64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnWindowed(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // So many bytes of the background would stand before an answer that is expected.
  bool WouldDelayReply(int64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes background items of the transfer whose turn it is.
  void GatherBackground() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Post(const ItemPtr& item, std::shared_ptr<kv::KvSequence> sequence, uint64_t number);
  channel::OutMessage MakeMessage(const Item& item, std::shared_ptr<kv::KvSequence> sequence,
                                  uint64_t number) const;
  // `done_before`: how many of the lane's messages had been done before Send was called.
  void OnRefused(const ItemPtr& item, uint64_t segments, int64_t done_before,
                 const absl::Status& status);
  // Statistics count what the channel has taken, before it has: whoever ends a transfer because all
  // has come must find all of it counted.
  void Count(Item& item, uint64_t segments) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Uncount(Item& item, uint64_t segments) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnDone(Item& item, uint64_t segments, const absl::Status& status);
  // Tells whoever watches the transfer.
  void TellMoved(const Item& item) const;
  // Books of an item that is no longer outstanding.
  void Settle(const Item& item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What remains to be done without the lock once the transfer's state changed.
  static std::function<void()> Conclude(Transfer& transfer);
  void Unqueue(Transfer* transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LimitLanes();

  const Options options_;
  mutable base::Mutex mutex_;
  base::CondVar unused_;
  std::shared_ptr<channel::Channel> channel_ ABSL_GUARDED_BY(mutex_);
  int channel_uses_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<base::TransferId, std::shared_ptr<Transfer>> transfers_ ABSL_GUARDED_BY(mutex_);
  std::set<RunnableKey> runnable_ ABSL_GUARDED_BY(mutex_);
  uint64_t virtual_time_ ABSL_GUARDED_BY(mutex_) = 0;  // of the transfer served last
  LinkWindow window_ ABSL_GUARDED_BY(mutex_);
  std::map<base::TransferId, base::TimePoint> expected_ ABSL_GUARDED_BY(mutex_);  // answers
  // Bytes of the background and of metadata that are in a backlog behind the window, or posted.
  int64_t windowed_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::array<std::deque<ItemPtr>, channel::kNumLanes> backlog_ ABSL_GUARDED_BY(mutex_);
  std::array<int64_t, channel::kNumLanes> posted_ ABSL_GUARDED_BY(mutex_){};
  std::array<int64_t, channel::kNumLanes> done_ ABSL_GUARDED_BY(mutex_){};
  // Until something is done.
  std::array<bool, channel::kNumLanes> full_ ABSL_GUARDED_BY(mutex_){};
  // Messages posted, all lanes, and how long there were any.
  int64_t under_way_ ABSL_GUARDED_BY(mutex_) = 0;
  base::TimePoint busy_since_ ABSL_GUARDED_BY(mutex_);
  double busy_seconds_ ABSL_GUARDED_BY(mutex_) = 0;
  bool pumping_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t lane_limit_ ABSL_GUARDED_BY(mutex_) = 0;  // what LimitInFlight was last called with
};

}  // namespace smartgen::transfer
