#include "gateway/readiness.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/strand.hpp>

#include "common/base/log.h"
#include "common/rpc/convert.h"
#include "gateway/stream/slot.h"

namespace smartgen::gateway {

namespace asio = boost::asio;

Readiness::Readiness(Options options, const ServedModel* model, Router* router,
                     GatewayMetrics* metrics, const base::Clock* clock)
    : options_(options), model_(model), router_(router), metrics_(metrics), clock_(clock) {}

void Readiness::Start(asio::any_io_executor executor) {
  const auto strand = asio::make_strand(executor);
  const auto wake = std::make_shared<Mailbox<int>>(strand);
  {
    base::MutexLock lock(mutex_);
    wake_ = wake;
  }
  asio::co_spawn(strand, Loop(wake, strand), asio::detached);
}

void Readiness::Stop() {
  std::shared_ptr<Mailbox<int>> wake;
  {
    base::MutexLock lock(mutex_);
    stopping_ = true;
    // The mailbox must not outlive its executor, and the caller is about to end that.
    wake.swap(wake_);
  }
  if (wake) wake->Push(0);
}

std::string Readiness::PathName(const v1::RequestStats& stats,
                                const std::string& decode_address) const {
  if (stats.prefill_address().empty()) return fmt::format("decode {} alone", decode_address);
  return fmt::format("prefill {} -> decode {}", stats.prefill_address(), decode_address);
}

void Readiness::NoteSuccess(const v1::RequestStats& stats, const std::string& decode_address) {
  base::MutexLock lock(mutex_);
  if (!ready_) SMARTGEN_LOG(info, "ready", "ready through {}", PathName(stats, decode_address));
  ready_ = true;
  suspect_ = false;
  error_.clear();
  last_proof_ = clock_->Now();
  // A generation that a stop string ended has no statistics.
  if (stats.mode() == v1::MODE_UNSPECIFIED) return;
  path_ = PathName(stats, decode_address);
  mode_ = ModeName(stats.mode());
  fallback_ = stats.fallback_reason();
}

void Readiness::NoteFailure(const absl::Status& status) {
  base::MutexLock lock(mutex_);
  if (suspect_) return;
  suspect_ = true;
  error_ = base::MessageOf(status);
  if (wake_) wake_->Push(0);
}

void Readiness::Refused(const absl::Status& status) {
  base::MutexLock lock(mutex_);
  suspect_ = true;
  error_ = base::MessageOf(status);
  // Full is not broken: what runs there proves the path.
  if (absl::IsResourceExhausted(status)) return;
  if (ready_) SMARTGEN_LOG(warn, "ready", "not ready: {}", error_);
  ready_ = false;
}

bool Readiness::ready() const {
  base::MutexLock lock(mutex_);
  return ready_ && router_->AnyDecodeUp();
}

base::Duration Readiness::UntilProbe() const {
  base::MutexLock lock(mutex_);
  // A proof is void as soon as no decode instance is up, so that is looked at in between.
  if (suspect_ || !ready_) return options_.retry;
  const base::Duration age = clock_->Now() - last_proof_;
  return std::clamp<base::Duration>(options_.interval - age, base::Duration(0), options_.retry);
}

asio::awaitable<void> Readiness::Loop(std::shared_ptr<Mailbox<int>> wake,
                                      asio::any_io_executor executor) {
  bool first = true;
  for (;;) {
    const base::Duration pause = first ? base::Duration(0) : UntilProbe();
    first = false;
    if (pause.count() > 0) {
      co_await wake->Pop(pause);
      while (wake->TryPop()) {
      }
    }
    {
      base::MutexLock lock(mutex_);
      if (stopping_) co_return;
      const bool proven = ready_ && !suspect_ && router_->AnyDecodeUp() &&
                          clock_->Now() - last_proof_ < options_.interval;
      if (proven) continue;
    }
    co_await Probe(executor);
  }
}

v1::GenerateRequest Readiness::ProbeRequest() const {
  v1::GenerateRequest request;
  request.set_request_id("readiness");
  const auto ids = model_->tokenizer->Encode("Hello", /*parse_special=*/false);
  request.mutable_prompt_ids()->Add(ids.begin(), ids.end());
  if (ids.empty()) request.add_prompt_ids(0);
  sampling::SamplingParams params;
  params.temperature = 0;
  params.ignore_eos = true;
  rpc::ToProto(params, request.mutable_sampling());
  request.set_max_tokens(1);
  return request;
}

asio::awaitable<void> Readiness::Probe(asio::any_io_executor executor) {
  auto inbox = std::make_shared<Inbox>(executor);
  BackendCall::Events events;
  events.on_event = [inbox](v1::GenerateEvent event) { inbox->Push({std::move(event), {}}); };
  events.on_end = [inbox](absl::Status status) { inbox->Push({{}, std::move(status)}); };
  const base::Deadline deadline = base::Deadline::After(*clock_, options_.timeout);
  auto call = router_->Generate(ProbeRequest(), {}, deadline, std::move(events));
  if (!call.ok()) {
    Refused(call.status());
    co_return;
  }
  bool token = false;
  std::optional<v1::RequestStats> stats;
  for (;;) {
    auto note = co_await inbox->Pop(deadline.Remaining(*clock_));
    if (!note) {
      (*call)->Cancel();
      Refused(base::DeadlineExceeded("{} made no token in {:.0f} s", (*call)->address(),
                                     base::ToSeconds(options_.timeout)));
      co_return;
    }
    if (note->event) {
      (*call)->Consumed();
      token = token || note->event->has_token();
      if (note->event->has_finished()) stats = note->event->finished().stats();
      continue;
    }
    if (token && stats) {
      NoteSuccess(*stats, (*call)->address());
    } else {
      Refused(note->end->ok() ? base::Internal("{} ended without a token", (*call)->address())
                              : *note->end);
    }
    co_return;
  }
}

Json Readiness::Report(bool draining) const {
  const bool ready = this->ready();
  Json degraded = Json::array();
  for (const InstanceState& state : router_->Snapshot()) {
    const char* kind = state.prefill ? "prefill" : "decode";
    if (!state.up) degraded.push_back(fmt::format("{} {}: {}", kind, state.address, state.detail));
    for (const std::string& peer : state.peers_down) {
      degraded.push_back(fmt::format("decode {}: no pairing with prefill {}", state.address, peer));
    }
  }
  base::MutexLock lock(mutex_);
  if (!fallback_.empty()) degraded.push_back("last generation fell back: " + fallback_);
  Json report;
  report["status"] = draining ? "draining" : ready ? "ready" : "not ready";
  report["path"] = path_.empty() || !ready ? Json(nullptr) : Json(path_);
  report["mode"] = mode_.empty() || !ready ? Json(nullptr) : Json(mode_);
  report["degraded"] = std::move(degraded);
  if (!error_.empty()) report["error"] = error_;
  return report;
}

}  // namespace smartgen::gateway
