#include "common/channel/nccl/nccl_channel.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"

namespace smartgen::channel {
namespace {

constexpr std::byte kWarmUpByte{0x5a};

std::string_view StateName(NcclChannel::State state) {
  constexpr std::string_view kNames[] = {"waiting", "joining", "warming",
                                         "up",      "closing", "closed"};
  return kNames[static_cast<size_t>(state)];
}

bool MayFollow(NcclChannel::State from, NcclChannel::State to) {
  using State = NcclChannel::State;
  if (to == State::kClosing) return from < State::kClosing;
  return static_cast<int>(to) == static_cast<int>(from) + 1;
}

}  // namespace

// What the TCP channel calls.
class NcclChannel::TcpSide final : public Receiver {
 public:
  explicit TcpSide(std::shared_ptr<NcclChannel> channel) : channel_(std::move(channel)) {}
  absl::StatusOr<Placement> OnHead(Lane lane, std::span<const std::byte> head,
                                   uint64_t payload_bytes) override {
    return channel_->OnTcpHead(lane, head, payload_bytes);
  }
  void OnPayload(Lane lane, std::span<const std::byte> head, Placement placement) override {
    channel_->OnTcpPayload(lane, head, std::move(placement));
  }
  void OnClosed(const absl::Status& reason) override {
    const std::shared_ptr<NcclChannel> channel = std::move(channel_);
    channel->Close(reason);
    channel->parts_.commands->Post([channel] { channel->OnTcpClosed(); });
  }

 private:
  std::shared_ptr<NcclChannel> channel_;
};

NcclChannel::NcclChannel(Options options, Parts parts, std::shared_ptr<Receiver> receiver,
                         OnChannel on_channel)
    : options_(options),
      parts_(std::move(parts)),
      receiver_(std::move(receiver)),
      on_channel_(std::move(on_channel)) {}

NcclChannel::~NcclChannel() = default;

std::shared_ptr<Receiver> NcclChannel::TcpReceiver() {
  return std::make_shared<TcpSide>(shared_from_this());
}

void NcclChannel::SetTcp(std::shared_ptr<Channel> tcp) {
  base::MutexLock lock(mutex_);
  tcp_ = std::move(tcp);
}

std::shared_ptr<Channel> NcclChannel::tcp() const {
  base::MutexLock lock(mutex_);
  return tcp_;
}

std::string NcclChannel::peer() const {
  const auto inner = tcp();
  return inner == nullptr ? "" : inner->peer();
}

// ---- Any thread ----

absl::Status NcclChannel::Send(OutMessage message) {
  if (static_cast<int>(message.lane) >= kNumLanes) {
    return base::InvalidArgument("lane {}: want below {}", static_cast<int>(message.lane),
                                 kNumLanes);
  }
  if (message.head.empty() || message.head.size() > kMaxHeadBytes) {
    return base::InvalidArgument("head of {} bytes: want 1 to {}", message.head.size(),
                                 kMaxHeadBytes);
  }
  if (!OverNccl(message.lane)) {
    message.head = Wrap({.kind = EnvelopeKind::kPlain, .head = message.head});
    if (message.on_done) {
      message.on_done = [self = shared_from_this(),
                         done = std::move(message.on_done)](const absl::Status& status) {
        base::MutexLock lock(self->callbacks_);
        done(status);
      };
    }
    return tcp()->Send(std::move(message));
  }
  uint64_t bytes = 0;
  for (const auto& segment : message.segments) {
    if (segment.size() > kMaxPayloadBytes - bytes) {
      return base::InvalidArgument("payload of more than {} bytes", kMaxPayloadBytes);
    }
    bytes += segment.size();
  }
  const auto lane = static_cast<size_t>(message.lane);
  {
    base::MutexLock lock(mutex_);
    if (!close_reason_.ok()) {
      return base::Unavailable("the channel is closed: {}", base::MessageOf(close_reason_));
    }
    if (queues_[lane].size() >= static_cast<size_t>(options_.max_queued_messages) ||
        (!queues_[lane].empty() && queued_bytes_[lane] + bytes > options_.max_queued_bytes)) {
      return base::ResourceExhausted("lane {}: {} messages with {} bytes are queued",
                                     LaneName(message.lane), queues_[lane].size(),
                                     queued_bytes_[lane]);
    }
    queued_bytes_[lane] += bytes;
    queues_[lane].push_back(std::move(message));
  }
  parts_.commands->Post([] {});  // wakes the engine up
  return absl::OkStatus();
}

int64_t NcclChannel::CancelTag(uint64_t tag) {
  int64_t count = 0;
  std::shared_ptr<Channel> inner;
  {
    base::MutexLock lock(mutex_);
    inner = tcp_;
    for (size_t lane = 0; lane < queues_.size(); ++lane) {
      std::deque<OutMessage> kept;
      for (OutMessage& message : queues_[lane]) {
        if (message.tag != tag) {
          kept.push_back(std::move(message));
          continue;
        }
        for (const auto& segment : message.segments) queued_bytes_[lane] -= segment.size();
        cancelled_.push_back(std::move(message));
        ++count;
      }
      queues_[lane].swap(kept);
    }
  }
  if (count > 0) parts_.commands->Post([] {});
  return count + (inner == nullptr ? 0 : inner->CancelTag(tag));
}

void NcclChannel::LimitInFlight(Lane lane, uint64_t bytes) {
  if (!OverNccl(lane)) return tcp()->LimitInFlight(lane, bytes);
  in_flight_limit_[static_cast<size_t>(lane)] = bytes;
  parts_.commands->Post([] {});
}

ChannelStats NcclChannel::stats() const {
  const auto inner = tcp();
  ChannelStats stats = inner == nullptr ? ChannelStats{} : inner->stats();
  base::MutexLock lock(mutex_);
  for (size_t lane = 0; lane < kNumLanes; ++lane) {
    stats.bytes_sent[lane] += stats_.bytes_sent[lane];
    stats.bytes_received[lane] += stats_.bytes_received[lane];
    stats.messages_sent[lane] += stats_.messages_sent[lane];
    stats.messages_received[lane] += stats_.messages_received[lane];
    stats.segments_sent[lane] += stats_.segments_sent[lane];
    stats.queued_bytes += queued_bytes_[lane];
  }
  // An envelope counts there when it has gone out, here when it was queued.
  stats.messages_sent[0] -= std::min(envelopes_sent_, stats.messages_sent[0]);
  stats.messages_received[0] -= std::min(envelopes_received_, stats.messages_received[0]);
  stats.refused_messages += stats_.refused_messages;
  stats.refused_bytes += stats_.refused_bytes;
  return stats;
}

LinkInfo NcclChannel::link_info() const {
  const auto inner = tcp();
  LinkInfo info = inner == nullptr ? LinkInfo{} : inner->link_info();
  base::MutexLock lock(mutex_);
  info.acked_bytes += sent_bytes_;
  info.at = std::max(info.at, sent_at_);
  return info;
}

void NcclChannel::Close(const absl::Status& reason) {
  {
    base::MutexLock lock(mutex_);
    if (!close_reason_.ok()) return;
    close_reason_ = reason.ok() ? base::Cancelled("the channel was closed") : reason;
  }
  parts_.commands->Post([] {});
}

// ---- The TCP channel's thread ----

absl::StatusOr<Placement> NcclChannel::OnTcpHead(Lane lane, std::span<const std::byte> bytes,
                                                 uint64_t payload_bytes) {
  absl::StatusOr<Envelope> envelope = Unwrap(bytes);
  if (envelope.ok() && envelope->kind != EnvelopeKind::kPlain &&
      (payload_bytes != 0 || lane != Lane::kOnDemand)) {
    envelope = base::InvalidArgument("envelope of kind {}: want lane 0 and no payload, came {}, {}",
                                     static_cast<int>(envelope->kind), static_cast<int>(lane),
                                     payload_bytes);
  }
  if (!envelope.ok()) {
    Close(base::Annotate(envelope.status(), "the peer breaks the protocol"));
    return envelope.status();
  }
  if (envelope->kind != EnvelopeKind::kPlain) return Placement{};
  base::MutexLock lock(callbacks_);
  if (receiver_ == nullptr) return base::Unavailable("the channel is closed");
  return receiver_->OnHead(lane, envelope->head, payload_bytes);
}

void NcclChannel::OnTcpPayload(Lane lane, std::span<const std::byte> bytes, Placement placement) {
  const Envelope envelope = *Unwrap(bytes);  // OnTcpHead has looked at it
  if (envelope.kind == EnvelopeKind::kPlain) {
    base::MutexLock lock(callbacks_);
    if (receiver_ != nullptr) receiver_->OnPayload(lane, envelope.head, std::move(placement));
    return;
  }
  {
    base::MutexLock lock(mutex_);
    ++envelopes_received_;
  }
  absl::Status status;
  if (envelope.epoch != options_.epoch) {
    status = base::InvalidArgument("envelope: epoch: ours {}, theirs {}", options_.epoch,
                                   envelope.epoch);
  } else if (envelope.kind == EnvelopeKind::kOffer) {
    status = OnOffer(envelope);
  } else if (options_.role != Role::kSender) {
    status = base::InvalidArgument("an answer to an offer, but we make none");
  } else {
    parts_.commands->Post([self = shared_from_this(), answer = envelope] {
      if (self->state_ >= State::kClosing) return;
      if (const absl::Status bad = self->OnAnswer(answer); !bad.ok()) {
        self->Close(base::Annotate(bad, "the peer breaks the protocol"));
      }
    });
  }
  if (!status.ok()) Close(base::Annotate(status, "the peer breaks the protocol"));
}

absl::Status NcclChannel::OnOffer(const Envelope& envelope) {
  if (options_.role != Role::kReceiver) {
    return base::InvalidArgument("an offer, but rank 0 receives nothing over NCCL");
  }
  if (envelope.sequence != next_offer_) {
    return base::InvalidArgument("offer: number: want {}, came {}", next_offer_, envelope.sequence);
  }
  // What the sender has done with may be on its way to its place here still: as many again is more
  // than there are pieces under way.
  if (const int limit = 2 * options_.max_offers; offers_ >= limit) {
    return base::InvalidArgument("offer: {} are open, which is the limit", limit);
  }
  if (const uint64_t limit = 2 * options_.window_bytes; offered_bytes_ > limit) {
    return base::InvalidArgument("offer: {} bytes are open, more than {}", offered_bytes_.load(),
                                 limit);
  }
  Offered offered;
  if (next_offer_++ == 0) {
    if (envelope.amount != warm_up_.size()) {
      return base::InvalidArgument("warm-up: want {} bytes, came {}", warm_up_.size(),
                                   envelope.amount);
    }
    offered.placement.segments = {warm_up_};
  } else {
    base::MutexLock lock(callbacks_);
    if (receiver_ == nullptr) return absl::OkStatus();  // closed
    auto placement = receiver_->OnHead(envelope.lane, envelope.head, envelope.amount);
    if (!placement.ok()) {
      {
        base::MutexLock stats_lock(mutex_);
        ++stats_.refused_messages;
        stats_.refused_bytes += envelope.amount;
      }
      return SendEnvelope(
          {.kind = EnvelopeKind::kRefuse, .epoch = options_.epoch, .sequence = envelope.sequence});
    }
    offered.placement = *std::move(placement);
  }
  uint64_t room = 0;
  for (const auto& segment : offered.placement.segments) room += segment.size();
  if (room != envelope.amount) {
    return base::Internal("placement of {} bytes for a payload of {}", room, envelope.amount);
  }
  offered.envelope = envelope;
  offered.envelope.head = {};
  offered.head.assign(envelope.head.begin(), envelope.head.end());
  offered.pieces = PieceCount(envelope.amount, parts_.staging->slot_bytes());
  ++offers_;
  offered_bytes_ += envelope.amount;
  auto shared = std::make_shared<Offered>(std::move(offered));
  parts_.commands->Post([self = shared_from_this(), shared] {
    if (self->state_ < State::kClosing) self->in_.offers.push_back(std::move(*shared));
  });
  return absl::OkStatus();
}

absl::Status NcclChannel::SendEnvelope(const Envelope& envelope) {
  const auto inner = tcp();
  if (inner == nullptr) return base::FailedPrecondition("no TCP channel yet");
  RETURN_IF_ERROR(inner->Send({.lane = Lane::kOnDemand, .head = Wrap(envelope)}));
  base::MutexLock lock(mutex_);
  ++envelopes_sent_;
  return absl::OkStatus();
}

// ---- The engine's thread ----

void NcclChannel::Enter(State next) {
  if (!MayFollow(state_, next)) {
    SMARTGEN_LOG(error, "channel", "nccl channel to {}: {} after {}", peer(), StateName(next),
                 StateName(state_));
    std::abort();
  }
  state_ = next;
}

absl::Status NcclChannel::Begin(base::TimePoint due) {
  due_ = due;
  free_before_ = parts_.nccl->device().info().free_bytes;
  ASSIGN_OR_RETURN(stream_, parts_.nccl->device().CreateStream());
  ASSIGN_OR_RETURN(communicator_, parts_.nccl->Join(options_.id, static_cast<int>(options_.role)));
  Enter(State::kJoining);
  return absl::OkStatus();
}

void NcclChannel::BecomeUp() {
  const uint64_t free_now = parts_.nccl->device().info().free_bytes;
  communicator_bytes_ = free_before_ - std::min(free_before_, free_now);
  was_up_ = true;
  Enter(State::kUp);
  std::exchange(on_channel_, nullptr)(std::shared_ptr<Channel>(shared_from_this()));
}

absl::StatusOr<bool> NcclChannel::Ready() {
  ASSIGN_OR_RETURN(const NcclCommunicator::State state, communicator_->state());
  if (state != NcclCommunicator::State::kReady) return false;
  for (auto* pieces : {&out_.pieces, &in_.pieces}) {
    if (pieces->empty() || pieces->back().recorded) continue;
    RETURN_IF_ERROR(stream_->Record(*pieces->back().slot->event));
    pieces->back().recorded = true;
  }
  return true;
}

absl::StatusOr<bool> NcclChannel::Work(base::TimePoint now, int* turn) {
  std::vector<OutMessage> cancelled;
  {
    base::MutexLock lock(mutex_);
    if (!close_reason_.ok()) return close_reason_;
    cancelled.swap(cancelled_);
  }
  for (OutMessage& message : cancelled) {
    base::MutexLock lock(callbacks_);
    if (message.on_done) message.on_done(base::Cancelled("cancelled by its tag"));
  }
  if (state_ == State::kWaiting) return false;
  ASSIGN_OR_RETURN(const bool ready, Ready());
  if (state_ < State::kUp && now >= due_) {
    return base::DeadlineExceeded(
        "nccl: {} in time (is the peer's network interface reachable? NCCL_SOCKET_IFNAME)",
        state_ == State::kJoining ? "the communicator did not stand"
                                  : "the warm-up byte did not come");
  }
  if (state_ == State::kJoining && ready) {
    Enter(State::kWarming);
    if (options_.role == Role::kSender) {
      warm_up_ = {kWarmUpByte};
      OutMessage message;
      message.segments = {warm_up_};
      RETURN_IF_ERROR(OfferOne(std::move(message), warm_up_.size(), now));
    }
  }
  if (state_ >= State::kWarming) {
    RETURN_IF_ERROR(EndSends(now));
    RETURN_IF_ERROR(EndReceives(now));
  }
  if (state_ == State::kUp) RETURN_IF_ERROR(Offer(now));
  if (state_ >= State::kWarming) {
    RETURN_IF_ERROR(IssueSends(now));
    RETURN_IF_ERROR(IssueReceives(now, turn));
  }
  return state_ != State::kUp || !out_.pieces.empty() || !in_.pieces.empty();
}

absl::StatusOr<bool> NcclChannel::Reached(const Piece& piece, base::TimePoint progress,
                                          base::TimePoint now) const {
  if (piece.recorded) {
    ASSIGN_OR_RETURN(const bool reached, parts_.nccl->device().Reached(*piece.slot->event));
    if (reached) return true;
  }
  const base::Duration passed = now - std::max(piece.since, progress);
  // A sender whose device is held up by another pair gives that one up first: a receiver has
  // patience for both.
  const int patience = options_.role == Role::kSender ? 1 : 2;
  if (passed < patience * options_.piece_timeout) return false;
  return base::DeadlineExceeded("nccl: a {} of {} bytes has made no progress for {:.1f} s",
                                options_.role == Role::kSender ? "send" : "receive", piece.bytes,
                                base::ToSeconds(passed));
}

size_t NcclChannel::PieceBytes(uint64_t payload_bytes, uint64_t piece) const {
  const uint64_t size = parts_.staging->slot_bytes();
  return static_cast<size_t>(std::min<uint64_t>(size, payload_bytes - piece * size));
}

// ---- Out ----

absl::Status NcclChannel::OnAnswer(const Envelope& envelope) {
  const uint64_t first = out_.offered.empty() ? out_.next : out_.offered.front().sequence;
  if (envelope.sequence < first || envelope.sequence >= out_.next) {
    return base::InvalidArgument("answer to offer {}: open are {} to {}", envelope.sequence, first,
                                 out_.next);
  }
  const auto index = static_cast<size_t>(envelope.sequence - first);
  Sending& sending = out_.offered[index];
  const bool refuse = envelope.kind == EnvelopeKind::kRefuse;
  // An answer brings news: the first, or more pieces; the warm-up is not refused; and receives are
  // issued in the order of the offers.
  bool right = !sending.refused;
  if (refuse) {
    right = right && !sending.answered && sending.sequence != 0;
  } else {
    right = right && envelope.amount <= sending.pieces &&
            (envelope.amount > sending.accepted || (!sending.answered && sending.pieces == 0));
    // One without pieces is accepted when it is delivered, which may be later.
    for (size_t i = 0; i < index; ++i) {
      const Sending& before = out_.offered[i];
      right = right && (before.refused || before.accepted == before.pieces);
    }
  }
  if (!right) {
    return base::InvalidArgument("answer to offer {}: {} of {} pieces after {}{}, out of order",
                                 envelope.sequence, envelope.amount, sending.pieces,
                                 sending.accepted, sending.refused ? ", refused" : "");
  }
  sending.answered = true;
  sending.refused = refuse;
  sending.accepted = envelope.amount;
  out_.progress = parts_.clock->Now();
  return absl::OkStatus();
}

bool NcclChannel::PopQueued(OutMessage* message, uint64_t* bytes) {
  const uint64_t open = out_.bytes[static_cast<size_t>(Lane::kProactive)] +
                        out_.bytes[static_cast<size_t>(Lane::kSpeculative)];
  if (out_.offered.size() >= static_cast<size_t>(options_.max_offers)) return false;
  base::MutexLock lock(mutex_);
  for (const Lane lane : {Lane::kProactive, Lane::kSpeculative}) {
    const auto index = static_cast<size_t>(lane);
    const uint64_t limit = in_flight_limit_[index];
    // Lanes below wait as well.
    if (limit > 0 && out_.bytes[index] >= limit) return false;
    if (queues_[index].empty()) continue;
    uint64_t size = 0;
    for (const auto& segment : queues_[index].front().segments) size += segment.size();
    if (open > 0 && open + size > options_.window_bytes) return false;
    *message = std::move(queues_[index].front());
    *bytes = size;
    queues_[index].pop_front();
    queued_bytes_[index] -= size;
    return true;
  }
  return false;
}

absl::Status NcclChannel::Offer(base::TimePoint now) {
  OutMessage message;
  uint64_t bytes = 0;
  while (PopQueued(&message, &bytes)) {
    RETURN_IF_ERROR(OfferOne(std::move(message), bytes, now));
    message = OutMessage();
  }
  return absl::OkStatus();
}

absl::Status NcclChannel::OfferOne(OutMessage message, uint64_t bytes, base::TimePoint now) {
  Sending sending;
  sending.message = std::move(message);
  sending.sequence = out_.next++;
  sending.bytes = bytes;
  sending.pieces = PieceCount(bytes, parts_.staging->slot_bytes());
  if (out_.offered.empty()) out_.progress = now;
  out_.bytes[static_cast<size_t>(sending.message.lane)] += bytes;
  out_.offered.push_back(std::move(sending));
  // In the deque first: whatever becomes of it now, its on_done is called.
  const Sending& offered = out_.offered.back();
  return SendEnvelope({.kind = EnvelopeKind::kOffer,
                       .lane = offered.message.lane,
                       .epoch = options_.epoch,
                       .sequence = offered.sequence,
                       .amount = bytes,
                       .head = offered.message.head});
}

absl::Status NcclChannel::IssueSends(base::TimePoint now) {
  for (Sending& sending : out_.offered) {
    while (sending.issued < sending.accepted) {
      if (static_cast<int>(out_.pieces.size()) >= options_.max_in_flight) return absl::OkStatus();
      ASSIGN_OR_RETURN(const bool ready, Ready());
      if (!ready) return absl::OkStatus();
      Slot* const slot = parts_.staging->Take();
      if (slot == nullptr) return absl::OkStatus();
      Piece piece{.slot = slot,
                  .offset = sending.issued * parts_.staging->slot_bytes(),
                  .bytes = PieceBytes(sending.bytes, sending.issued),
                  .since = now};
      out_.pieces.push_back(piece);  // the slot is its from here on, whatever fails
      ++sending.issued;
      Gather(sending.message.segments, piece.offset, slot->host->bytes().first(piece.bytes));
      RETURN_IF_ERROR(
          parts_.copies->CopyIn(slot->device->data(), slot->host->bytes().first(piece.bytes)));
      RETURN_IF_ERROR(parts_.copies->Record(*slot->event));
      RETURN_IF_ERROR(stream_->Wait(*slot->event));
      RETURN_IF_ERROR(communicator_->Send(slot->device->bytes().first(piece.bytes), *stream_));
    }
  }
  return absl::OkStatus();
}

absl::Status NcclChannel::EndSends(base::TimePoint now) {
  while (!out_.pieces.empty()) {
    const Piece piece = out_.pieces.front();
    ASSIGN_OR_RETURN(const bool reached, Reached(piece, out_.progress, now));
    if (!reached) break;
    out_.pieces.pop_front();
    parts_.staging->Return(piece.slot);
    out_.progress = now;
    const auto sending = std::find_if(out_.offered.begin(), out_.offered.end(),
                                      [](const Sending& each) { return each.done < each.issued; });
    ++sending->done;
    base::MutexLock lock(mutex_);
    stats_.bytes_sent[static_cast<size_t>(sending->message.lane)] += piece.bytes;
    sent_bytes_ += piece.bytes;
    sent_at_ = now;
  }
  while (!out_.offered.empty()) {
    const Sending& front = out_.offered.front();
    if (!front.refused && !(front.answered && front.done == front.pieces)) break;
    FinishSending();
  }
  if (!out_.offered.empty() && now - out_.progress >= options_.offer_timeout) {
    return base::DeadlineExceeded("nccl: the peer has issued no receive for {:.1f} s",
                                  base::ToSeconds(now - out_.progress));
  }
  return absl::OkStatus();
}

void NcclChannel::FinishSending() {
  const Sending sending = std::move(out_.offered.front());
  out_.offered.pop_front();
  const auto lane = static_cast<size_t>(sending.message.lane);
  out_.bytes[lane] -= sending.bytes;
  if (sending.sequence == 0) {
    // The byte's way is not a message of anybody's.
    {
      base::MutexLock lock(mutex_);
      stats_.bytes_sent[lane] -= sending.bytes;
    }
    BecomeUp();
    return;
  }
  {
    base::MutexLock lock(mutex_);
    ++stats_.messages_sent[lane];
    stats_.segments_sent[lane] += sending.message.segments.size();
  }
  base::MutexLock lock(callbacks_);
  if (sending.message.on_done) sending.message.on_done(absl::OkStatus());
}

// ---- In ----

bool NcclChannel::WantsTurn() const {
  return state_ >= State::kWarming && state_ < State::kClosing && in_.issued < in_.offers.size();
}

absl::Status NcclChannel::IssueReceives(base::TimePoint now, int* turn) {
  while (in_.issued < in_.offers.size()) {
    Offered& offered = in_.offers[in_.issued];
    const uint64_t before = offered.issued;
    while (*turn > 0 && offered.issued < offered.pieces &&
           static_cast<int>(in_.pieces.size()) < options_.max_in_flight) {
      ASSIGN_OR_RETURN(const bool ready, Ready());
      Slot* const slot = ready ? parts_.staging->Take() : nullptr;
      if (slot == nullptr) break;
      const Piece piece{.slot = slot,
                        .offset = offered.issued * parts_.staging->slot_bytes(),
                        .bytes = PieceBytes(offered.envelope.amount, offered.issued),
                        .since = now};
      if (in_.pieces.empty()) in_.progress = now;
      in_.pieces.push_back(piece);
      ++in_.receiving;
      ++offered.issued;
      --*turn;
      RETURN_IF_ERROR(communicator_->Receive(slot->device->bytes().first(piece.bytes), *stream_));
    }
    if (offered.issued > before) RETURN_IF_ERROR(Accept(offered));
    if (offered.issued < offered.pieces) break;
    ++in_.issued;
  }
  return absl::OkStatus();
}

absl::Status NcclChannel::EndReceives(base::TimePoint now) {
  for (Piece& piece : in_.pieces) {
    if (piece.copying) continue;
    ASSIGN_OR_RETURN(const bool reached, Reached(piece, in_.progress, now));
    if (!reached) break;
    // Only what has come is copied: nothing is ever queued behind a receive that may hang.
    in_.progress = now;
    --in_.receiving;
    piece.copying = true;
    RETURN_IF_ERROR(parts_.copies->CopyOut(piece.slot->host->bytes().first(piece.bytes),
                                           piece.slot->device->data()));
    RETURN_IF_ERROR(parts_.copies->Record(*piece.slot->event));
  }
  while (!in_.pieces.empty() && in_.pieces.front().copying) {
    const Piece piece = in_.pieces.front();
    ASSIGN_OR_RETURN(const bool reached, Reached(piece, in_.progress, now));
    if (!reached) break;
    in_.progress = now;
    in_.pieces.pop_front();
    const auto offered = std::find_if(in_.offers.begin(), in_.offers.end(),
                                      [](const Offered& each) { return each.done < each.issued; });
    Scatter(piece.slot->host->bytes().first(piece.bytes), piece.offset,
            offered->placement.segments);
    ++offered->done;
    parts_.staging->Return(piece.slot);
  }
  while (in_.issued > 0 && in_.offers.front().done == in_.offers.front().pieces) {
    Offered offered = std::move(in_.offers.front());
    in_.offers.pop_front();
    --in_.issued;
    --offers_;
    offered_bytes_ -= offered.envelope.amount;
    // Only now, so that what is open here never grows far beyond what is open there.
    if (offered.pieces == 0) RETURN_IF_ERROR(Accept(offered));
    if (offered.envelope.sequence == 0) {
      if (warm_up_[0] != kWarmUpByte) {
        return base::Internal("nccl: the warm-up brought another byte: not the peer we meant");
      }
      BecomeUp();
      continue;
    }
    Deliver(std::move(offered));
  }
  return absl::OkStatus();
}

absl::Status NcclChannel::Accept(const Offered& offered) {
  return SendEnvelope({.kind = EnvelopeKind::kAccept,
                       .epoch = options_.epoch,
                       .sequence = offered.envelope.sequence,
                       .amount = offered.issued});
}

void NcclChannel::Deliver(Offered offered) {
  const auto lane = static_cast<size_t>(offered.envelope.lane);
  {
    base::MutexLock lock(mutex_);
    ++stats_.messages_received[lane];
    stats_.bytes_received[lane] += offered.envelope.amount;
  }
  base::MutexLock lock(callbacks_);
  if (receiver_ == nullptr) return;
  receiver_->OnPayload(offered.envelope.lane, offered.head, std::move(offered.placement));
}

// ---- The end ----

NcclChannel::Remains NcclChannel::Fail(const absl::Status& reason) {
  Enter(State::kClosing);
  failure_ = reason;
  Close(reason);
  Remains remains{.communicator = std::move(communicator_), .stream = std::move(stream_)};
  for (const auto* pieces : {&out_.pieces, &in_.pieces}) {
    for (const Piece& piece : *pieces) remains.slots.push_back(piece.slot);
  }
  in_.pieces.clear();
  out_.pieces.clear();
  in_.offers.clear();
  in_.issued = 0;
  in_.receiving = 0;
  std::vector<OutMessage> messages;
  for (Sending& sending : out_.offered) messages.push_back(std::move(sending.message));
  out_.offered.clear();
  {
    base::MutexLock lock(mutex_);
    for (OutMessage& message : cancelled_) messages.push_back(std::move(message));
    cancelled_.clear();
    for (size_t lane = 0; lane < queues_.size(); ++lane) {
      for (OutMessage& message : queues_[lane]) messages.push_back(std::move(message));
      queues_[lane].clear();
      queued_bytes_[lane] = 0;
    }
  }
  for (OutMessage& message : messages) {
    base::MutexLock lock(callbacks_);
    if (message.on_done) message.on_done(failure_);
  }
  const auto inner = tcp();
  if (inner == nullptr) {
    OnTcpClosed();
  } else {
    inner->Close(reason);
    if (tcp_closed_) OnTcpClosed();
  }
  return remains;
}

void NcclChannel::CloseTcp(const absl::Status& reason) {
  if (const auto inner = tcp()) inner->Close(reason);
}

void NcclChannel::OnTcpClosed() {
  tcp_closed_ = true;
  if (state_ != State::kClosing) return;  // Work finds out
  Enter(State::kClosed);
  if (on_channel_ != nullptr) std::exchange(on_channel_, nullptr)(failure_);
  base::MutexLock lock(callbacks_);
  const std::shared_ptr<Receiver> receiver = std::move(receiver_);
  receiver_ = nullptr;
  if (was_up_) receiver->OnClosed(failure_);
}

}  // namespace smartgen::channel
