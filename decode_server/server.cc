#include "decode_server/server.h"

#include <algorithm>
#include <utility>

#include "common/base/ids.h"
#include "common/base/log.h"
#include "common/config/version.h"
#include "common/rpc/convert.h"
#include "common/rpc/serving_watch.h"
#include "common/selector/parameters.h"
#include "common/transfer/calibration.h"

namespace smartgen::decode_server {
namespace {

constexpr int kMemoryShare = 4;
constexpr base::Duration kWatchInterval = std::chrono::milliseconds(200);
// After the drain's end: for what was ended then to be over.
constexpr base::Duration kAbortGrace = std::chrono::seconds(2);
// For answers that are finished to reach their clients.
constexpr base::Duration kFlushGrace = std::chrono::seconds(2);

}  // namespace

absl::StatusOr<std::unique_ptr<DecodeServer>> DecodeServer::Start(const Options& options,
                                                                  Parts parts) {
  RETURN_IF_ERROR(options.Check());
  auto server = std::unique_ptr<DecodeServer>(new DecodeServer(options, std::move(parts)));
  RETURN_IF_ERROR(server->Init());
  return server;
}

DecodeServer::DecodeServer(const Options& options, Parts parts)
    : options_(options),
      parts_(std::move(parts)),
      incarnation_(base::NewIncarnationId()),
      metrics_(metrics::Metrics::Create("decoded")) {}

absl::Status DecodeServer::Init() {
  RETURN_IF_ERROR(InitPool());
  RETURN_IF_ERROR(InitSelectors());
  RETURN_IF_ERROR(InitCosts());
  RETURN_IF_ERROR(InitPairings());
  InitEngine();
  RETURN_IF_ERROR(InitServices());
  rpc_->SetServing(true);
  watcher_ = std::thread([this] { WatchLoop(); });
  SMARTGEN_LOG(info, "server",
               "ready listen={} metrics_port={} model={} fingerprint={} compute={} context={} "
               "kv_pages={} kv_bytes={} "
               "prefill={} incarnation={:x}",
               rpc_->address(), metrics_port(), parts_.model_name, parts_.model_fingerprint,
               compute_, context_length_, pool_->total_pages(),
               pool_->total_pages() * layout_.PageBytesTotal(), fmt::join(options_.prefill, ","),
               incarnation_);
  return absl::OkStatus();
}

absl::Status DecodeServer::InitPool() {
  executor::Executor& executor = *parts_.executor;
  compute_ = std::string(executor::ComputeTypeName(executor.compute()));
  context_length_ = executor.config().context_length;
  if (options_.context_length > 0)
    context_length_ = std::min(context_length_, options_.context_length);
  layout_ = executor.Layout(context_length_);
  kv::KvPool::Options pool_options;
  ASSIGN_OR_RETURN(pool_options.bytes, options_.PoolBytes());
  pool_options.memory = executor.page_memory();
  ASSIGN_OR_RETURN(pool_, kv::KvPool::Create(layout_, pool_options));
  kv::PrefixCache::Options cache_options;
  cache_options.enabled = options_.prefix_cache;
  cache_options.salt =
      fmt::format("{}/{}/{}", parts_.model_fingerprint, compute_, kv::DTypeName(layout_.dtype));
  prefix_cache_ = std::make_unique<kv::PrefixCache>(pool_.get(), cache_options);
  return absl::OkStatus();
}

absl::Status DecodeServer::InitCosts() {
  ASSIGN_OR_RETURN(costs_, transfer::LoadCostModel(options_.calibration,
                                                   {.model_fingerprint = parts_.model_fingerprint,
                                                    .compute = compute_,
                                                    .cpu = parts_.hardware,
                                                    .threads = parts_.executor->threads()}));
  if (costs_ == nullptr) return absl::OkStatus();
  for (const std::string& peer : options_.prefill) {
    if (costs_->Link(peer).round_trip_seconds > 0) continue;
    SMARTGEN_LOG(warn, "server",
                 "calibration {}: the way from {} was not measured (smartgen calibrate --peer {}): "
                 "no prompt is kept here because of it",
                 options_.calibration, peer, peer);
  }
  return absl::OkStatus();
}

absl::Status DecodeServer::InitPairings() {
  ASSIGN_OR_RETURN(tcp_, channel::TcpEngine::Create({}, parts_.clock));
  PairingContext context;
  ASSIGN_OR_RETURN(context.options.transports,
                   channel::OpenTransports(options_.transport, parts_.nccl, tcp_.get(),
                                           parts_.clock, *metrics_, &nccl_));
  if (nccl_ != nullptr) context.nccl = &nccl_->engine();
  context.options.heartbeat = options_.heartbeat;
  context.options.pairing_timeout = options_.pairing_timeout;
  context.options.checksum = options_.checksum;
  context.options.client.security = options_.security;
  context.options.wrap_channel = parts_.wrap_channel;
  context.incarnation = incarnation_;
  // Instances that let the system choose their port have no name that outlives them.
  context.instance = options_.listen;
  if (options_.listen.ends_with(":0")) context.instance += fmt::format("/{:x}", incarnation_);
  context.model_fingerprint = parts_.model_fingerprint;
  context.compute = compute_;
  context.layout = layout_;
  context.selector_parameters = selectors_->parameters_digest();
  context.tcp = tcp_.get();
  context.clock = parts_.clock;
  context.metrics = metrics_.get();
  ASSIGN_OR_RETURN(pairings_, PairingManager::Start(std::move(context), options_.prefill));
  return absl::OkStatus();
}

absl::Status DecodeServer::InitSelectors() {
  std::vector<int> query_heads;
  for (const model::LayerConfig& layer : parts_.executor->config().layers) {
    query_heads.push_back(layer.num_heads);
  }
  const selector::Options selector_options;
  ASSIGN_OR_RETURN(auto parameters,
                   selector::LoadParameters(options_.selector_parameters, parts_.model_fingerprint,
                                            layout_, selector_options));
  selectors_ = std::make_unique<selector::SelectorSet>(layout_, std::move(query_heads),
                                                       std::move(parameters), selector_options);
  return absl::OkStatus();
}

void DecodeServer::InitEngine() {
  DecodeEngine::Options engine_options;
  engine_options.max_batch = options_.max_batch;
  engine_options.max_waiting = options_.max_waiting;
  engine_options.max_prefill_tokens = options_.max_prefill_tokens;
  engine_options.local_chunk_tokens = options_.local_chunk_tokens;
  engine_options.local_below_tokens = options_.local_below_tokens;
  engine_options.max_attempts = options_.max_attempts;
  engine_options.local_fallback = options_.local_fallback;
  engine_options.prefill_timeout = options_.prefill_timeout;
  engine_options.transfer_timeout = options_.transfer_timeout;
  engine_options.stall = options_.stall;
  engine_options.watchdog = options_.watchdog;
  engine_ = std::make_unique<DecodeEngine>(
      engine_options,
      DecodeEngine::Parts{parts_.executor.get(), pool_.get(), prefix_cache_.get(), pairings_.get(),
                          parts_.clock, metrics_.get(), selectors_.get(), costs_.get()});
  metrics_->OnCollect([this] { engine_->CollectMetrics(); });
}

absl::Status DecodeServer::InitServices() {
  ASSIGN_OR_RETURN(const Mode mode, transfer::ParseMode(options_.mode));
  transfer::RequestOptions transfer = options_.transfer;
  ASSIGN_OR_RETURN(transfer.handover, transfer::ParseHandover(options_.handover));
  traces_ = std::make_unique<trace::TraceStore>(options_.trace, parts_.clock);
  trace_service_ = std::make_unique<rpc::TraceService>(traces_.get(), parts_.clock, "decoded",
                                                       [this] { return rpc_->address(); });
  DecodeService::Parts service_parts{engine_.get(),
                                     parts_.clock,
                                     metrics_.get(),
                                     parts_.model_name,
                                     parts_.model_fingerprint,
                                     mode,
                                     transfer,
                                     options_.request_timeout,
                                     [this] { return Info(); },
                                     traces_.get()};
  service_ = std::make_unique<DecodeService>(std::move(service_parts));
  rpc::ServerOptions rpc_options;
  rpc_options.listen = options_.listen;
  rpc_options.security = options_.security;
  ASSIGN_OR_RETURN(rpc_,
                   rpc::Server::Start(rpc_options, {{"smartgen.v1.Decode", service_.get()},
                                                    {"smartgen.v1.Trace", trace_service_.get()}}));
  if (options_.metrics_listen.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(rpc::CheckExposure("metrics.listen", options_.metrics_listen, false, false,
                                     options_.security.allow_insecure));
  ASSIGN_OR_RETURN(metrics_server_,
                   metrics::MetricsServer::Start(options_.metrics_listen, metrics_.get()));
  return absl::OkStatus();
}

DecodeServer::~DecodeServer() {
  {
    base::MutexLock lock(mutex_);
    stop_ = true;
  }
  wake_.NotifyAll();
  if (watcher_.joinable()) watcher_.join();
  metrics_server_.reset();
  if (rpc_ != nullptr) rpc_->SetServing(false);
  if (engine_ != nullptr) engine_->Stop();
  if (pairings_ != nullptr) pairings_->Stop();
  if (service_ != nullptr) service_->Flush(kFlushGrace);
  if (rpc_ != nullptr) rpc_->Shutdown(base::Duration(0));
  rpc_.reset();
  trace_service_.reset();
  service_.reset();
  nccl_.reset();
  tcp_.reset();
  engine_.reset();
}

void DecodeServer::WatchLoop() {
  rpc::ServingWatch serving(
      {.server = rpc_.get(),
       .health = [this] { return health(); },
       .stuck = [this] { return engine_->stuck(); },
       .draining = [this] { return draining_.load(); },
       .on_failed = parts_.on_failed,
       .stuck_text = fmt::format("no step was made for {:g} s though requests wait",
                                 base::ToSeconds(options_.watchdog))});
  for (;;) {
    {
      base::MutexLock lock(mutex_);
      if (!stop_) wake_.WaitFor(mutex_, kWatchInterval);
      if (stop_) return;
    }
    traces_->Expire();
    serving.Look();
  }
}

bool DecodeServer::WaitIdle(base::Deadline deadline) {
  base::MutexLock lock(mutex_);
  for (;;) {
    const DecodeEngine::Load load = engine_->load();
    if (load.waiting + load.running == 0) return true;
    if (stop_ || deadline.Expired(*parts_.clock)) return false;
    wake_.WaitFor(mutex_, std::chrono::milliseconds(20));
  }
}

void DecodeServer::Drain() {
  draining_ = true;
  rpc_->SetServing(false);
  engine_->RefuseNew();
  SMARTGEN_LOG(info, "server", "draining: at most {:g} s", base::ToSeconds(options_.drain_timeout));
  if (!WaitIdle(base::Deadline::After(*parts_.clock, options_.drain_timeout))) {
    const DecodeEngine::Load left = engine_->load();
    SMARTGEN_LOG(warn, "server", "drain timeout: ending {} running and {} waiting requests",
                 left.running, left.waiting);
    engine_->CancelAll(base::Unavailable("decoded has stopped"));
    WaitIdle(base::Deadline::After(*parts_.clock, kAbortGrace));
  }
  SMARTGEN_LOG(info, "server", "drained");
}

v1::DaemonInfo DecodeServer::Info() const {
  v1::DaemonInfo info;
  info.set_daemon("decoded");
  info.set_version(std::string(config::SoftwareVersion()));
  info.set_incarnation(incarnation_);
  info.set_model_name(parts_.model_name);
  info.set_model_fingerprint(parts_.model_fingerprint);
  info.set_context_length(context_length_);
  info.set_compute(compute_);
  rpc::ToProto(layout_, info.mutable_layout());
  info.set_draining(draining_);
  const DecodeEngine::Load load = engine_->load();
  info.set_running(load.running);
  info.set_waiting(load.waiting);
  info.set_kv_pages_total(pool_->total_pages());
  info.set_kv_pages_free(pool_->free_pages());
  info.set_kv_pages_cached(prefix_cache_->stats().pages);
  for (auto& peer : pairings_->Peers()) *info.add_peers() = std::move(peer);
  return info;
}

}  // namespace smartgen::decode_server
