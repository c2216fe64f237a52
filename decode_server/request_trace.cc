#include "decode_server/request_trace.h"

#include "decode_server/engine.h"

namespace smartgen::decode_server {
namespace {

using trace::Kind;

Kind KindOf(RequestState state) {
  switch (state) {
    case RequestState::kWaiting:
      return Kind::kWaiting;
    case RequestState::kRemotePrefill:
      return Kind::kRemotePrefill;
    case RequestState::kReceiving:
      return Kind::kReceiving;
    case RequestState::kHandover:
      return Kind::kHandover;
    case RequestState::kReading:
      return Kind::kReading;
    case RequestState::kLocalPrefill:
      return Kind::kLocalPrefill;
    case RequestState::kDecoding:
    case RequestState::kFinished:
      return Kind::kDecoding;
  }
  return Kind::kDecoding;
}

}  // namespace

void TraceState(const Request& request, RequestState next) {
  const trace::TracePtr& trace = request.spec.trace;
  if (trace == nullptr) return;
  if (next == RequestState::kFinished) {
    trace->Finish(Kind::kRequest);
  } else {
    trace->Enter(KindOf(next));
  }
}

void TraceStepBegun(Request& request) {
  if (request.spec.trace != nullptr) request.step_begun = request.spec.trace->Now();
}

void TraceStepRead(const Request& request, const executor::SlotRead& read) {
  const trace::TracePtr& trace = request.spec.trace;
  if (trace == nullptr) return;
  const Kind kind = read.selector == nullptr ? Kind::kStepShipped : Kind::kStepReading;
  trace->Add(kind, request.step_begun,
             {request.length() - 1, read.selected_entries, read.remote_entries});
}

void TraceAnswer(Request& request) {
  const trace::TracePtr& trace = request.spec.trace;
  if (trace == nullptr) return;
  const Request::Handover& handover = request.handover;
  // With no layer here the step began when it was sent.
  if (handover.from == 0) request.step_begun = handover.sent_at;
  trace->Add(Kind::kSplitAway, handover.sent_at,
             {request.length() - 1, handover.from, handover.retries,
              static_cast<int64_t>(handover.hidden.size() * sizeof(float))});
}

void TraceToken(const Request& request) {
  trace::Mark(request.spec.trace, Kind::kToken, {request.generated() + 1, request.length()});
}

void TraceAttempt(const Request& request) {
  const trace::TracePtr& trace = request.spec.trace;
  if (trace == nullptr) return;
  // Each once, in the order in which they were asked.
  trace->Note(fmt::format("prefill_{}", request.attempts), request.remote.address);
  trace->Note("prompt_tokens", fmt::format("{}", request.stats.prompt_tokens));
}

void TraceStats(const Request& request) {
  const trace::TracePtr& trace = request.spec.trace;
  if (trace == nullptr) return;
  const Stats& stats = request.stats;
  trace->Note("mode", std::string(transfer::ModeName(stats.mode)));
  trace->Note("generated_tokens", fmt::format("{}", request.generated()));
  for (const auto& [path, bytes] : stats.path_bytes) {
    trace->Note(fmt::format("path_bytes.{}", transfer::PathName(path)), fmt::format("{}", bytes));
  }
}

void DecodeEngine::TraceStep(std::span<const Share> batch, base::TimePoint begin) {
  const auto together = static_cast<int64_t>(batch.size());
  for (const Share& share : batch) {
    Request& request = *share.request;
    const trace::TracePtr& trace = request.spec.trace;
    if (trace == nullptr) continue;
    const int64_t position = request.length() - 1;
    switch (share.part) {
      case Part::kWhole:
        trace->Add(Kind::kStepLocal, begin, {position, together});
        break;
      case Part::kFirstLayers:
        request.step_begun = begin;
        trace->Add(Kind::kStepFirstLayers, begin, {position, request.handover.from, together});
        break;
      case Part::kOutput: {
        const base::TimePoint now = trace->Now();
        trace->Add(Kind::kStepOutput, begin, now, {position, together});
        trace->Add(Kind::kStepHandover, request.step_begun, now, {position, request.handover.from});
        break;
      }
    }
  }
}

}  // namespace smartgen::decode_server
