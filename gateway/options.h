// The gateway's configuration: YAML, SMARTGEN_* environment, flags.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/config/binder.h"
#include "common/rpc/security.h"

namespace smartgen::gateway {

struct Options {
  // HTTP address. Beyond loopback it needs api_key (or allow_insecure).
  std::string listen = "127.0.0.1:8000";
  // Model file, folder, or a name that `smartgen fetch-model` knows; only its tokenizer, template
  // and identity are read.
  std::string model = "smollm2-135m";
  std::string model_name;  // what clients call it; empty: from `model`
  std::vector<std::string> decode = {"127.0.0.1:7200"};
  std::vector<std::string> prefill;  // to rank them by load; empty: decode instances order theirs
  std::string api_key;               // bearer token of every route but health; empty: none asked
  bool trust_user_text = false;      // special-token text in requests becomes special tokens
  std::string cors_allow_origin;     // "*" or an origin; empty: no CORS

  int io_threads = 1;
  int worker_threads = 2;  // templates and tokenisation
  int64_t max_running = 256;
  int max_choices = 8;
  int max_prompts = 64;
  int64_t max_connections = 1024;
  int64_t max_body_bytes = 8 << 20;
  int64_t max_header_bytes = 16 << 10;
  int64_t max_body_bytes_in_flight = 256 << 20;

  base::Duration header_timeout = std::chrono::seconds(10);
  base::Duration body_timeout = std::chrono::seconds(60);
  base::Duration write_timeout = std::chrono::seconds(30);
  base::Duration idle_timeout = std::chrono::seconds(75);
  base::Duration request_timeout = std::chrono::hours(1);
  base::Duration keepalive_interval = std::chrono::seconds(15);
  base::Duration shutdown_grace = std::chrono::seconds(30);
  base::Duration poll_interval = std::chrono::seconds(1);
  // A one-token generation proves readiness; repeated while nothing else does.
  base::Duration probe_interval = std::chrono::seconds(10);
  base::Duration probe_retry = std::chrono::seconds(1);
  base::Duration probe_timeout = std::chrono::seconds(30);

  rpc::Security security;  // towards the other daemons
  std::string log_level = "info";
  std::string log_format = "text";

  void Bind(config::Binder& binder);
  // What concerns several keys, and ranges. Errors name the key.
  absl::Status Check() const;
};

}  // namespace smartgen::gateway
