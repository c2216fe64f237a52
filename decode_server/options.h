// Everything that decoded can be told. Each default stands here and nowhere else.
#pragma once

#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/channel/transport_options.h"
#include "common/config/binder.h"
#include "common/executor/backend/backend.h"
#include "common/rpc/security.h"
#include "common/trace/trace.h"
#include "common/transfer/request_options.h"

namespace smartgen::decode_server {

struct Options {
  std::string model;  // GGUF file, safetensors folder, or a name that fetch-model knows
  std::string listen = "127.0.0.1:7200";          // gRPC
  std::string metrics_listen = "127.0.0.1:9102";  // HTTP /metrics; empty: none
  std::vector<std::string> prefill;               // gRPC addresses of prefill instances, host:port
  rpc::Security security;
  channel::TransportOptions transport;
  executor::BackendOptions backend;

  std::string mode = "auto";          // for requests that name none
  transfer::RequestOptions transfer;  // what requests leave open
  // File or folder of trained selector parameters (smartgen profile --train-hash, --train-skew);
  // empty: none. The same on both sides of a pairing.
  std::string selector_parameters;
  // How the prefill side helps with steps while KV is on the way, likewise: auto, split, attend,
  // none.
  std::string handover = "auto";
  std::string compute =
      "auto";  // f32, bf16, auto (the faster of the two here); equal on both sides of a pairing
  int threads = 0;  // 0: one a core
  int64_t context_length =
      0;  // the longest sequence; 0: the model's; equal on both sides of a pairing
  // 0: a quarter of the memory that is available at start (weights already loaded).
  int64_t kv_bytes = 0;
  bool prefix_cache = true;

  int max_batch = 64;              // requests that run at once
  int max_waiting = 256;           // requests that wait for room; beyond: RESOURCE_EXHAUSTED
  int max_prefill_tokens = 2048;   // chunk of a local prefill when nobody else is here
  int local_chunk_tokens = 256;    // and while others run or wait, so that they get on
  int64_t local_below_tokens = 0;  // auto: prompts with fewer tokens to compute are prefilled here
  // File that smartgen calibrate made on this machine, with --peer for each prefill instance: mode
  // auto keeps prompts here whose second token comes sooner so. Empty: none.
  std::string calibration;
  int max_attempts = 3;        // prefill instances tried for a request before it is prefilled here
  bool local_fallback = true;  // false: a request that none of them could serve is UNAVAILABLE
  bool checksum = true;        // ask for XXH3 over every KV message, refuse messages without

  base::Duration heartbeat = std::chrono::seconds(1);        // three missed: the peer is down
  base::Duration pairing_timeout = std::chrono::seconds(5);  // for each step of pairing
  base::Duration prefill_timeout =
      std::chrono::seconds(120);  // for the first token from a prefill instance
  base::Duration transfer_timeout = std::chrono::seconds(60);  // for the KV after that token
  base::Duration stall = std::chrono::seconds(1);  // no KV for this long: asked for again
  base::Duration request_timeout = std::chrono::minutes(30);  // bounds every request
  base::Duration drain_timeout = std::chrono::seconds(30);  // SIGTERM: what runs may take this long
  base::Duration watchdog = std::chrono::seconds(60);       // no step while work waits: not healthy

  trace::TraceStore::Options trace;

  std::string log_level = "info";
  std::string log_format = "text";

  void Bind(config::Binder& b);
  // What concerns several keys, or ranges.
  absl::Status Check() const;
  // Of the KV pool: kv_bytes, or what 0 stands for now.
  absl::StatusOr<int64_t> PoolBytes() const;
};

}  // namespace smartgen::decode_server
