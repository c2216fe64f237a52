#include "gateway/options.h"

#include <initializer_list>

#include "gateway/http/types.h"

namespace smartgen::gateway {
namespace {

// Sent by the server in a header: nothing in it may end that header.
bool IsHeaderValue(const std::string& text) {
  for (const unsigned char c : text) {
    if (c < 0x20 || c >= 0x7f) return false;
  }
  return true;
}

}  // namespace

void Options::Bind(config::Binder& b) {
  b.Field("listen", &listen, "HTTP address, host:port");
  b.Field("model", &model, "model file, folder, or a name that fetch-model knows");
  b.Field("model_name", &model_name, "what clients call the model; empty: from its path");
  b.Field("decode", &decode, "decode instances, host:port each");
  b.Field("prefill", &prefill, "prefill instances to rank by load; empty: decoded orders its own");
  b.Secret("api_key", &api_key, "bearer token asked of every route but health; empty: none");
  b.Field("trust_user_text", &trust_user_text,
          "special-token text in requests becomes special tokens (prompt injection!)");
  b.Field("cors_allow_origin", &cors_allow_origin, "origin that browsers may call from, or *");
  b.Section("limits", [this](config::Binder& s) {
    s.Field("max_running", &max_running, "choices generated at a time; more are answered with 429");
    s.Field("max_choices", &max_choices, "largest n");
    s.Field("max_prompts", &max_prompts, "prompts of one completion request");
    s.Field("max_connections", &max_connections, "open HTTP connections");
    s.Bytes("max_body_bytes", &max_body_bytes, "largest request body");
    s.Bytes("max_header_bytes", &max_header_bytes, "largest request header");
    s.Bytes("max_body_bytes_in_flight", &max_body_bytes_in_flight, "bodies of all connections");
    s.Field("io_threads", &io_threads, "threads for connections");
    s.Field("worker_threads", &worker_threads, "threads for templates and tokenisation");
  });
  b.Section("timeouts", [this](config::Binder& s) {
    s.Time("header", &header_timeout, "from a request's first byte to the end of its header");
    s.Time("body", &body_timeout, "for a request's body");
    s.Time("write", &write_timeout, "for a client to take what is written to it");
    s.Time("idle", &idle_timeout, "for a connection without a request");
    s.Time("request", &request_timeout, "for a whole generation");
    s.Time("keepalive", &keepalive_interval, "between comments in a stream that has no tokens");
    s.Time("shutdown_grace", &shutdown_grace, "for running streams after SIGTERM");
    s.Time("poll", &poll_interval, "between questions for an instance's state");
    s.Time("probe_interval", &probe_interval, "between readiness generations while idle");
    s.Time("probe_retry", &probe_retry, "between readiness generations after a failed one");
    s.Time("probe", &probe_timeout, "for a readiness generation");
  });
  security.Bind(b);
  b.Section("log", [this](config::Binder& s) {
    s.Choice("level", &log_level, {"trace", "debug", "info", "warn", "error", "off"},
             "least level shown");
    s.Choice("format", &log_format, {"text", "json"}, "how a line looks");
  });
}

absl::Status Options::Check() const {
  RETURN_IF_ERROR(base::Annotate(ParseHostPort(listen).status(), "listen"));
  RETURN_IF_ERROR(security.Check());
  RETURN_IF_ERROR(rpc::CheckExposure("listen", listen, /*tls=*/false, !api_key.empty(),
                                     security.allow_insecure));
  if (decode.empty()) return base::InvalidArgument("decode: want at least one host:port");
  for (const auto* text : {&cors_allow_origin, &api_key}) {
    if (!IsHeaderValue(*text)) {
      return base::InvalidArgument("{}: want printable ASCII characters only",
                                   text == &api_key ? "api_key" : "cors_allow_origin");
    }
  }
  struct Bound {
    const char* key;
    int64_t value;
    int64_t min;
    int64_t max;
  };
  for (const Bound& b : std::initializer_list<Bound>{
           {"limits.max_running", max_running, 1, 1 << 20},
           {"limits.max_choices", max_choices, 1, 128},
           {"limits.max_prompts", max_prompts, 1, 4096},
           {"limits.max_connections", max_connections, 1, 1 << 20},
           {"limits.max_body_bytes", max_body_bytes, 1024, int64_t{1} << 30},
           {"limits.max_header_bytes", max_header_bytes, 1024, 1 << 20},
           {"limits.max_body_bytes_in_flight", max_body_bytes_in_flight, max_body_bytes, INT64_MAX},
           {"limits.io_threads", io_threads, 1, 256},
           {"limits.worker_threads", worker_threads, 1, 256}}) {
    if (b.value < b.min || b.value > b.max) {
      return base::InvalidArgument("{}: want {}..{}, got {}", b.key, b.min, b.max, b.value);
    }
  }
  return absl::OkStatus();
}

}  // namespace smartgen::gateway
