#include "decode_server/remote_attempt.h"

#include <utility>

#include "common/base/log.h"
#include "common/rpc/convert.h"
#include "common/rpc/status.h"
#include "common/transfer/message_trace.h"

namespace smartgen::decode_server {

absl::StatusOr<std::shared_ptr<RemoteAttempt>> RemoteAttempt::Start(
    std::shared_ptr<PairingSession> session, AttemptSpec spec, AttemptEvents events) {
  auto attempt =
      std::shared_ptr<RemoteAttempt>(new RemoteAttempt(std::move(session), std::move(events)));
  RETURN_IF_ERROR(attempt->Begin(spec));
  attempt->Call(spec);
  return attempt;
}

absl::Status RemoteAttempt::Begin(const AttemptSpec& spec) {
  receiver_ = session_->receiver();
  if (receiver_ == nullptr)
    return base::Unavailable("the pairing with {} is down", session_->address());
  // First the place for the KV, then the call: the first layer may come before the call's first
  // event.
  if (spec.max_tokens > 1) {
    RETURN_IF_ERROR(receiver_->Begin(MakeReceiveSpec(spec)));
  }
  const absl::Status registered = session_->Register(id_, shared_from_this());
  if (!registered.ok()) receiver_->End(id_);
  return registered;
}

transfer::ReceiveSpec RemoteAttempt::MakeReceiveSpec(const AttemptSpec& spec) {
  // The receiver may outlive this; whoever has ended hears nothing more.
  const auto live = [weak = weak_from_this()]() -> std::shared_ptr<RemoteAttempt> {
    const auto self = weak.lock();
    return self != nullptr && !self->ended() ? self : nullptr;
  };
  transfer::ReceiveSpec receive;
  receive.id = id_;
  receive.sequence = spec.sequence;
  receive.begin = spec.decode_cached_tokens;
  receive.end = static_cast<int64_t>(spec.tokens.size());
  receive.on_layer = [live](int) {
    if (const auto self = live()) self->OnLayer();
  };
  receive.on_complete = [live] {
    if (const auto self = live()) self->OnComplete();
  };
  receive.on_arrival = [live] {
    if (const auto self = live()) self->events_.on_arrival();
  };
  receive.on_reply = [live](uint64_t step, int layer, std::vector<std::byte> bytes) {
    if (const auto self = live()) self->events_.on_reply(step, layer, std::move(bytes));
  };
  receive.on_metadata = [live](int layer, int64_t begin, int64_t end, bool header,
                               std::vector<std::byte> bytes) {
    if (const auto self = live()) {
      self->events_.on_metadata(layer, begin, end, header, std::move(bytes));
    }
  };
  receive.on_message = transfer::TraceMessages(spec.trace, /*sent=*/false, receive.end);
  return receive;
}

void RemoteAttempt::Call(const AttemptSpec& spec) {
  const PairingContext& context = session_->context();
  request_.set_transfer_id(rpc::TransferIdBytes(id_));
  request_.set_decode_incarnation(context.incarnation);
  request_.set_prefill_incarnation(session_->peer_incarnation());
  request_.mutable_token_ids()->Add(spec.tokens.begin(), spec.tokens.end());
  request_.set_decode_cached_tokens(spec.decode_cached_tokens);
  request_.set_prompt_tokens(spec.prompt_tokens);
  rpc::ToProto(spec.sampling, request_.mutable_sampling());
  request_.set_max_tokens(spec.max_tokens);
  request_.set_mode(rpc::ToProto(spec.mode));
  rpc::ToProto(spec.transfer, request_.mutable_transfer());
  request_.set_model_fingerprint(context.model_fingerprint);
  if (spec.trace != nullptr) request_.set_trace_id(spec.trace->id());
  Stream::Events events;
  events.on_message = [self = shared_from_this()](const v1::PrefillEvent& event) {
    self->OnEvent(event);
  };
  events.on_closed = [self = shared_from_this()](const grpc::Status& status) {
    self->OnClosed(rpc::FromGrpc(status));
  };
  const auto stream =
      Stream::Start(std::move(events), [&](grpc::ClientContext* client, auto* reactor) {
        rpc::SetDeadline(*client, spec.deadline, *context.clock);
        session_->stub().async()->Prefill(client, &request_, reactor);
      });
  {
    base::MutexLock lock(mutex_);
    if (closed_) return;
    if (!failed_) {
      stream_ = stream;
      return;
    }
  }
  // The pairing broke before there was a stream that End could cancel.
  stream->Cancel();
}

void RemoteAttempt::OnLayer() {
  if (first_layer_bytes_ > 0) return;
  first_layer_at_ = session_->context().clock->Now();
  first_layer_bytes_ = receiver_->stats(id_).bytes;
}

void RemoteAttempt::OnComplete() {
  const PairingContext& context = session_->context();
  const double seconds = base::ToSeconds(context.clock->Now() - first_layer_at_);
  const uint64_t bytes = receiver_->stats(id_).bytes;
  if (bytes > first_layer_bytes_ && seconds > 0) {
    context.metrics->GetGauge("link_bandwidth_bytes_per_second", {{"peer", session_->address()}})
        .Set(static_cast<double>(bytes - first_layer_bytes_) / seconds);
  }
  events_.on_complete();
}

bool RemoteAttempt::ended() const {
  base::MutexLock lock(mutex_);
  return ended_;
}

void RemoteAttempt::SetDone() {
  base::MutexLock lock(mutex_);
  done_ = true;
}

void RemoteAttempt::OnEvent(const v1::PrefillEvent& event) {
  if (ended()) return;
  switch (event.event_case()) {
    case v1::PrefillEvent::kStarted:
      return events_.on_started(event.started().prefill_cached_tokens(),
                                event.started().queue_seconds());
    case v1::PrefillEvent::kFirstToken: {
      auto token = rpc::FromProto(event.first_token());
      if (!token.ok())
        return Fail(Fallback::kPrefillError, base::Annotate(token.status(), "token 1"));
      return events_.on_token(*std::move(token));
    }
    case v1::PrefillEvent::kDone:
      SetDone();
      return events_.on_done(event.done().transfer(), event.done().prefill_seconds());
    case v1::PrefillEvent::EVENT_NOT_SET:
      return Fail(Fallback::kPrefillError,
                  base::InvalidArgument("an event of a kind that this version does not know"));
  }
}

void RemoteAttempt::OnClosed(const absl::Status& status) {
  bool done = false;
  {
    base::MutexLock lock(mutex_);
    stream_.reset();
    closed_ = true;
    done = done_;
  }
  if (!status.ok()) {
    Fail(FallbackFor(status), status);
  } else if (!done) {
    Fail(Fallback::kPrefillError, base::Internal("the Prefill call ended without `done`"));
  }
}

void RemoteAttempt::Fail(Fallback reason, const absl::Status& status) {
  {
    base::MutexLock lock(mutex_);
    if (ended_ || failed_) return;
    failed_ = true;
  }
  events_.on_failed(reason, status);
}

void RemoteAttempt::OnSent() {
  if (!ended()) events_.on_sent();
}

void RemoteAttempt::OnDeferred() {
  if (!ended()) events_.on_deferred();
}

void RemoteAttempt::OnAborted(const std::string& reason) {
  if (ended()) return;
  session_->context().metrics->GetCounter("kv_expired_total", {{"reason", "peer"}}).Add();
  Fail(Fallback::kLeaseLost, base::Aborted("the prefill side gave the KV up: {}", reason));
}

void RemoteAttempt::OnDown(const absl::Status& reason) { Fail(Fallback::kPeerDown, reason); }

void RemoteAttempt::OnPlan(const v1::Plan& plan) {
  if (ended()) return;
  events_.on_plan({.budget_blocks = plan.budget_blocks(),
                   .pushed_blocks = plan.pushed_blocks(),
                   .total_blocks = plan.total_blocks(),
                   .prefill_seconds = plan.prefill_seconds(),
                   .transfer_seconds = plan.transfer_seconds()});
}

PrefillAttempt::Progress RemoteAttempt::progress() const {
  transfer::ReceiverStats stats = receiver_->stats(id_);  // not under our lock: it calls us
  {
    base::MutexLock lock(mutex_);
    if (ended_) stats = final_;
  }
  return {.bytes = stats.bytes,
          .pairing_bytes = session_->received_bytes(),
          .path_bytes = std::move(stats.bytes_by_path),
          .damaged_rest_bytes = stats.corrupt_speculative_bytes,
          .link = session_->link()};
}

bool RemoteAttempt::FetchMissing() {
  const std::vector<transfer::LayerRange> missing = receiver_->Missing(id_);
  if (missing.empty()) return false;
  session_->Fetch(id_, missing);
  return true;
}

void RemoteAttempt::FetchRanges(std::span<const transfer::LayerRange> ranges) {
  if (!ranges.empty()) session_->Fetch(id_, ranges);
}

void RemoteAttempt::FetchHeads(int layer, std::span<const kv::HeadRange> ranges, bool again) {
  v1::ControlMessage message;
  v1::Fetch& fetch = *message.mutable_fetch();
  fetch.set_transfer_id(rpc::TransferIdBytes(id_));
  fetch.set_layer(layer);
  fetch.set_again(again);
  for (const kv::HeadRange& range : ranges) {
    v1::HeadRange* out = fetch.add_heads();
    out->set_head(range.head);
    out->set_begin(range.begin);
    out->set_end(range.end);
  }
  session_->Send(std::move(message));
}

void RemoteAttempt::FetchMetadata(std::span<const transfer::LayerRange> ranges) {
  v1::ControlMessage message;
  v1::Fetch& fetch = *message.mutable_fetch();
  fetch.set_transfer_id(rpc::TransferIdBytes(id_));
  for (const transfer::LayerRange& range : ranges) {
    v1::LayerRange* out = fetch.add_metadata();
    out->set_layer(range.layer);
    out->set_begin(range.begin);
    out->set_end(range.end);
  }
  session_->Send(std::move(message));
}

void RemoteAttempt::Split(int64_t position, int32_t token, int layer, std::span<const float> hidden,
                          std::span<const int32_t> before) {
  v1::Split::Step step;
  step.set_transfer_id(rpc::TransferIdBytes(id_));
  step.set_position(position);
  step.set_token(token);
  step.set_layer(layer);
  if (layer > 0) step.set_hidden(hidden.data(), hidden.size_bytes());
  step.mutable_before()->Add(before.begin(), before.end());
  session_->AddStep(std::move(step));
}

void RemoteAttempt::Attend(int64_t position, int layer, int64_t begin, int64_t end,
                           std::span<const float> queries) {
  v1::ControlMessage message;
  v1::Attend& attend = *message.mutable_attend();
  attend.set_layer(layer);
  v1::Attend::Job& job = *attend.add_jobs();
  job.set_transfer_id(rpc::TransferIdBytes(id_));
  job.set_position(position);
  job.set_begin(begin);
  job.set_end(end);
  job.set_queries(queries.data(), queries.size_bytes());
  session_->Send(std::move(message));
}

void RemoteAttempt::Credit(int64_t bytes) {
  v1::ControlMessage message;
  message.mutable_credit()->set_transfer_id(rpc::TransferIdBytes(id_));
  message.mutable_credit()->set_bytes(bytes);
  session_->Send(std::move(message));
}

void RemoteAttempt::RenewLease() {
  v1::ControlMessage message;
  message.mutable_lease_renew()->add_transfer_ids(rpc::TransferIdBytes(id_));
  session_->Send(std::move(message));
}

void RemoteAttempt::End() {
  std::shared_ptr<Stream> stream;
  {
    base::MutexLock lock(mutex_);
    if (ending_) return;
    ending_ = true;
  }
  // What it counted is all that there will be.
  const transfer::ReceiverStats stats = receiver_->End(id_);
  {
    base::MutexLock lock(mutex_);
    ended_ = true;
    final_ = stats;
    stream.swap(stream_);
  }
  session_->Unregister(id_);
  v1::ControlMessage message;
  message.mutable_release()->set_transfer_id(rpc::TransferIdBytes(id_));
  session_->Send(std::move(message));
  if (stream != nullptr) stream->Cancel();
  metrics::Metrics& metrics = *session_->context().metrics;
  for (const auto& [path, bytes] : stats.bytes_by_path) {
    metrics
        .GetCounter("transfer_bytes_total",
                    {{"path", transfer::PathName(path)}, {"direction", "received"}})
        .Add(static_cast<double>(bytes));
  }
}

}  // namespace smartgen::decode_server
