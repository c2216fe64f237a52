#include <algorithm>
#include <utility>

#include "common/base/address.h"
#include "common/base/log.h"
#include "common/config/version.h"
#include "common/rpc/convert.h"
#include "common/rpc/status.h"
#include "decode_server/pairing.h"
#include "decode_server/policy.h"
#include "decode_server/remote_attempt.h"

namespace smartgen::decode_server {
PairingSession::PairingSession(const PairingContext* context, std::string address,
                               std::shared_ptr<grpc::Channel> channel,
                               std::vector<std::string> transports)
    : context_(context),
      address_(std::move(address)),
      transports_(std::move(transports)),
      transfer_stub_(v1::Transfer::NewStub(channel)),
      prefill_stub_(v1::Prefill::NewStub(channel)),
      last_heard_(context->clock->Now()) {}

PairingSession::~PairingSession() = default;

absl::Status PairingSession::Open() {
  ASSIGN_OR_RETURN(const v1::HelloReply reply, Handshake());
  RETURN_IF_ERROR(Dial(reply));
  v1::ControlMessage paired;
  paired.mutable_paired();
  Send(std::move(paired));
  RETURN_IF_ERROR(WaitFor("Paired", [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return paired_; }));
  base::MutexLock lock(mutex_);
  if (down_) return reason_;
  up_ = true;
  return absl::OkStatus();
}

absl::StatusOr<v1::HelloReply> PairingSession::Handshake() {
  ControlStream::Events events;
  events.on_message = [self = shared_from_this()](const v1::ControlMessage& message) {
    self->OnMessage(message);
  };
  events.on_closed = [self = shared_from_this()](const grpc::Status& status) {
    self->GoDown(status.ok() ? base::Unavailable("the prefill side closed the control stream")
                             : rpc::FromGrpc(status));
  };
  const auto stream =
      ControlStream::Start(std::move(events), [&](grpc::ClientContext* client, auto* reactor) {
        transfer_stub_->async()->Connect(client, reactor);
      });
  bool down = false;
  {
    base::MutexLock lock(mutex_);
    down = down_;
    if (!down) stream_ = stream;
  }
  // GoDown came before there was a stream that it could have cancelled.
  if (down) {
    stream->Cancel();
    return reason();
  }
  v1::ControlMessage message;
  v1::Hello& hello = *message.mutable_hello();
  hello.set_wire_version(v1::WIRE_VERSION_CURRENT);
  hello.set_software_version(std::string(config::SoftwareVersion()));
  hello.set_incarnation(context_->incarnation);
  hello.set_model_fingerprint(context_->model_fingerprint);
  hello.set_compute(context_->compute);
  rpc::ToProto(context_->layout, hello.mutable_layout());
  for (const std::string& transport : transports_) hello.add_transports(transport);
  if (context_->nccl != nullptr) {
    hello.set_nccl_version(context_->nccl->version());
    hello.set_nccl_piece_bytes(context_->nccl->options().piece_bytes);
  }
  hello.set_checksum(context_->options.checksum);
  hello.set_instance(context_->instance);
  hello.set_selector_parameters(context_->selector_parameters);
  Send(std::move(message));
  RETURN_IF_ERROR(
      WaitFor("HelloReply", [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return replied_; }));
  base::MutexLock lock(mutex_);
  return reply_;
}

absl::Status PairingSession::Dial(const v1::HelloReply& reply) {
  if (reply.wire_version() != v1::WIRE_VERSION_CURRENT) {
    return base::FailedPrecondition("wire_version: ours {}, theirs {}",
                                    static_cast<int>(v1::WIRE_VERSION_CURRENT),
                                    reply.wire_version());
  }
  if (std::find(transports_.begin(), transports_.end(), reply.transport()) == transports_.end()) {
    return base::FailedPrecondition("transport: want {}, they chose \"{}\"",
                                    fmt::join(transports_, " or "), reply.transport());
  }
  base::ChannelKey key;
  if (reply.channel_key().size() != key.size() || reply.incarnation() == 0 ||
      reply.data_port() <= 0 || reply.data_port() > 65535) {
    return base::InvalidArgument(
        "HelloReply: want an incarnation, a port and a key of {} bytes; got {:x}, {}, {} bytes",
        key.size(), reply.incarnation(), reply.data_port(), reply.channel_key().size());
  }
  std::copy_n(reinterpret_cast<const std::byte*>(reply.channel_key().data()), key.size(),
              key.begin());
  auto receiver = MakeReceiver(reply.incarnation());
  ASSIGN_OR_RETURN(auto channel, DialChannel(reply, key, receiver));
  if (context_->options.wrap_channel) channel = context_->options.wrap_channel(std::move(channel));
  base::MutexLock lock(mutex_);
  if (down_) {
    channel->Close(reason_);
    return reason_;
  }
  channel_ = std::move(channel);
  receiver_ = std::move(receiver);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<channel::Channel>> PairingSession::DialChannel(
    const v1::HelloReply& reply, const base::ChannelKey& key,
    const std::shared_ptr<transfer::TransferReceiver>& receiver) {
  const auto deadline = base::Deadline::After(*context_->clock, context_->options.pairing_timeout);
  const std::string host(base::HostOf(address_));
  if (reply.transport() != "nccl") {
    return context_->tcp->Connect(host, reply.data_port(), key, receiver, deadline);
  }
  channel::NcclTicket ticket;
  const std::string& id = reply.nccl().unique_id();
  if (id.size() != ticket.id.size()) {
    return base::InvalidArgument("nccl: want an id of {} bytes, got {}", ticket.id.size(),
                                 id.size());
  }
  std::copy_n(reinterpret_cast<const std::byte*>(id.data()), id.size(), ticket.id.begin());
  ticket.epoch = reply.nccl().epoch();
  return context_->nccl->Connect(host, reply.data_port(), key, ticket, receiver, deadline);
}

std::shared_ptr<transfer::TransferReceiver> PairingSession::MakeReceiver(
    uint64_t peer_incarnation) {
  transfer::TransferReceiver::Options options;
  options.own_incarnation = context_->incarnation;
  options.peer_incarnation = peer_incarnation;
  options.require_checksum = context_->options.checksum;
  transfer::TransferReceiver::Events events;
  events.on_refused = [metrics = context_->metrics](transfer::Refusal refusal, uint64_t) {
    metrics->GetCounter("transfer_refused_total", {{"reason", transfer::RefusalName(refusal)}})
        .Add();
  };
  events.on_damaged = [weak = weak_from_this()](const base::TransferId& id,
                                                std::span<const transfer::LayerRange> ranges) {
    const auto self = weak.lock();
    if (self == nullptr || ranges.empty()) return;
    self->context_->metrics->GetCounter("fallback_total", {{"reason", "kv_damaged"}}).Add();
    SMARTGEN_LOG(
        warn, "transfer",
        "KV from {} was damaged on the way (layer {}, {} ranges from token {} on): fetching "
        "it again",
        self->address_, ranges.front().layer, ranges.size(), ranges.front().begin);
    self->Fetch(id, ranges);
  };
  events.on_closed = [weak = weak_from_this()](const absl::Status& reason) {
    if (const auto self = weak.lock()) {
      self->GoDown(base::Unavailable("channel closed: {}", base::MessageOf(reason)));
    }
  };
  return transfer::TransferReceiver::Create(options, std::move(events));
}

absl::Status PairingSession::WaitFor(std::string_view what, const std::function<bool()>& done) {
  const auto deadline = base::Deadline::After(*context_->clock, context_->options.pairing_timeout);
  base::MutexLock lock(mutex_);
  while (!done() && !down_) {
    if (deadline.Expired(*context_->clock)) {
      return base::DeadlineExceeded("{} did not come within {:g} s", what,
                                    base::ToSeconds(context_->options.pairing_timeout));
    }
    changed_.WaitFor(mutex_, std::chrono::milliseconds(50));
  }
  return down_ ? reason_ : absl::OkStatus();
}

void PairingSession::OnMessage(const v1::ControlMessage& message) {
  std::shared_ptr<RemoteAttempt> attempt;
  switch (message.message_case()) {
    case v1::ControlMessage::kSent:
      attempt = Find(message.sent().transfer_id());
      break;
    case v1::ControlMessage::kAbort:
      attempt = Find(message.abort().transfer_id());
      break;
    case v1::ControlMessage::kDeferred:
      attempt = Find(message.deferred().transfer_id());
      break;
    case v1::ControlMessage::kPlan:
      attempt = Find(message.plan().transfer_id());
      break;
    default:
      break;
  }
  {
    base::MutexLock lock(mutex_);
    last_heard_ = context_->clock->Now();
    if (message.has_hello_reply() && !replied_) {
      reply_ = message.hello_reply();
      replied_ = true;
    }
    if (message.has_paired()) paired_ = true;
    if (message.has_link()) {
      link_ = {.bytes_per_second = BelievableRate(message.link().bytes_per_second()),
               .rtt_seconds = BelievableTrip(message.link().round_trip_seconds())};
    }
    if (message.has_heartbeat()) draining_ = message.heartbeat().draining();
  }
  changed_.NotifyAll();
  if (attempt == nullptr) return;
  if (message.has_sent()) attempt->OnSent();
  if (message.has_deferred()) attempt->OnDeferred();
  if (message.has_plan()) attempt->OnPlan(message.plan());
  if (message.has_abort()) attempt->OnAborted(message.abort().reason());
}

std::shared_ptr<RemoteAttempt> PairingSession::Find(const std::string& transfer_id) const {
  const auto id = rpc::ParseTransferId(transfer_id);
  if (!id.ok()) return nullptr;
  base::MutexLock lock(mutex_);
  const auto it = attempts_.find(*id);
  return it == attempts_.end() ? nullptr : it->second.lock();
}

void PairingSession::Tick() {
  const base::Duration heartbeat = context_->options.heartbeat;
  // Less a tick: silence is noticed by the first tick after it, so before the third is over.
  const base::Duration silence = kMissedHeartbeats * heartbeat - heartbeat / kTicksPerHeartbeat;
  v1::ControlMessage message;
  bool missed = false;
  {
    base::MutexLock lock(mutex_);
    missed = context_->clock->Now() - last_heard_ >= silence;
    if (!missed && ticks_++ % kTicksPerHeartbeat != 0) return;
    message.mutable_heartbeat()->set_count(++heartbeats_);
  }
  if (missed) {
    GoDown(base::Unavailable("nothing was heard for {:g} s: {} heartbeats missed",
                             base::ToSeconds(silence), kMissedHeartbeats));
    return;
  }
  Send(std::move(message));
}

void PairingSession::WaitDown(base::Duration duration) {
  const base::Clock& clock = *base::Clock::Real();
  const auto deadline = base::Deadline::After(clock, duration);
  base::MutexLock lock(mutex_);
  // Every message notifies as well.
  while (!down_ && !deadline.Expired(clock)) changed_.WaitFor(mutex_, deadline.Remaining(clock));
}

void PairingSession::GoDown(const absl::Status& reason) {
  std::shared_ptr<ControlStream> stream;
  std::shared_ptr<channel::Channel> channel;
  std::map<base::TransferId, std::weak_ptr<RemoteAttempt>> attempts;
  {
    base::MutexLock lock(mutex_);
    if (down_) return;
    down_ = true;
    up_ = false;
    reason_ = reason;
    stream.swap(stream_);
    channel = channel_;
    attempts.swap(attempts_);
  }
  changed_.NotifyAll();
  if (channel != nullptr) channel->Close(reason);
  if (stream != nullptr) stream->Cancel();
  const absl::Status told =
      base::Annotate(reason, fmt::format("the pairing with {} is down", address_));
  for (const auto& [id, weak] : attempts) {
    if (const auto attempt = weak.lock()) attempt->OnDown(told);
  }
}

bool PairingSession::up() const {
  base::MutexLock lock(mutex_);
  return up_;
}

bool PairingSession::healthy() const {
  base::MutexLock lock(mutex_);
  return up_ && !draining_;
}

absl::Status PairingSession::reason() const {
  base::MutexLock lock(mutex_);
  return reason_;
}

uint64_t PairingSession::peer_incarnation() const {
  base::MutexLock lock(mutex_);
  return reply_.incarnation();
}

std::string PairingSession::transport() const {
  base::MutexLock lock(mutex_);
  return reply_.transport();
}

base::Duration PairingSession::lease() const {
  base::MutexLock lock(mutex_);
  return base::FromSeconds(BelievableLease(reply_.lease_seconds()));
}

transfer::LinkEstimate PairingSession::link() const {
  base::MutexLock lock(mutex_);
  return link_;
}

std::shared_ptr<transfer::TransferReceiver> PairingSession::receiver() const {
  base::MutexLock lock(mutex_);
  return receiver_;
}

uint64_t PairingSession::received_bytes() const {
  std::shared_ptr<channel::Channel> channel;
  {
    base::MutexLock lock(mutex_);
    channel = channel_;
  }
  if (channel == nullptr) return 0;
  uint64_t bytes = 0;
  for (const uint64_t lane : channel->stats().bytes_received) bytes += lane;
  return bytes;
}

absl::Status PairingSession::Register(const base::TransferId& id,
                                      const std::shared_ptr<RemoteAttempt>& attempt) {
  base::MutexLock lock(mutex_);
  if (!up_) return base::Unavailable("the pairing with {} is down", address_);
  attempts_[id] = attempt;
  return absl::OkStatus();
}

void PairingSession::Unregister(const base::TransferId& id) {
  base::MutexLock lock(mutex_);
  attempts_.erase(id);
}

void PairingSession::Send(v1::ControlMessage message) {
  std::shared_ptr<ControlStream> stream;
  {
    base::MutexLock lock(mutex_);
    stream = stream_;
  }
  if (stream != nullptr) stream->Push(std::move(message));
}

void PairingSession::AddStep(v1::Split::Step step) {
  base::MutexLock lock(mutex_);
  *steps_.mutable_split()->add_steps() = std::move(step);
}

void PairingSession::FlushSteps() {
  v1::ControlMessage message;
  {
    base::MutexLock lock(mutex_);
    if (!steps_.has_split()) return;
    message.Swap(&steps_);
  }
  Send(std::move(message));
}

void PairingSession::Fetch(const base::TransferId& id,
                           std::span<const transfer::LayerRange> ranges) {
  v1::ControlMessage message;
  message.mutable_fetch()->set_transfer_id(rpc::TransferIdBytes(id));
  for (const transfer::LayerRange& range : ranges) {
    v1::LayerRange* out = message.mutable_fetch()->add_ranges();
    out->set_layer(range.layer);
    out->set_begin(range.begin);
    out->set_end(range.end);
  }
  Send(std::move(message));
}

}  // namespace smartgen::decode_server
