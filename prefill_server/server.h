// The whole of prefilld but for main: pool, engine, pairing, services.
//
// Order of stopping: no new calls, prompts and leases end, links go down, answers go out, gRPC
// ends, the data engine ends, the pool goes last. Thread-safe after Start.
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
#include "prefill_server/control_service.h"
#include "prefill_server/engine.h"
#include "prefill_server/identity.h"
#include "prefill_server/options.h"
#include "prefill_server/prefill_service.h"
#include "prefill_server/probe_host.h"

namespace smartgen::prefill_server {

class PrefillServer {
 public:
  struct Parts {
    std::unique_ptr<executor::Executor> executor;
    std::string model_name;
    std::string model_fingerprint;
    std::string hardware = base::CpuName();  // that the executor runs on; calibrations name it
    const base::Clock* clock = base::Clock::Real();
    ControlService::WrapChannel wrap_channel;  // tests put faults between
    channel::Nccl* nccl = nullptr;             // null: the library, where `channel` asks for it
    // Called once, on a thread of the server's, when the executor has failed for good.
    std::function<void()> on_failed = base::RequestStop;
    base::Duration lease_tick = std::chrono::milliseconds(100);
  };
  // Opens the model, makes the executor that the options name, starts.
  static absl::StatusOr<std::unique_ptr<PrefillServer>> FromModel(const Options& given);
  static absl::StatusOr<std::unique_ptr<PrefillServer>> Start(const Options& options, Parts parts);
  // At once: what runs is aborted.
  ~PrefillServer();

  int port() const { return rpc_->port(); }
  int data_port() const { return tcp_->listen_port(); }
  std::string address() const { return rpc_->address(); }
  int metrics_port() const { return metrics_server_ ? metrics_server_->port() : 0; }
  uint64_t incarnation() const { return incarnation_; }
  v1::DaemonInfo Info() const;
  // The executor's; not OK: not serving any more.
  absl::Status health() const { return parts_.executor->health(); }
  metrics::Metrics& metrics() { return *metrics_; }
  kv::KvPool& pool() { return *pool_; }
  kv::PrefixCache& prefix_cache() { return *prefix_cache_; }
  PrefillEngine& engine() { return *engine_; }

  // Not ready, nothing new; returns when prompts and leases have ended by themselves or after the
  // drain timeout.
  void Drain();

 private:
  PrefillServer(const Options& options, Parts parts);
  absl::Status Init();
  absl::Status InitPlanner();
  absl::Status InitChannels();
  void WatchLoop();

  const Options options_;
  Parts parts_;
  const uint64_t incarnation_;
  Identity identity_;
  std::atomic<bool> draining_{false};
  std::unique_ptr<metrics::Metrics> metrics_;
  std::unique_ptr<kv::KvPool> pool_;
  std::unique_ptr<kv::PrefixCache> prefix_cache_;
  std::unique_ptr<TransferPlanner> planner_;
  std::unique_ptr<selector::SelectorSet> selectors_;
  std::unique_ptr<PrefillEngine> engine_;
  std::unique_ptr<channel::TcpEngine> tcp_;
  std::unique_ptr<channel::NcclStack> nccl_;  // null: not asked for
  std::unique_ptr<ControlService> control_;
  std::unique_ptr<ProbeHost> probe_;
  std::unique_ptr<trace::TraceStore> traces_;
  std::unique_ptr<rpc::TraceService> trace_service_;
  std::unique_ptr<PrefillService> prefill_;
  std::unique_ptr<rpc::Server> rpc_;
  std::unique_ptr<metrics::MetricsServer> metrics_server_;
  base::Mutex mutex_;
  base::CondVar wake_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread watcher_;
};

}  // namespace smartgen::prefill_server
