// The metrics that the engine writes often.
#pragma once

#include <array>

#include "common/metrics/metrics.h"
#include "decode_server/engine.h"

namespace smartgen::decode_server {

struct DecodeEngine::Hot {
  explicit Hot(metrics::Metrics& m)
      : queue_seconds(m.GetHistogram("stage_seconds", {{"stage", "queue"}})),
        prefill_seconds(m.GetHistogram("stage_seconds", {{"stage", "prefill"}})),
        exposed_seconds(m.GetHistogram("stage_seconds", {{"stage", "transfer_exposed"}})),
        decode_seconds(m.GetHistogram("stage_seconds", {{"stage", "decode"}})),
        local_tokens(m.GetCounter("prompt_tokens_total", {{"source", "local"}})),
        prefix_tokens(m.GetCounter("prompt_tokens_total", {{"source", "prefix"}})),
        remote_tokens(m.GetCounter("prompt_tokens_total", {{"source", "remote"}})),
        recomputed_tokens(m.GetCounter("prompt_tokens_total", {{"source", "recomputed"}})),
        generated(m.GetCounter("generation_tokens_total")),
        preemptions(m.GetCounter("preemptions_total")),
        miss_ratio(m.GetHistogram("ondemand_miss_ratio")),
        speculative_iterations(m.GetHistogram("speculative_iterations")),
        stall_seconds(m.GetHistogram("decode_stall_seconds")),
        running(m.GetGauge("requests_running")),
        waiting(m.GetGauge("requests_waiting")),
        pages_free(m.GetGauge("kv_pages", {{"state", "free"}})),
        pages_used(m.GetGauge("kv_pages", {{"state", "used"}})),
        pages_cached(m.GetGauge("kv_pages", {{"state", "cached"}})) {
    for (size_t i = 0; i < transfer::kStepKinds.size(); ++i) {
      step_choices[i] = &m.GetCounter("step_choices_total",
                                      {{"kind", transfer::StepKindName(transfer::kStepKinds[i])}});
    }
  }
  metrics::Histogram& queue_seconds;
  metrics::Histogram& prefill_seconds;
  metrics::Histogram& exposed_seconds;
  metrics::Histogram& decode_seconds;
  metrics::Counter& local_tokens;
  metrics::Counter& prefix_tokens;
  metrics::Counter& remote_tokens;
  metrics::Counter& recomputed_tokens;
  metrics::Counter& generated;
  metrics::Counter& preemptions;
  metrics::Histogram& miss_ratio;
  metrics::Histogram& speculative_iterations;
  metrics::Histogram& stall_seconds;
  metrics::Gauge& running;
  metrics::Gauge& waiting;
  metrics::Gauge& pages_free;
  metrics::Gauge& pages_used;
  metrics::Gauge& pages_cached;
  std::array<metrics::Counter*, transfer::kStepKinds.size()> step_choices;  // by StepKind
};

}  // namespace smartgen::decode_server
