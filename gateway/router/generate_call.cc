#include "gateway/router/generate_call.h"

#include "common/rpc/status.h"

namespace smartgen::gateway {

GenerateCall::GenerateCall(std::shared_ptr<Instance> decode, std::shared_ptr<Instance> prefill,
                           v1::GenerateRequest request, Events events, int read_ahead,
                           CallCount* calls)
    : decode_(std::move(decode)),
      prefill_(std::move(prefill)),
      request_(std::move(request)),
      read_ahead_(read_ahead),
      calls_(calls),
      events_(std::move(events)) {}

void GenerateCall::Start(base::Deadline deadline, const base::Clock& clock) {
  self_ = shared_from_this();
  calls_->Add();
  decode_->AddWork();
  if (prefill_) {
    prefill_counted_ = true;
    prefill_->AddWork();
  }
  decode_->Register(self_);
  rpc::SetDeadline(context_, deadline, clock);
  decode_->decode_stub()->async()->Generate(&context_, &request_, this);
  // Consumed and Cancel start reads from outside of reactions; given back when reading has ended.
  AddHold();
  StartRead(&incoming_);
  StartCall();
}

void GenerateCall::OnReadDone(bool ok) {
  if (!ok) {
    RemoveHold();
    return;
  }
  events_.on_event(std::move(incoming_));
  incoming_.Clear();
  {
    base::MutexLock lock(mutex_);
    if (++outstanding_ >= read_ahead_) {
      paused_ = true;
      return;
    }
  }
  StartRead(&incoming_);
}

void GenerateCall::Consumed() {
  {
    base::MutexLock lock(mutex_);
    --outstanding_;
    if (!paused_ || outstanding_ > read_ahead_ / 2) return;
    paused_ = false;
  }
  StartRead(&incoming_);
}

void GenerateCall::Cancel() {
  context_.TryCancel();
  {
    base::MutexLock lock(mutex_);
    if (!paused_) return;
    paused_ = false;
  }
  StartRead(&incoming_);  // fails, and so gives the hold back
}

void GenerateCall::Break(std::string_view reason) {
  {
    base::MutexLock lock(mutex_);
    break_reason_ = reason;
  }
  Cancel();
}

void GenerateCall::PrefillEnded() {
  if (prefill_counted_.exchange(false)) prefill_->RemoveWork();
}

void GenerateCall::OnDone(const grpc::Status& grpc_status) {
  absl::Status status = rpc::FromGrpc(grpc_status);
  {
    base::MutexLock lock(mutex_);
    if (!status.ok() && !break_reason_.empty()) {
      status = base::Unavailable("{}: {}", address(), break_reason_);
    }
  }
  // The next poll, which is due at once, brings it back if it was only a moment's matter.
  if (status.code() == absl::StatusCode::kUnavailable) decode_->MarkDown(base::MessageOf(status));
  PrefillEnded();
  decode_->RemoveWork();
  events_.on_end(std::move(status));
  events_ = {};
  CallCount* const calls = calls_;
  self_.reset();
  calls->Remove();
}

}  // namespace smartgen::gateway
