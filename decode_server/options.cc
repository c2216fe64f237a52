#include "decode_server/options.h"

#include <utility>

#include "common/base/memory.h"

namespace smartgen::decode_server {
namespace {

// A quarter; see kv_bytes.
constexpr int kMemoryShare = 4;

}  // namespace

void Options::Bind(config::Binder& b) {
  b.Field("model", &model,
          "GGUF file, safetensors folder, or a name that smartgen fetch-model knows");
  b.Field("listen", &listen, "gRPC address, host:port; port 0: a free one");
  b.Section("metrics", [&](config::Binder& s) {
    s.Field("listen", &metrics_listen, "HTTP address of /metrics; empty: none");
  });
  b.Field("prefill", &prefill, "gRPC addresses of prefill instances, host:port");
  security.Bind(b);
  transport.Bind(b);
  b.Choice("mode", &mode, {"auto", "full", "local", "exact", "smartgen", "partial", "random"},
           "for requests that name none");
  b.Choice("handover", &handover, {"auto", "split", "attend", "none"},
           "steps while KV is on the way: the prefill side runs layers, attends for queries, or "
           "neither; auto: the soonest");
  b.Choice("selection", &transfer.selection, {"when_needed", "never", "always"},
           "mode auto: whether steps may read a selection of the KV");
  b.Choice("selector", &transfer.selector, {"dense", "quest", "hata", "infinigen"},
           "which KV a step reads, in modes that select");
  b.Field("selector_parameters", &selector_parameters,
          "file or folder that smartgen profile trained; the same on both sides");
  b.Field("selection_budget", &transfer.selection_budget,
          "share of the context that a step reads, in modes that select");
  b.Field("speculative_ratio", &transfer.speculative_ratio,
          "share of the KV delivered in idle time a step; 0: as much as fits");
  b.Section("parts", [&](config::Binder& s) {
    s.Field("profile", &transfer.profile,
            "what is pushed is chosen by a profile; false: the first blocks");
    s.Field("parallel", &transfer.parallel, "attention to what is here while the rest is fetched");
    s.Field("prefetch", &transfer.prefetch,
            "the next layer's predicted selection is fetched ahead");
    s.Field("speculation", &transfer.speculation, "the rest is delivered in idle time");
  });
  backend.Bind(b);
  b.Choice("compute", &compute, {"auto", "f32", "bf16"},
           "what products are computed in; auto: the faster here");
  b.Field("threads", &threads, "compute threads; 0: one a core");
  b.Field("context_length", &context_length, "longest sequence in tokens; 0: the model's");
  b.Bytes("kv_bytes", &kv_bytes, "memory for KV pages; 0: a quarter of what is available");
  b.Field("prefix_cache", &prefix_cache, "keep finished requests' KV for prompts that begin alike");
  b.Field("max_batch", &max_batch, "requests that run at once");
  b.Field("max_waiting", &max_waiting, "requests that may wait for room");
  b.Field("max_prefill_tokens", &max_prefill_tokens,
          "chunk of a local prefill when nobody else is here");
  b.Field("local_chunk_tokens", &local_chunk_tokens,
          "chunk of a local prefill while others run or wait");
  b.Field("local_below_tokens", &local_below_tokens,
          "mode auto: prompts with fewer tokens to compute stay here");
  b.Field("calibration", &calibration,
          "file of smartgen calibrate, made on this machine; empty: none");
  b.Field("max_attempts", &max_attempts, "prefill instances tried for a request");
  b.Field("local_fallback", &local_fallback,
          "prefill here what no prefill instance could; false: such requests are UNAVAILABLE");
  b.Field("checksum", &checksum, "checksum over every KV message");
  b.Time("heartbeat", &heartbeat, "interval; three missed: the peer is down");
  b.Time("pairing_timeout", &pairing_timeout, "for each step of pairing with a prefill instance");
  b.Time("prefill_timeout", &prefill_timeout, "for the first token from a prefill instance");
  b.Time("transfer_timeout", &transfer_timeout, "for the KV after the first token");
  b.Time("stall", &stall, "without KV for this long, it is asked for again");
  b.Time("request_timeout", &request_timeout, "longest time for one request");
  b.Time("drain_timeout", &drain_timeout, "how long running work may take after SIGTERM");
  b.Time("watchdog", &watchdog, "without a step for this long while work waits: not healthy");
  b.Section("trace", [&](config::Binder& s) {
    s.Field("requests", &trace.max_requests, "traces of requests kept; 0: none are made");
    s.Field("events", &trace.max_events, "events of a request's trace; the rest is counted");
    s.Time("keep", &trace.keep, "how long a trace is kept");
  });
  b.Section("log", [&](config::Binder& s) {
    s.Choice("level", &log_level, {"trace", "debug", "info", "warn", "error", "off"},
             "least level that is logged");
    s.Choice("format", &log_format, {"text", "json"}, "log line format");
  });
  b.Check([this] { return Check(); });
}

absl::Status Options::Check() const {
  const std::pair<const char*, int64_t> at_least_one[] = {
      {"max_batch", max_batch},
      {"max_waiting", max_waiting},
      {"max_prefill_tokens", max_prefill_tokens},
      {"local_chunk_tokens", local_chunk_tokens},
      {"max_attempts", max_attempts}};
  for (const auto& [name, value] : at_least_one) {
    if (value < 1) return base::InvalidArgument("{}: want at least 1, got {}", name, value);
  }
  const std::pair<const char*, int64_t> not_negative[] = {
      {"threads", threads},
      {"kv_bytes", kv_bytes},
      {"context_length", context_length},
      {"local_below_tokens", local_below_tokens}};
  for (const auto& [name, value] : not_negative) {
    if (value < 0) return base::InvalidArgument("{}: want at least 0, got {}", name, value);
  }
  RETURN_IF_ERROR(transfer.Check());
  RETURN_IF_ERROR(trace.Check());
  RETURN_IF_ERROR(transport.Check());
  RETURN_IF_ERROR(backend.Check());
  constexpr base::Duration kMin = std::chrono::milliseconds(1);
  const std::pair<const char*, base::Duration> times[] = {{"heartbeat", heartbeat},
                                                          {"pairing_timeout", pairing_timeout},
                                                          {"prefill_timeout", prefill_timeout},
                                                          {"transfer_timeout", transfer_timeout},
                                                          {"stall", stall},
                                                          {"request_timeout", request_timeout},
                                                          {"watchdog", watchdog}};
  for (const auto& [name, value] : times) {
    if (value < kMin)
      return base::InvalidArgument("{}: want at least 1ms, got {}ns", name, value.count());
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Options::PoolBytes() const {
  if (kv_bytes > 0) return kv_bytes;
  ASSIGN_OR_RETURN(const int64_t available, base::AvailableMemoryBytes());
  return available / kMemoryShare;
}

}  // namespace smartgen::decode_server
