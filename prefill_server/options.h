// Everything that prefilld can be told. Each default stands here and nowhere else.
#pragma once

#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/channel/transport_options.h"
#include "common/config/binder.h"
#include "common/executor/backend/backend.h"
#include "common/rpc/security.h"
#include "common/trace/trace.h"

namespace smartgen::prefill_server {

struct Options {
  std::string model;  // GGUF file, safetensors folder, or a name that fetch-model knows
  std::string listen = "127.0.0.1:7100";          // gRPC
  std::string data_listen = "127.0.0.1:7101";     // KV bytes
  std::string metrics_listen = "127.0.0.1:9101";  // HTTP /metrics; empty: none
  rpc::Security security;
  channel::TransportOptions transport;
  executor::BackendOptions backend;

  std::string compute = "auto";  // f32, bf16, auto (the faster of the two here)
  int threads = 0;               // 0: one a core
  int64_t context_length = 0;    // the longest sequence; 0: the model's
  // 0: a fifth of the memory that is available at start (weights already loaded). The rest is for
  // the decode side that may share the machine, and for the system's file cache.
  int64_t kv_bytes = 0;
  bool prefix_cache = true;

  int max_prefill_tokens = 2048;  // a chunk; prompts take turns chunk by chunk
  int max_queue = 64;             // prompts that wait; beyond: RESOURCE_EXHAUSTED
  int max_running = 4;            // prompts whose chunks take turns
  int max_peers = 64;             // decode instances
  // Share of the time that decode steps of others may take here while prompts are to be computed;
  // 0: none. Steps beyond it wait, and the decode side is told so.
  double handover_share = 0.2;
  // File that smartgen calibrate made on this machine; empty: prompts' times are learnt.
  std::string calibration;
  // File that smartgen profile made; empty: the built-in one of the model, or a guess.
  std::string profile;
  // File or folder of trained selector parameters (smartgen profile --train-hash, --train-skew);
  // empty: none. The same on both sides of a pairing.
  std::string selector_parameters;
  bool checksum = true;  // XXH3 over every KV message

  base::Duration lease = std::chrono::seconds(30);     // pages are held this long without a renewal
  base::Duration heartbeat = std::chrono::seconds(1);  // three missed: the peer is down
  base::Duration pairing_timeout = std::chrono::seconds(5);   // for the data channel to stand
  base::Duration request_timeout = std::chrono::minutes(10);  // bounds every prompt
  base::Duration drain_timeout = std::chrono::seconds(30);  // SIGTERM: what runs may take this long
  base::Duration watchdog =
      std::chrono::seconds(60);  // no layer computed while work waits: not healthy

  trace::TraceStore::Options trace;

  std::string log_level = "info";
  std::string log_format = "text";

  void Bind(config::Binder& b);
  // What concerns several keys, or ranges.
  absl::Status Check() const;
  // Of the KV pool: kv_bytes, or what 0 stands for now.
  absl::StatusOr<int64_t> PoolBytes() const;
};

}  // namespace smartgen::prefill_server
