#include "gateway/router/instance.h"

#include <algorithm>

#include "common/base/log.h"
#include "common/rpc/status.h"
#include "gateway/router/generate_call.h"

namespace smartgen::gateway {

void CallCount::Add() {
  base::MutexLock lock(mutex_);
  ++count_;
}

void CallCount::Remove() {
  base::MutexLock lock(mutex_);
  if (--count_ == 0) none_.NotifyAll();
}

bool CallCount::WaitForNone(base::Duration patience) {
  const base::Clock& clock = *base::Clock::Real();
  const base::Deadline deadline = base::Deadline::After(clock, patience);
  base::MutexLock lock(mutex_);
  while (count_ > 0 && !deadline.Expired(clock)) none_.WaitFor(mutex_, deadline.Remaining(clock));
  return count_ == 0;
}

struct Instance::InfoCall {
  grpc::ClientContext context;
  v1::InfoRequest request;
  v1::DaemonInfo info;
};

Instance::Instance(std::string address, bool prefill, std::shared_ptr<grpc::Channel> channel,
                   const Router::Options* options, metrics::Gauge* up_metric, CallCount* calls)
    : address_(std::move(address)),
      prefill_(prefill),
      options_(options),
      up_metric_(up_metric),
      calls_(calls),
      channel_(std::move(channel)),
      decode_stub_(prefill ? nullptr : v1::Decode::NewStub(channel_)),
      prefill_stub_(prefill ? v1::Prefill::NewStub(channel_) : nullptr) {
  up_metric_->Set(0);
}

void Instance::Poll(const base::Clock& clock) {
  auto call = std::make_shared<InfoCall>();
  rpc::SetTimeout(call->context, options_->poll_timeout);
  {
    base::MutexLock lock(mutex_);
    if (poll_) return;
    poll_ = call;
    next_poll_ = clock.Now() + (up_ ? options_->poll_interval : options_->poll_interval_down);
  }
  calls_->Add();
  auto done = [self = shared_from_this(), call](grpc::Status status) {
    self->OnInfo(call, status);
    self->calls_->Remove();
  };
  if (prefill_) {
    prefill_stub_->async()->Info(&call->context, &call->request, &call->info, std::move(done));
  } else {
    decode_stub_->async()->Info(&call->context, &call->request, &call->info, std::move(done));
  }
}

bool Instance::PollDue(base::TimePoint now) const {
  base::MutexLock lock(mutex_);
  return !poll_ && now >= next_poll_;
}

bool Instance::Known() const {
  base::MutexLock lock(mutex_);
  return known_;
}

void Instance::CancelPoll() {
  base::MutexLock lock(mutex_);
  if (poll_) poll_->context.TryCancel();
}

std::string Instance::WhyUnusable(const v1::DaemonInfo& info) const {
  if (info.model_fingerprint() != options_->model_fingerprint) {
    return fmt::format("serves another model ({}, fingerprint {}; this gateway has {})",
                       info.model_name(), info.model_fingerprint(), options_->model_fingerprint);
  }
  return info.draining() ? "draining" : "";
}

void Instance::OnInfo(const std::shared_ptr<InfoCall>& call, const grpc::Status& status) {
  bool dead = false;
  {
    base::MutexLock lock(mutex_);
    poll_ = nullptr;
    known_ = true;
    if (status.ok()) {
      misses_ = 0;
      info_.Swap(&call->info);
      const std::string why = WhyUnusable(info_);
      SetUp(why.empty(), why);
    } else {
      // One missed answer of a busy machine is not a reason to turn requests away.
      dead = ++misses_ == options_->misses_until_dead;
      if (misses_ < options_->misses_until_dead) next_poll_ = {};
      if (dead || !up_ || status.error_code() == grpc::StatusCode::UNAVAILABLE) {
        SetUp(false, base::MessageOf(rpc::FromGrpc(status)));
      }
    }
  }
  if (!dead) return;
  for (const auto& running : LiveCalls()) running->Break("the decode instance does not answer");
}

void Instance::SetUp(bool up, std::string_view detail) {
  if (up != up_ || (!up && detail != detail_)) {
    if (up) {
      SMARTGEN_LOG(info, "router", "{} is up", address_);
    } else {
      SMARTGEN_LOG(warn, "router", "{} is down: {}", address_, detail);
    }
  }
  up_ = up;
  detail_ = detail;
  up_metric_->Set(up ? 1 : 0);
}

void Instance::MarkDown(std::string_view detail) {
  base::MutexLock lock(mutex_);
  SetUp(false, detail);
  next_poll_ = {};
}

InstanceState Instance::State() const {
  base::MutexLock lock(mutex_);
  InstanceState state{address_, prefill_, up_, detail_, info_.running(), info_.waiting(), {}};
  for (const v1::PeerInfo& peer : info_.peers()) {
    if (!peer.up()) state.peers_down.push_back(peer.address() + ": " + peer.detail());
  }
  return state;
}

bool Instance::up() const {
  base::MutexLock lock(mutex_);
  return up_;
}

int64_t Instance::context_length() const {
  base::MutexLock lock(mutex_);
  return info_.context_length();
}

int64_t Instance::Load() const {
  base::MutexLock lock(mutex_);
  return std::max<int64_t>(own_work_, info_.running() + info_.waiting());
}

void Instance::Register(const std::shared_ptr<GenerateCall>& call) {
  base::MutexLock lock(mutex_);
  live_.remove_if([](const auto& weak) { return weak.expired(); });
  live_.push_back(call);
}

std::vector<std::shared_ptr<GenerateCall>> Instance::LiveCalls() {
  base::MutexLock lock(mutex_);
  std::vector<std::shared_ptr<GenerateCall>> calls;
  for (const auto& weak : live_) {
    if (auto call = weak.lock()) calls.push_back(std::move(call));
  }
  return calls;
}

}  // namespace smartgen::gateway
