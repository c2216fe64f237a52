// The whole of decoded but for main: pool, engine, pairings, service.
//
// Order of stopping: no new calls, requests end, pairings end, answers go out, gRPC ends, the data
// engine ends, the pool goes last. Thread-safe after Start.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "common/base/cpu.h"
#include "common/base/signals.h"
#include "common/channel/nccl/nccl_stack.h"
#include "common/channel/tcp/tcp_engine.h"
#include "common/executor/executor.h"
#include "common/kv/pool.h"
#include "common/kv/prefix_cache.h"
#include "common/metrics/metrics.h"
#include "common/rpc/server.h"
#include "common/rpc/trace_service.h"
#include "common/transfer/cost_model.h"
#include "decode_server/decode_service.h"
#include "decode_server/engine.h"
#include "decode_server/options.h"
#include "decode_server/pairing.h"

namespace smartgen::decode_server {

class DecodeServer {
 public:
  struct Parts {
    std::unique_ptr<executor::Executor> executor;
    std::string model_name;
    std::string model_fingerprint;
    std::string hardware = base::CpuName();  // that the executor runs on; calibrations name it
    const base::Clock* clock = base::Clock::Real();
    WrapChannel wrap_channel;       // tests put faults between
    channel::Nccl* nccl = nullptr;  // null: the library, where `channel` asks for it
    // Called once, on a thread of the server's, when the executor has failed for good.
    std::function<void()> on_failed = base::RequestStop;
  };
  // Opens the model, makes the executor that the options name, starts.
  static absl::StatusOr<std::unique_ptr<DecodeServer>> FromModel(const Options& given);
  static absl::StatusOr<std::unique_ptr<DecodeServer>> Start(const Options& options, Parts parts);
  // At once: what runs is aborted.
  ~DecodeServer();

  int port() const { return rpc_->port(); }
  std::string address() const { return rpc_->address(); }
  int metrics_port() const { return metrics_server_ ? metrics_server_->port() : 0; }
  uint64_t incarnation() const { return incarnation_; }
  v1::DaemonInfo Info() const;
  // The executor's; not OK: not serving any more.
  absl::Status health() const { return parts_.executor->health(); }
  metrics::Metrics& metrics() { return *metrics_; }
  kv::KvPool& pool() { return *pool_; }
  kv::PrefixCache& prefix_cache() { return *prefix_cache_; }
  DecodeEngine& engine() { return *engine_; }
  PairingManager& pairings() { return *pairings_; }

  // Not ready, nothing new; returns when all requests have ended by themselves, or after the drain
  // timeout, when the rest has been ended with Unavailable.
  void Drain();

 private:
  DecodeServer(const Options& options, Parts parts);
  absl::Status Init();
  absl::Status InitPool();
  absl::Status InitSelectors();
  absl::Status InitCosts();
  absl::Status InitPairings();
  void InitEngine();
  absl::Status InitServices();
  void WatchLoop();
  // Waits until nothing runs or waits; false at the deadline.
  bool WaitIdle(base::Deadline deadline);

  const Options options_;
  Parts parts_;
  const uint64_t incarnation_;
  kv::KvLayout layout_;
  int64_t context_length_ = 0;
  std::string compute_;
  std::atomic<bool> draining_{false};
  std::unique_ptr<metrics::Metrics> metrics_;
  std::unique_ptr<kv::KvPool> pool_;
  std::unique_ptr<kv::PrefixCache> prefix_cache_;
  std::unique_ptr<channel::TcpEngine> tcp_;
  std::unique_ptr<channel::NcclStack> nccl_;    // null: not asked for
  std::unique_ptr<transfer::CostModel> costs_;  // null: no calibration
  std::unique_ptr<PairingManager> pairings_;
  std::unique_ptr<selector::SelectorSet> selectors_;
  std::unique_ptr<DecodeEngine> engine_;
  std::unique_ptr<trace::TraceStore> traces_;
  std::unique_ptr<rpc::TraceService> trace_service_;
  std::unique_ptr<DecodeService> service_;
  std::unique_ptr<rpc::Server> rpc_;
  std::unique_ptr<metrics::MetricsServer> metrics_server_;
  base::Mutex mutex_;
  base::CondVar wake_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread watcher_;
};

}  // namespace smartgen::decode_server
