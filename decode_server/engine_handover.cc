// Exact steps while KV is on the way (smartgen.md, section 6): the layers whose KV is all here run
// here, the rest runs on the prefill side, and the output comes back.
#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "common/base/log.h"
#include "common/transfer/blocks.h"
#include "decode_server/engine.h"
#include "decode_server/engine_metrics.h"
#include "decode_server/request_trace.h"

namespace smartgen::decode_server {

void DecodeEngine::EnterHandover(const RequestPtr& request) {
  ReturnToHandover(request);
  request->decode_started = parts_.clock->Now();
}

void DecodeEngine::ReturnToHandover(const RequestPtr& request) {
  request->Advance(RequestState::kHandover);
  request->handover = {};
  request->handover.local_until.assign(static_cast<size_t>(parts_.executor->config().num_layers()),
                                       0);
  request->handover.hidden.resize(static_cast<size_t>(parts_.executor->config().hidden_dim));
}

int DecodeEngine::LocalLayers(Request& request) {
  auto& handover = request.handover;
  const int64_t position = request.length() - 1;
  const int layers = static_cast<int>(handover.local_until.size());
  while (handover.layers < layers) {
    int64_t& until = handover.local_until[static_cast<size_t>(handover.layers)];
    const int window = parts_.pool->layout().layers[static_cast<size_t>(handover.layers)].window;
    until = std::max(until, transfer::TravelBegin(window, 0, position));
    until = request.sequence->FirstNotLocal(handover.layers, std::min(until, position), position);
    if (until < position) break;
    ++handover.layers;
  }
  return handover.layers;
}

void DecodeEngine::SendStep(const RequestPtr& request) {
  auto& handover = request->handover;
  handover.phase = Request::Handover::Phase::kAway;
  handover.sent_at = handover.heard_at = parts_.clock->Now();
  const int64_t position = request->length() - 1;
  const int64_t held = std::min(request->outlook.held_there, position);
  const auto before = std::span<const int32_t>(request->tokens)
                          .subspan(static_cast<size_t>(held), static_cast<size_t>(position - held));
  request->remote.attempt->Split(position, request->tokens.back(), handover.from, handover.hidden,
                                 before);
}

void DecodeEngine::OnReply(const RequestPtr& request, uint64_t step, int layer,
                           std::span<const std::byte> bytes) {
  if (request->reading != nullptr && request->reading->reader != nullptr &&
      request->state() == RequestState::kReading) {
    request->reading->reader->OnReply(step, layer, bytes);
    return;
  }
  auto& handover = request->handover;
  // An answer may come twice, or to a step that was asked for again with more layers here.
  if (request->state() != RequestState::kHandover ||
      handover.phase != Request::Handover::Phase::kAway ||
      step != static_cast<uint64_t>(request->length() - 1) || layer != handover.from) {
    return;
  }
  if (bytes.size() != handover.hidden.size() * sizeof(float)) {
    AttemptFailed(request, Fallback::kPrefillError,
                  base::InvalidArgument("the answer to a split step has {} bytes, want {}",
                                        bytes.size(), handover.hidden.size() * sizeof(float)));
    return;
  }
  TraceAnswer(*request);
  std::memcpy(handover.hidden.data(), bytes.data(), bytes.size());
  handover.phase = Request::Handover::Phase::kBack;
  const int64_t position = request->length() - 1;
  const base::TimePoint now = parts_.clock->Now();
  if (request->outlook.held_there == position) {
    const int layers = parts_.executor->config().num_layers();
    step_times_.HandedOver(request->remote.address, base::ToSeconds(now - handover.sent_at),
                           static_cast<double>(layers - handover.from) / layers,
                           SplitTrip(request->remote.attempt->progress().link), now);
  }
  request->outlook.held_there = position + 1;
  handover.retries = 0;
}

void DecodeEngine::OnDeferred(const RequestPtr& request) {
  const base::TimePoint now = parts_.clock->Now();
  request->handover.heard_at = deferred_at_[request->remote.address] = now;
  request->handover.retries = 0;
  if (request->state() == RequestState::kHandover) {
    // All that is sent without further steps may have come: then silence is no stall.
    if (request->remote.kv_complete) {
      request->remote.progress_at = now;
      request->remote.fetches = 0;
    } else if (request->reading != nullptr) {
      GiveCredit(request);  // the link is idle meanwhile
    }
  }
  if (request->reading != nullptr && request->reading->reader != nullptr) {
    request->reading->reader->OnDeferred();
  }
}

void DecodeEngine::WatchHandover(const RequestPtr& request, base::TimePoint now) {
  auto& handover = request->handover;
  if (handover.phase != Request::Handover::Phase::kAway) return;
  // What was made here meanwhile is made there first.
  const int64_t replayed =
      std::max<int64_t>(request->length() - 1 - request->outlook.held_there, 0);
  const base::Duration replays =
      base::FromSeconds(2 * static_cast<double>(replayed) * step_times_.step_seconds());
  if (now - handover.heard_at <= options_.stall * (handover.retries + 1) + replays) return;
  if (handover.retries >= options_.max_fetches) {
    AttemptFailed(request, Fallback::kHandoverTimeout,
                  base::DeadlineExceeded("no answer to a split step though asked for {} times",
                                         handover.retries + 1));
    return;
  }
  ++handover.retries;
  parts_.metrics->GetCounter("handover_retries_total").Add();
  SMARTGEN_LOG(warn, "decode", "no answer to a split step from {}: asking again ({} of {})",
               request->remote.address, handover.retries, options_.max_fetches);
  const auto times = std::pair(handover.sent_at, handover.heard_at);
  SendStep(request);  // what came back partly is overwritten; the input of the layer is still here
  std::tie(handover.sent_at, handover.heard_at) = times;
  request->remote.attempt->FlushSteps();
}

// Layers of which the prompt's KV is here and a generated token's is not: it was lost on its way.
void DecodeEngine::FetchBorn(const RequestPtr& request) {
  const int64_t prompt_end = request->remote.prompt_end;
  const int64_t position = request->length() - 1;
  std::vector<transfer::LayerRange> missing;
  for (int layer = request->handover.layers;
       layer < static_cast<int>(request->handover.local_until.size()); ++layer) {
    const int window = parts_.pool->layout().layers[static_cast<size_t>(layer)].window;
    const int64_t first = transfer::TravelBegin(window, 0, prompt_end);
    if (!request->sequence->AllLocal(layer, first, prompt_end)) continue;
    for (int64_t token = prompt_end; token < position; ++token) {
      if (!request->sequence->AllLocal(layer, token, token + 1)) {
        missing.push_back({layer, token, token + 1});
      }
    }
  }
  request->remote.attempt->FetchRanges(missing);
}

}  // namespace smartgen::decode_server
