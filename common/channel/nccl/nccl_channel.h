// A channel whose background goes over NCCL. It stands on a TCP channel, which carries everything
// else: all of the on-demand and metadata lanes (a communicator is one queue that nothing
// overtakes), everything from the decode side to the prefill side, and the envelopes that agree on
// the order (envelope.h). Over NCCL go the payloads of the proactive and speculative lanes, from
// the prefill side (rank 0, sender) to the decode side (rank 1, receiver), never the other way: so
// no circle of devices can wait for one another.
//
//   sender: Send -> queue -> offer ->            accept -> gather, copy in, ncclSend -> on_done
//   receiver:                 OnHead -> receive issued, accept -> copy out, scatter -> OnPayload
//
// States: kWaiting (for the TCP channel) -> kJoining (the communicator) -> kWarming (one byte goes
// over it, which is what sets connections up) -> kUp -> kClosing (the communicator is being
// aborted; waits for the TCP channel's end) -> kClosed. From each before kClosing also to kClosing.
// Moves are made by Enter alone, on the engine's thread.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/channel/channel.h"
#include "common/channel/nccl/command_queue.h"
#include "common/channel/nccl/envelope.h"
#include "common/channel/nccl/nccl.h"
#include "common/channel/nccl/staging.h"

namespace smartgen::channel {

class NcclChannel final : public Channel, public std::enable_shared_from_this<NcclChannel> {
 public:
  enum class Role { kSender = 0, kReceiver = 1 };  // the rank
  enum class State { kWaiting, kJoining, kWarming, kUp, kClosing, kClosed };
  struct Options {
    Role role = Role::kSender;
    uint32_t epoch = 0;
    NcclUniqueId id{};
    int max_in_flight = 2;      // pieces of this channel on the device
    uint64_t window_bytes = 0;  // offered and not yet sent
    int max_offers = 128;       // the same, in messages
    uint64_t max_queued_bytes = 0;
    int max_queued_messages = 0;
    base::Duration piece_timeout{0};  // for a piece whose send or receive was issued
    base::Duration offer_timeout{0};  // for an offer to be accepted
  };
  // Of the engine; live as long as its thread.
  struct Parts {
    Nccl* nccl = nullptr;
    Staging* staging = nullptr;
    device::Stream* copies = nullptr;
    const base::Clock* clock = nullptr;
    std::shared_ptr<CommandQueue> commands;  // to the engine's thread
  };
  using OnChannel = std::function<void(absl::StatusOr<std::shared_ptr<Channel>>)>;

  // `on_channel` is called once, on the engine's thread: when the channel is up, or with why it
  // never will be, in which case the receiver hears nothing more.
  NcclChannel(Options options, Parts parts, std::shared_ptr<Receiver> receiver,
              OnChannel on_channel);
  ~NcclChannel() override;

  absl::Status Send(OutMessage message) override;
  int64_t CancelTag(uint64_t tag) override;
  void LimitInFlight(Lane lane, uint64_t bytes) override;
  ChannelStats stats() const override;
  LinkInfo link_info() const override;
  void Close(const absl::Status& reason) override;
  std::string_view transport() const override { return "nccl"; }
  std::string peer() const override;

  // The receiver for the TCP channel.
  std::shared_ptr<Receiver> TcpReceiver();
  // Before anything else but TcpReceiver is called. Any thread.
  void SetTcp(std::shared_ptr<Channel> tcp);

  // The rest is for the engine's thread alone.

  // What is left of a channel that failed. The slots may be in use until the abort has ended.
  struct Remains {
    std::unique_ptr<NcclCommunicator> communicator;
    std::unique_ptr<device::Stream> stream;
    std::vector<Slot*> slots;
  };
  State state() const { return state_; }
  // Joins the communicator; the channel must be up before `due`.
  absl::Status Begin(base::TimePoint due);
  // Does what can be done without waiting; may issue up to *turn receives and counts them off. True
  // if it must be called again soon; an error says why the channel must fail.
  absl::StatusOr<bool> Work(base::TimePoint now, int* turn);
  // Receives that were issued and have not ended: the device may be busy with them.
  int receiving() const { return in_.receiving; }
  // There are receives to issue.
  bool WantsTurn() const;
  Remains Fail(const absl::Status& reason);
  // The TCP channel has ended, or there will be none.
  void OnTcpClosed();
  // No matter what state it is in.
  void CloseTcp(const absl::Status& reason);
  // The device's memory that the communicator took, as far as that can be seen.
  uint64_t communicator_bytes() const { return communicator_bytes_; }

 private:
  class TcpSide;

  struct Sending {
    OutMessage message;
    uint64_t sequence = 0;
    uint64_t bytes = 0;
    uint64_t pieces = 0;
    uint64_t accepted = 0;  // pieces
    uint64_t issued = 0;
    uint64_t done = 0;
    bool answered = false;  // accepted or refused
    bool refused = false;
  };
  struct Offered {
    Envelope envelope;  // without its head
    std::vector<std::byte> head;
    Placement placement;
    uint64_t pieces = 0;
    uint64_t issued = 0;
    uint64_t done = 0;
  };
  struct Piece {
    Slot* slot = nullptr;
    uint64_t offset = 0;  // in the payload
    size_t bytes = 0;
    bool recorded = false;  // the slot's event stands for its end
    bool copying = false;   // in: received, on its way to host memory
    base::TimePoint since;
  };

  bool OverNccl(Lane lane) const {
    return options_.role == Role::kSender &&
           (lane == Lane::kProactive || lane == Lane::kSpeculative);
  }
  void Enter(State next);
  void BecomeUp();
  std::shared_ptr<Channel> tcp() const;
  absl::Status SendEnvelope(const Envelope& envelope);

  // On the TCP channel's thread.
  absl::StatusOr<Placement> OnTcpHead(Lane lane, std::span<const std::byte> bytes,
                                      uint64_t payload_bytes);
  void OnTcpPayload(Lane lane, std::span<const std::byte> bytes, Placement placement);
  absl::Status OnOffer(const Envelope& envelope);

  // Out.
  absl::Status OnAnswer(const Envelope& envelope);
  absl::Status Offer(base::TimePoint now);
  bool PopQueued(OutMessage* message, uint64_t* bytes);
  absl::Status OfferOne(OutMessage message, uint64_t bytes, base::TimePoint now);
  absl::Status IssueSends(base::TimePoint now);
  absl::Status EndSends(base::TimePoint now);
  void FinishSending();

  // In.
  absl::Status IssueReceives(base::TimePoint now, int* turn);
  absl::Status EndReceives(base::TimePoint now);
  absl::Status Accept(const Offered& offered);
  void Deliver(Offered offered);

  // Whether operations may be issued. If so, the ones before have their events: what a communicator
  // has in progress may not be on its stream yet.
  absl::StatusOr<bool> Ready();
  // Whether a piece's event was reached. Fails if it takes too long.
  absl::StatusOr<bool> Reached(const Piece& piece, base::TimePoint progress,
                               base::TimePoint now) const;
  size_t PieceBytes(uint64_t payload_bytes, uint64_t piece) const;

  const Options options_;
  const Parts parts_;

  mutable base::Mutex mutex_;
  std::shared_ptr<Channel> tcp_ ABSL_GUARDED_BY(mutex_);
  std::array<std::deque<OutMessage>, kNumLanes> queues_ ABSL_GUARDED_BY(mutex_);
  std::array<uint64_t, kNumLanes> queued_bytes_ ABSL_GUARDED_BY(mutex_){};
  std::vector<OutMessage> cancelled_ ABSL_GUARDED_BY(mutex_);
  absl::Status close_reason_ ABSL_GUARDED_BY(mutex_);  // not OK: closing or closed
  ChannelStats stats_ ABSL_GUARDED_BY(mutex_);         // of what went over NCCL
  uint64_t envelopes_sent_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t envelopes_received_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t sent_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  base::TimePoint sent_at_ ABSL_GUARDED_BY(mutex_);
  std::array<std::atomic<uint64_t>, kNumLanes> in_flight_limit_{};

  // Held while the user's callbacks run: they come from two threads, one at a time.
  base::Mutex callbacks_;
  std::shared_ptr<Receiver> receiver_ ABSL_GUARDED_BY(callbacks_);

  // Of the TCP channel's thread.
  uint64_t next_offer_ = 0;
  // Taken there, delivered by the engine's thread.
  std::atomic<int> offers_{0};
  std::atomic<uint64_t> offered_bytes_{0};

  // Of the engine's thread.
  State state_ = State::kWaiting;
  bool tcp_closed_ = false;
  bool was_up_ = false;
  absl::Status failure_;
  OnChannel on_channel_;
  std::unique_ptr<NcclCommunicator> communicator_;
  std::unique_ptr<device::Stream> stream_;
  base::TimePoint due_;  // to be up
  uint64_t free_before_ = 0;
  uint64_t communicator_bytes_ = 0;
  struct {
    std::deque<Sending> offered;
    std::deque<Piece> pieces;                 // in the order of issue, all of offered's first ones
    std::array<uint64_t, kNumLanes> bytes{};  // offered and not done
    uint64_t next = 0;                        // sequence
    base::TimePoint progress;
  } out_;
  struct {
    std::deque<Offered> offers;
    size_t issued = 0;  // so many of them are issued to the last piece
    std::deque<Piece> pieces;
    int receiving = 0;
    base::TimePoint progress;
  } in_;
  std::array<std::byte, 1> warm_up_{};
};

}  // namespace smartgen::channel
