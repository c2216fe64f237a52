#include "prefill_server/server.h"

#include <algorithm>
#include <utility>

#include "common/base/ids.h"
#include "common/base/log.h"
#include "common/config/version.h"
#include "common/rpc/convert.h"
#include "common/rpc/serving_watch.h"
#include "common/selector/parameters.h"
#include "common/transfer/built_in_profiles.h"
#include "common/transfer/calibration.h"

namespace smartgen::prefill_server {
namespace {

constexpr int kMemoryShare = 5;
constexpr base::Duration kWatchInterval = std::chrono::milliseconds(200);
// For answers that are finished to reach their clients.
constexpr base::Duration kFlushGrace = std::chrono::seconds(2);

}  // namespace

absl::StatusOr<std::unique_ptr<PrefillServer>> PrefillServer::Start(const Options& options,
                                                                    Parts parts) {
  RETURN_IF_ERROR(options.Check());
  auto server = std::unique_ptr<PrefillServer>(new PrefillServer(options, std::move(parts)));
  RETURN_IF_ERROR(server->Init());
  return server;
}

PrefillServer::PrefillServer(const Options& options, Parts parts)
    : options_(options),
      parts_(std::move(parts)),
      incarnation_(base::NewIncarnationId()),
      metrics_(metrics::Metrics::Create("prefilld")) {}

absl::Status PrefillServer::Init() {
  executor::Executor& executor = *parts_.executor;
  identity_.model_name = parts_.model_name;
  identity_.model_fingerprint = parts_.model_fingerprint;
  identity_.compute = std::string(executor::ComputeTypeName(executor.compute()));
  identity_.context_length =
      options_.context_length > 0
          ? std::min(options_.context_length, executor.config().context_length)
          : executor.config().context_length;
  identity_.layout = executor.Layout(identity_.context_length);

  kv::KvPool::Options pool_options;
  ASSIGN_OR_RETURN(pool_options.bytes, options_.PoolBytes());
  pool_options.memory = executor.page_memory();
  ASSIGN_OR_RETURN(pool_, kv::KvPool::Create(identity_.layout, pool_options));
  kv::PrefixCache::Options cache_options;
  cache_options.enabled = options_.prefix_cache;
  cache_options.salt = fmt::format("{}/{}/{}", identity_.model_fingerprint, identity_.compute,
                                   kv::DTypeName(identity_.layout.dtype));
  prefix_cache_ = std::make_unique<kv::PrefixCache>(pool_.get(), cache_options);

  RETURN_IF_ERROR(InitPlanner());

  PrefillEngine::Options engine_options;
  engine_options.max_queue = options_.max_queue;
  engine_options.max_running = options_.max_running;
  engine_options.chunk_tokens = options_.max_prefill_tokens;
  engine_options.lease = options_.lease;
  engine_options.watchdog = options_.watchdog;
  engine_options.lease_tick = parts_.lease_tick;
  engine_options.handover_share = options_.handover_share;
  engine_ = std::make_unique<PrefillEngine>(
      engine_options,
      PrefillEngine::Parts{&executor, pool_.get(), prefix_cache_.get(), parts_.clock,
                           metrics_.get(), planner_.get(), selectors_.get()});
  metrics_->OnCollect([this] { engine_->CollectMetrics(); });

  // Who may have the one-time key is decided by the gRPC address's own protection.
  const bool guarded = options_.security.ServerUsesTls() || !options_.security.token.empty();
  RETURN_IF_ERROR(rpc::CheckExposure("data.listen", options_.data_listen, false, guarded,
                                     options_.security.allow_insecure));
  RETURN_IF_ERROR(InitChannels());

  ControlService::Options control_options;
  control_options.heartbeat = options_.heartbeat;
  control_options.lease = options_.lease;
  control_options.pairing_timeout = options_.pairing_timeout;
  control_options.max_peers = options_.max_peers;
  control_options.checksum = options_.checksum;
  control_options.wrap_channel = parts_.wrap_channel;
  control_ = std::make_unique<ControlService>(
      control_options,
      ControlService::Parts{engine_.get(), tcp_.get(), nccl_ ? &nccl_->engine() : nullptr,
                            parts_.clock, metrics_.get(), identity_, incarnation_,
                            [this] { return draining_.load(); }});
  probe_ = std::make_unique<ProbeHost>(ProbeHost::Options{}, tcp_.get(), parts_.clock);
  traces_ = std::make_unique<trace::TraceStore>(options_.trace, parts_.clock);
  trace_service_ = std::make_unique<rpc::TraceService>(traces_.get(), parts_.clock, "prefilld",
                                                       [this] { return rpc_->address(); });
  PrefillService::Parts service_parts{engine_.get(),
                                      control_.get(),
                                      parts_.clock,
                                      metrics_.get(),
                                      identity_,
                                      incarnation_,
                                      options_.request_timeout,
                                      [this] { return Info(); },
                                      probe_.get(),
                                      traces_.get()};
  prefill_ = std::make_unique<PrefillService>(std::move(service_parts));

  rpc::ServerOptions rpc_options;
  rpc_options.listen = options_.listen;
  rpc_options.security = options_.security;
  ASSIGN_OR_RETURN(rpc_,
                   rpc::Server::Start(rpc_options, {{"smartgen.v1.Prefill", prefill_.get()},
                                                    {"smartgen.v1.Transfer", control_.get()},
                                                    {"smartgen.v1.Trace", trace_service_.get()}}));
  if (!options_.metrics_listen.empty()) {
    RETURN_IF_ERROR(rpc::CheckExposure("metrics.listen", options_.metrics_listen, false, false,
                                       options_.security.allow_insecure));
    ASSIGN_OR_RETURN(metrics_server_,
                     metrics::MetricsServer::Start(options_.metrics_listen, metrics_.get()));
  }
  rpc_->SetServing(true);
  watcher_ = std::thread([this] { WatchLoop(); });
  SMARTGEN_LOG(info, "server",
               "ready listen={} data_port={} metrics_port={} model={} fingerprint={} compute={} "
               "context={} kv_pages={} "
               "kv_bytes={} incarnation={:x}",
               rpc_->address(), tcp_->listen_port(), metrics_port(), identity_.model_name,
               identity_.model_fingerprint, identity_.compute, identity_.context_length,
               pool_->total_pages(), pool_->total_pages() * identity_.layout.PageBytesTotal(),
               incarnation_);
  return absl::OkStatus();
}

absl::Status PrefillServer::InitChannels() {
  channel::TcpEngine::Options tcp_options;
  tcp_options.listen = options_.data_listen;
  ASSIGN_OR_RETURN(tcp_, channel::TcpEngine::Create(tcp_options, parts_.clock));
  ASSIGN_OR_RETURN(identity_.transports,
                   channel::OpenTransports(options_.transport, parts_.nccl, tcp_.get(),
                                           parts_.clock, *metrics_, &nccl_));
  if (nccl_ != nullptr) {
    identity_.nccl_version = nccl_->engine().version();
    identity_.nccl_piece_bytes = nccl_->engine().options().piece_bytes;
  }
  return absl::OkStatus();
}

absl::Status PrefillServer::InitPlanner() {
  const int layers = identity_.layout.num_layers();
  std::vector<transfer::Profile> profiles;
  std::string source = options_.profile;
  if (!options_.profile.empty()) {
    ASSIGN_OR_RETURN(transfer::Profile profile, transfer::Profile::Load(options_.profile));
    RETURN_IF_ERROR(base::Annotate(profile.CheckFor(identity_.model_fingerprint, layers),
                                   fmt::format("profile {}", options_.profile)));
    profiles.push_back(std::move(profile));
  } else {
    profiles = transfer::BuiltInProfiles(identity_.model_fingerprint, layers);
    source = fmt::format("{} built in", profiles.size());
  }
  if (profiles.empty()) {
    profiles.push_back(transfer::Profile::Prior(layers));
    source = "none: sinks, recency and the dense layers are pushed first";
  }
  SMARTGEN_LOG(info, "server", "profile={}", source);
  ASSIGN_OR_RETURN(auto costs,
                   transfer::LoadCostModel(options_.calibration,
                                           {.model_fingerprint = identity_.model_fingerprint,
                                            .compute = identity_.compute,
                                            .cpu = parts_.hardware,
                                            .threads = parts_.executor->threads()}));
  planner_ = std::make_unique<TransferPlanner>(TransferPlanner::Options{}, identity_.layout,
                                               std::move(profiles), std::move(costs));
  std::vector<int> query_heads;
  for (const model::LayerConfig& layer : parts_.executor->config().layers) {
    query_heads.push_back(layer.num_heads);
  }
  const selector::Options selector_options;
  ASSIGN_OR_RETURN(auto parameters, selector::LoadParameters(options_.selector_parameters,
                                                             identity_.model_fingerprint,
                                                             identity_.layout, selector_options));
  selectors_ = std::make_unique<selector::SelectorSet>(identity_.layout, std::move(query_heads),
                                                       std::move(parameters), selector_options);
  identity_.selector_parameters = selectors_->parameters_digest();
  return absl::OkStatus();
}

PrefillServer::~PrefillServer() {
  {
    base::MutexLock lock(mutex_);
    stop_ = true;
  }
  wake_.NotifyAll();
  if (watcher_.joinable()) watcher_.join();
  metrics_server_.reset();
  if (rpc_ != nullptr) rpc_->SetServing(false);
  const absl::Status reason = base::Unavailable("prefilld is stopping");
  if (engine_ != nullptr) engine_->Stop();
  if (control_ != nullptr) control_->Stop(reason);
  if (probe_ != nullptr) probe_->Stop();
  if (prefill_ != nullptr) prefill_->Flush(kFlushGrace);
  if (rpc_ != nullptr) rpc_->Shutdown(base::Duration(0));
  nccl_.reset();
  tcp_.reset();
  rpc_.reset();
  trace_service_.reset();
  prefill_.reset();
  control_.reset();
  engine_.reset();
}

void PrefillServer::WatchLoop() {
  rpc::ServingWatch serving(
      {.server = rpc_.get(),
       .health = [this] { return health(); },
       .stuck = [this] { return engine_->stuck(); },
       .draining = [this] { return draining_.load(); },
       .on_failed = parts_.on_failed,
       .stuck_text = fmt::format("no layer was computed for {:g} s though prompts wait",
                                 base::ToSeconds(options_.watchdog))});
  for (;;) {
    {
      base::MutexLock lock(mutex_);
      if (!stop_) wake_.WaitFor(mutex_, kWatchInterval);
      if (stop_) return;
    }
    probe_->Tick();
    traces_->Expire();
    serving.Look();
  }
}

void PrefillServer::Drain() {
  draining_ = true;
  rpc_->SetServing(false);
  engine_->RefuseNew();
  SMARTGEN_LOG(info, "server", "draining: at most {:g} s", base::ToSeconds(options_.drain_timeout));
  const base::Deadline deadline = base::Deadline::After(*parts_.clock, options_.drain_timeout);
  base::MutexLock lock(mutex_);
  while (!stop_ && !deadline.Expired(*parts_.clock)) {
    const PrefillEngine::Load load = engine_->load();
    if (load.queued + load.running + load.leases == 0) break;
    wake_.WaitFor(mutex_, std::chrono::milliseconds(20));
  }
  const PrefillEngine::Load left = engine_->load();
  SMARTGEN_LOG(info, "server", "drained: left queued={} running={} leases={}", left.queued,
               left.running, left.leases);
}

v1::DaemonInfo PrefillServer::Info() const {
  v1::DaemonInfo info;
  info.set_daemon("prefilld");
  info.set_version(std::string(config::SoftwareVersion()));
  info.set_incarnation(incarnation_);
  info.set_model_name(identity_.model_name);
  info.set_model_fingerprint(identity_.model_fingerprint);
  info.set_context_length(identity_.context_length);
  info.set_compute(identity_.compute);
  rpc::ToProto(identity_.layout, info.mutable_layout());
  info.set_draining(draining_);
  const PrefillEngine::Load load = engine_->load();
  info.set_running(load.running);
  info.set_waiting(load.queued);
  info.set_leases(load.leases);
  info.set_kv_pages_total(pool_->total_pages());
  info.set_kv_pages_free(pool_->free_pages());
  info.set_kv_pages_cached(prefix_cache_->stats().pages);
  for (auto& peer : control_->Peers()) *info.add_peers() = std::move(peer);
  return info;
}

}  // namespace smartgen::prefill_server
