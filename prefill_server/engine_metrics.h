// The metrics that the engine writes often.
#pragma once

#include <array>

#include "common/metrics/metrics.h"
#include "prefill_server/engine.h"

namespace smartgen::prefill_server {

struct PrefillEngine::Hot {
  explicit Hot(metrics::Metrics& m)
      : queue_seconds(m.GetHistogram("stage_seconds", {{"stage", "queue"}})),
        prefill_seconds(m.GetHistogram("stage_seconds", {{"stage", "prefill"}})),
        local_tokens(m.GetCounter("prompt_tokens_total", {{"source", "local"}})),
        prefix_tokens(m.GetCounter("prompt_tokens_total", {{"source", "prefix"}})),
        generated(m.GetCounter("generation_tokens_total")),
        expired(m.GetCounter("kv_expired_total", {{"reason", "lease"}})),
        running(m.GetGauge("requests_running")),
        waiting(m.GetGauge("requests_waiting")),
        leases(m.GetGauge("kv_leases")),
        split_steps(m.GetCounter("handover_steps_total", {{"kind", "split"}})),
        split_seconds(m.GetCounter("handover_seconds_total", {{"kind", "split"}})),
        attend_seconds(m.GetCounter("handover_seconds_total", {{"kind", "attend"}})),
        handover_deferred(m.GetCounter("handover_deferred_total")) {
    constexpr std::array<const char*, 4> kStates = {"free", "used", "cached", "leased"};
    for (size_t i = 0; i < kStates.size(); ++i) {
      pages[i] = &m.GetGauge("kv_pages", {{"state", kStates[i]}});
    }
  }
  metrics::Histogram& queue_seconds;
  metrics::Histogram& prefill_seconds;
  metrics::Counter& local_tokens;
  metrics::Counter& prefix_tokens;
  metrics::Counter& generated;
  metrics::Counter& expired;
  metrics::Gauge& running;
  metrics::Gauge& waiting;
  metrics::Gauge& leases;
  metrics::Counter& split_steps;
  metrics::Counter& split_seconds;
  metrics::Counter& attend_seconds;
  metrics::Counter& handover_deferred;
  std::array<metrics::Gauge*, 4> pages{};
};

}  // namespace smartgen::prefill_server
