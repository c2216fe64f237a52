#include "decode_server/request.h"

#include <cstdlib>

#include "common/base/log.h"
#include "decode_server/request_trace.h"

namespace smartgen::decode_server {
namespace {

bool Allowed(RequestState from, RequestState to) {
  using enum RequestState;
  if (to == kFinished) return from != kFinished;
  const bool lost = to == kRemotePrefill || to == kLocalPrefill || to == kWaiting;
  switch (from) {
    case kWaiting:
      return to == kRemotePrefill || to == kLocalPrefill;
    case kRemotePrefill:
      return to == kReceiving || to == kHandover || to == kReading || lost;
    case kHandover:
      return to == kReading || to == kDecoding || lost;
    case kReading:
      return to == kHandover || to == kDecoding || lost;
    case kReceiving:
      return to == kDecoding || lost;
    case kLocalPrefill:
      return to == kDecoding || to == kWaiting;
    case kDecoding:
      return to == kWaiting;
    case kFinished:
      return false;
  }
  return false;
}

std::vector<int32_t> Concatenate(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  std::vector<int32_t> all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

}  // namespace

std::string_view RequestStateName(RequestState state) {
  switch (state) {
    case RequestState::kWaiting:
      return "waiting";
    case RequestState::kRemotePrefill:
      return "remote_prefill";
    case RequestState::kReceiving:
      return "receiving";
    case RequestState::kHandover:
      return "handover";
    case RequestState::kReading:
      return "reading";
    case RequestState::kLocalPrefill:
      return "local_prefill";
    case RequestState::kDecoding:
      return "decoding";
    case RequestState::kFinished:
      return "finished";
  }
  return "unknown";
}

Request::Request(GenerateSpec given, std::shared_ptr<GenerateListener> listener,
                 base::TimePoint arrival, uint64_t serial)
    : spec(std::move(given)),
      listener(std::move(listener)),
      arrival(arrival),
      serial(serial),
      tokens(Concatenate(spec.prompt, spec.generated)),
      sampler(spec.sampling, spec.prompt, spec.generated) {
  stats.prompt_tokens = static_cast<int64_t>(spec.prompt.size());
}

void Request::Cancel(const absl::Status& reason) {
  base::MutexLock lock(mutex_);
  if (cancelled_.load(std::memory_order_relaxed)) return;
  cancel_reason_ = reason;
  cancelled_.store(true, std::memory_order_release);
}

absl::Status Request::cancel_reason() const {
  base::MutexLock lock(mutex_);
  return cancel_reason_;
}

void Request::Advance(RequestState next) {
  if (!Allowed(state_, next)) {
    SMARTGEN_LOG(critical, "decode", "request {}: no transition from {} to {}", serial,
                 RequestStateName(state_), RequestStateName(next));
    std::abort();
  }
  TraceState(*this, next);
  state_ = next;
}

}  // namespace smartgen::decode_server
