#include "prefill_server/options.h"

#include "common/base/memory.h"

namespace smartgen::prefill_server {
namespace {

// A fifth; see kv_bytes.
constexpr int kMemoryShare = 5;

}  // namespace

void Options::Bind(config::Binder& b) {
  b.Field("model", &model,
          "GGUF file, safetensors folder, or a name that smartgen fetch-model knows");
  b.Field("listen", &listen, "gRPC address, host:port; port 0: a free one");
  b.Section("data", [&](config::Binder& s) {
    s.Field("listen", &data_listen,
            "address for KV bytes, host:port; decode instances dial its port");
  });
  b.Section("metrics", [&](config::Binder& s) {
    s.Field("listen", &metrics_listen, "HTTP address of /metrics; empty: none");
  });
  security.Bind(b);
  transport.Bind(b);
  backend.Bind(b);
  b.Choice("compute", &compute, {"auto", "f32", "bf16"},
           "what products are computed in; auto: the faster here");
  b.Field("threads", &threads, "compute threads; 0: one a core");
  b.Field("context_length", &context_length, "longest sequence in tokens; 0: the model's");
  b.Bytes("kv_bytes", &kv_bytes, "memory for KV pages; 0: a fifth of what is available");
  b.Field("prefix_cache", &prefix_cache, "keep finished prompts' KV for prompts that begin alike");
  b.Field("max_prefill_tokens", &max_prefill_tokens,
          "tokens computed at once; longer prompts go in chunks");
  b.Field("max_queue", &max_queue, "prompts that may wait");
  b.Field("max_running", &max_running, "prompts whose chunks take turns");
  b.Field("max_peers", &max_peers, "decode instances that may pair");
  b.Field("handover_share", &handover_share,
          "share of the time for decode steps of others while prompts are to be computed; 0: none, "
          "they wait until no prompt does");
  b.Field("calibration", &calibration,
          "file of smartgen calibrate, made on this machine; empty: none");
  b.Field("profile", &profile, "file of smartgen profile; empty: built in, or a guess");
  b.Field("selector_parameters", &selector_parameters,
          "file or folder that smartgen profile trained; the same on both sides");
  b.Field("checksum", &checksum, "checksum over every KV message");
  b.Time("lease", &lease, "how long KV is held for a decode side that says nothing");
  b.Time("heartbeat", &heartbeat, "interval; three missed: the peer is down");
  b.Time("pairing_timeout", &pairing_timeout, "for a pairing's data channel to stand");
  b.Time("request_timeout", &request_timeout, "longest time for one prompt, waiting included");
  b.Time("drain_timeout", &drain_timeout, "how long running work may take after SIGTERM");
  b.Time("watchdog", &watchdog,
         "without a layer computed for this long while work waits: not healthy");
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
  if (max_prefill_tokens < 1)
    return base::InvalidArgument("max_prefill_tokens: want at least 1, got {}", max_prefill_tokens);
  if (max_queue < 1) return base::InvalidArgument("max_queue: want at least 1, got {}", max_queue);
  if (max_running < 1)
    return base::InvalidArgument("max_running: want at least 1, got {}", max_running);
  if (max_peers < 1) return base::InvalidArgument("max_peers: want at least 1, got {}", max_peers);
  if (!(handover_share >= 0 && handover_share <= 1))
    return base::InvalidArgument("handover_share: want 0 to 1, got {}", handover_share);
  if (threads < 0) return base::InvalidArgument("threads: want at least 0, got {}", threads);
  if (kv_bytes < 0) return base::InvalidArgument("kv_bytes: want at least 0, got {}", kv_bytes);
  if (context_length < 0)
    return base::InvalidArgument("context_length: want at least 0, got {}", context_length);
  RETURN_IF_ERROR(trace.Check());
  RETURN_IF_ERROR(transport.Check());
  RETURN_IF_ERROR(backend.Check());
  constexpr base::Duration kMin = std::chrono::milliseconds(1);
  const std::pair<const char*, base::Duration> times[] = {{"lease", lease},
                                                          {"heartbeat", heartbeat},
                                                          {"pairing_timeout", pairing_timeout},
                                                          {"request_timeout", request_timeout},
                                                          {"watchdog", watchdog}};
  for (const auto& [name, value] : times) {
    if (value < kMin)
      return base::InvalidArgument("{}: want at least 1ms, got {}ns", name, value.count());
  }
  if (lease < 3 * heartbeat) {
    return base::InvalidArgument("lease: want at least three heartbeats ({:g}s), got {:g}s",
                                 base::ToSeconds(3 * heartbeat), base::ToSeconds(lease));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Options::PoolBytes() const {
  if (kv_bytes > 0) return kv_bytes;
  ASSIGN_OR_RETURN(const int64_t available, base::AvailableMemoryBytes());
  return available / kMemoryShare;
}

}  // namespace smartgen::prefill_server
