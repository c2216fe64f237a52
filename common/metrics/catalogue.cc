// Every metric that this version fills. A metric is added here first; nothing else can name one.
#include <array>

#include "common/metrics/metrics.h"

namespace smartgen::metrics {
namespace {

// vLLM's buckets (vllm/v1/metrics/loggers.py), so that dashboards compare.
constexpr std::array<double, 22> kTtftBounds = {.001, .005, .01, .02, .04, .06, .08, .1,
                                                .25,  .5,   .75, 1,   2.5, 5,   7.5, 10,
                                                20,   40,   80,  160, 640, 2560};
constexpr std::array<double, 19> kItlBounds = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                               .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
// Stages and transfers: from a queue that was empty to a long prompt over a slow link.
constexpr std::array<double, 18> kSecondsBounds = {
    .0001, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300};
constexpr std::array<double, 17> kCountBounds = {
    1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536};

constexpr std::array<double, 12> kRatioBounds = {.001, .005, .01, .02, .05, .1,
                                                 .2,   .3,   .4,  .6,  .8,  1};

std::vector<Definition> MakeCatalogue() {
  return {
      {"ttft_seconds",
       Type::kHistogram,
       "Time from the request's arrival at the gateway to its first token",
       {},
       Buckets::kTtft},
      {"ttst_seconds",
       Type::kHistogram,
       "Time to the second token: gap = after the first token, e2e = after the request's arrival",
       {"def"},
       Buckets::kTtft},
      {"tbt_seconds",
       Type::kHistogram,
       "Time between two tokens of a stream, from the second on",
       {},
       Buckets::kItl},
      {"e2e_seconds",
       Type::kHistogram,
       "Time from the request's arrival to its last token",
       {},
       Buckets::kTtft},
      {"requests_total",
       Type::kCounter,
       "Requests answered, by HTTP status code (gateway) or gRPC status (prefilld, decoded)",
       {"code"}},
      {"requests_running", Type::kGauge, "Requests being worked on", {}},
      {"requests_waiting", Type::kGauge, "Requests admitted that wait for their turn", {}},
      {"stage_seconds",
       Type::kHistogram,
       "Time a request spent in a stage; transfer_exposed is decode waiting for KV",
       {"stage"},
       Buckets::kSeconds},
      {"transfer_bytes_total",
       Type::kCounter,
       "KV bytes handed to the network (sent) or placed and verified (received)",
       {"path", "direction"}},
      {"transfer_seconds",
       Type::kHistogram,
       "Time from a transfer's first layer to its last byte",
       {"path"},
       Buckets::kSeconds},
      {"transfer_segments",
       Type::kHistogram,
       "Contiguous byte ranges of a transfer",
       {},
       Buckets::kCount},
      {"transfer_refused_total",
       Type::kCounter,
       "KV messages that were refused and never touched memory",
       {"reason"}},
      {"kv_pages",
       Type::kGauge,
       "KV pages by state: free, used by requests, cached for reuse, leased to a peer",
       {"state"}},
      {"kv_leases", Type::kGauge, "Leases held on KV pages", {}},
      {"handover_steps_total",
       Type::kCounter,
       "Decode steps that the prefill side helped with: split = it ran the last layers, attend = "
       "it "
       "attended for shipped queries",
       {"kind"}},
      {"step_choices_total",
       Type::kCounter,
       "Decode steps made while some KV was not here, by how: fetch, split, attend; wait = those "
       "that waited for KV before one of these",
       {"kind"}},
      {"handover_seconds_total",
       Type::kCounter,
       "Time the prefill side spent on decode steps of others",
       {"kind"}},
      {"handover_deferred_total",
       Type::kCounter,
       "Times decode steps of others had to wait because handover_share was used up",
       {}},
      {"handover_retries_total",
       Type::kCounter,
       "Handed-over steps that were asked for again because no answer came",
       {}},
      {"plan_blocks",
       Type::kHistogram,
       "Blocks of a transfer's plan: budget = K_r, chosen = pushed while the prompt is computed",
       {"kind"},
       Buckets::kCount},
      {"predicted_seconds",
       Type::kHistogram,
       "Predicted when a prompt's delivery was planned: prefill = T_p, transfer = T_t, by the "
       "link's "
       "bandwidth and the transfers that share it",
       {"what"},
       Buckets::kSeconds},
      {"dense_overrun_blocks_total",
       Type::kCounter,
       "Blocks of the dense layers that were planned though they exceed what the link carries "
       "during the prompt",
       {}},
      {"prediction_ratio",
       Type::kGauge,
       "Time measured over the time that the calibration predicts, a moving mean: prefill, step",
       {"kind"}},
      {"ondemand_miss_ratio",
       Type::kHistogram,
       "Share of a step's selected KV entries that were not here when their layer began",
       {},
       Buckets::kRatio},
      {"decode_stall_seconds",
       Type::kHistogram,
       "Time a step waited for KV that was not here",
       {},
       Buckets::kSeconds},
      {"speculative_iterations",
       Type::kHistogram,
       "Steps from the first token until all KV was here, of requests whose rest follows in idle "
       "time",
       {},
       Buckets::kCount},
      {"kv_expired_total", Type::kCounter, "Leases that ended by themselves", {"reason"}},
      {"prompt_tokens_total",
       Type::kCounter,
       "Prompt tokens by where their KV came from: local = computed here, prefix = prefix cache, "
       "remote = another daemon, recomputed = computed again after a loss",
       {"source"}},
      {"generation_tokens_total", Type::kCounter, "Tokens generated", {}},
      {"peer_up", Type::kGauge, "1 while the peer is paired and its heartbeats arrive", {"peer"}},
      {"link_bandwidth_bytes_per_second",
       Type::kGauge,
       "KV bytes per second: prefilld: what the link is seen to carry; decoded: of the latest "
       "transfer",
       {"peer"}},
      {"link_busy_ratio",
       Type::kGauge,
       "Share of the latest heartbeat interval in which something was on its way to this peer",
       {"peer"}},
      {"transport_info",
       Type::kGauge,
       "1 for the transport in use with this peer",
       {"peer", "transport"}},
      {"nccl_channels", Type::kGauge, "Channels over NCCL that are beginning, up or ending", {}},
      {"nccl_memory_bytes",
       Type::kGauge,
       "Memory of the device that NCCL takes: communicators (measured), staging",
       {"kind"}},
      {"nccl_aborts_total",
       Type::kCounter,
       "Communicators that were aborted: each pairing's end",
       {}},
      {"fallback_total",
       Type::kCounter,
       "Times that a request went on by a lesser way (local prefill, another instance, a retry)",
       {"reason"}},
      {"preemptions_total",
       Type::kCounter,
       "Running requests whose KV was given up for others and computed again",
       {}},
      {"plan_mode_total", Type::kCounter, "Requests by the mode that served them", {"mode"}},
      {"build_info",
       Type::kGauge,
       "Always 1; which daemon of which version this is",
       {"daemon", "version"}},
  };
}

}  // namespace

std::span<const Definition> Catalogue() {
  static const auto* const catalogue = new std::vector<Definition>(MakeCatalogue());
  return *catalogue;
}

std::span<const double> BucketBounds(Buckets buckets) {
  switch (buckets) {
    case Buckets::kNone:
      return {};
    case Buckets::kTtft:
      return kTtftBounds;
    case Buckets::kItl:
      return kItlBounds;
    case Buckets::kSeconds:
      return kSecondsBounds;
    case Buckets::kRatio:
      return kRatioBounds;
    case Buckets::kCount:
      return kCountBounds;
  }
  return {};
}

std::string_view TypeName(Type type) {
  switch (type) {
    case Type::kCounter:
      return "counter";
    case Type::kGauge:
      return "gauge";
    case Type::kHistogram:
      return "histogram";
  }
  return "";
}

std::string CatalogueMarkdown() {
  std::string out = "| metric | type | labels | meaning |\n|---|---|---|---|\n";
  for (const Definition& definition : Catalogue()) {
    std::string labels;
    for (const std::string_view label : definition.labels) {
      labels += (labels.empty() ? "`" : ", `") + std::string(label) + "`";
    }
    out += "| `smartgen_" + std::string(definition.name) + "` | " +
           std::string(TypeName(definition.type)) + " | " + labels + " | " +
           std::string(definition.help) + " |\n";
  }
  return out;
}

}  // namespace smartgen::metrics
