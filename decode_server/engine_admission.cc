// KV room: who gets in, who grows, who has to give way.
#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "decode_server/engine.h"
#include "decode_server/engine_metrics.h"
#include "decode_server/policy.h"

namespace smartgen::decode_server {

void DecodeEngine::Admit() {
  while (!waiting_.empty() && static_cast<int>(active_.size()) < options_.max_batch) {
    const RequestPtr request = waiting_.front();
    if (!ReserveRoom(*request)) return;
    waiting_.pop_front();
    const auto place = std::upper_bound(
        active_.begin(), active_.end(), request,
        [](const RequestPtr& a, const RequestPtr& b) { return a->serial < b->serial; });
    active_.insert(place, request);
    if (!request->was_admitted) {
      request->was_admitted = true;
      request->stats.queue_seconds = base::ToSeconds(parts_.clock->Now() - request->arrival);
      hot_->queue_seconds.Observe(request->stats.queue_seconds);
      const int64_t cached = request->sequence->prefix_tokens();
      request->stats.cached_tokens = std::min(cached, request->stats.prompt_tokens);
      hot_->prefix_tokens.Add(static_cast<double>(cached));
      request->listener->Admitted(request->stats.cached_tokens);
    }
    BeginPrefill(request);
  }
}

bool DecodeEngine::ReserveRoom(Request& request) {
  // At least one token is computed (here or there): the next one comes from its logits.
  auto prefix = parts_.prefix_cache->Lookup(request.tokens, request.length() - 1);
  auto sequence = std::make_shared<kv::KvSequence>(parts_.pool, std::move(prefix));
  if (!sequence->Reserve(request.length() + 1).ok()) return false;
  const auto others = std::count_if(active_.begin(), active_.end(), [&](const RequestPtr& other) {
    return other.get() != &request;
  });
  if (const int64_t headroom = HeadroomPages(others); headroom > 0) {
    // Asking is the only way to know what the cache would give up.
    const auto pages = parts_.pool->Allocate(headroom);
    if (!pages.ok()) return false;
    parts_.pool->Release(*pages);
  }
  request.sequence = std::move(sequence);
  return true;
}

void DecodeEngine::BeginPrefill(const RequestPtr& request) {
  request->prefill_started = parts_.clock->Now();
  const Mode mode = request->spec.mode;
  const int64_t lacking = request->length() - request->sequence->prefix_tokens();
  const bool local =
      request->force_local || mode == Mode::kLocal ||
      (mode == Mode::kAuto && (!parts_.directory->configured() ||
                               lacking < options_.local_below_tokens || SoonerHere(*request)));
  if (local) {
    StartLocal(request);
  } else {
    TryRemote(request);
  }
}

bool DecodeEngine::SoonerHere(const Request& request) const {
  if (!placement_.known()) return false;
  const std::vector<std::string> peers = parts_.directory->Healthy(request.spec.prefill_ranking);
  if (peers.empty()) return false;  // counted as a fallback
  const base::TimePoint now = parts_.clock->Now();
  Placement::Load load;
  for (const auto& other : active_) {
    if (other.get() == &request) continue;
    const int64_t cached = other->sequence->prefix_tokens();
    switch (other->state()) {
      case RequestState::kLocalPrefill:
        load.local.push_back({other->length() - other->local_done, other->local_done, 0});
        break;
      case RequestState::kRemotePrefill:
        if (other->remote.address != peers.front()) break;
        load.remote.push_back(
            {other->length() - cached, cached, base::ToSeconds(now - other->prefill_started)});
        break;
      default:
        ++load.streams;
    }
  }
  const int64_t cached = request.sequence->prefix_tokens();
  return placement_.KeepHere(request.length() - cached, cached, peers.front(), load, now);
}

bool DecodeEngine::GrowOrPreempt(const RequestPtr& request) {
  const base::TimePoint now = parts_.clock->Now();
  std::optional<int64_t> free;
  while (!request->sequence->Reserve(request->length()).ok()) {
    // The last one that gave way holds its pages by payloads under way: another would as well.
    if (free == parts_.pool->free_pages()) {
      drains_until_ = now + options_.stall;
      drains_from_ = *free;
    }
    if (now < drains_until_ && parts_.pool->free_pages() <= drains_from_) return false;
    std::vector<uint64_t> serials;
    for (const auto& other : active_) serials.push_back(other->serial);
    const std::optional<size_t> victim = ChooseVictim(serials);
    const RequestPtr chosen = active_[*victim];  // never empty: `request` is in it
    if (chosen == request && active_.size() == 1) {
      // Nobody else holds KV, so the rest is pinned by payloads still draining; they end by the
      // channel's own timeout. Giving our own pages up lets us start again when they have.
      SMARTGEN_LOG(warn, "decode",
                   "no KV room though nothing else runs: waiting for transfers to drain");
    }
    free = parts_.pool->free_pages();
    Preempt(chosen);
    if (chosen == request) return false;
  }
  return true;
}

void DecodeEngine::Preempt(const RequestPtr& request) {
  hot_->preemptions.Add();
  ++request->stats.preemptions;
  SMARTGEN_LOG(info, "decode",
               "pre-empted in state {} with {} tokens: no KV room for older requests",
               RequestStateName(request->state()), request->length());
  if (request->state() == RequestState::kDecoding || request->state() == RequestState::kReading ||
      request->state() == RequestState::kHandover) {
    request->stats.decode_seconds += base::ToSeconds(parts_.clock->Now() - request->decode_started);
  }
  if (request->reading != nullptr && request->reading->selector != nullptr) {
    CountFallback(*request, Fallback::kSelectionDropped,
                  "pre-empted: what follows is computed here with full attention");
  }
  EndAttempt(*request);
  request->sequence.reset();
  request->reading.reset();
  request->force_local = true;
  std::erase(active_, request);
  std::erase(local_, request);
  request->Advance(RequestState::kWaiting);
  // Before those that never ran, and in order of age among the pre-empted.
  const auto place = std::find_if(waiting_.begin(), waiting_.end(), [&](const RequestPtr& other) {
    return other->serial > request->serial;
  });
  waiting_.insert(place, request);
}

}  // namespace smartgen::decode_server
