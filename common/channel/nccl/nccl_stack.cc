#include "common/channel/nccl/nccl_stack.h"

#include <utility>

#include "common/base/log.h"

namespace smartgen::channel {

absl::StatusOr<std::unique_ptr<NcclStack>> NcclStack::Open(const TransportOptions& options,
                                                           Nccl* nccl, TcpEngine* tcp,
                                                           const base::Clock* clock) {
  std::unique_ptr<NcclStack> stack(new NcclStack);
  if (nccl == nullptr) {
    ASSIGN_OR_RETURN(stack->device_, device::OpenDevice(options.device));
    ASSIGN_OR_RETURN(stack->library_, OpenNccl(stack->device_.get()));
    nccl = stack->library_.get();
  }
  NcclEngine::Options engine_options;
  engine_options.piece_bytes = static_cast<uint64_t>(options.piece_bytes);
  engine_options.max_pairs = options.max_pairs;
  ASSIGN_OR_RETURN(stack->engine_, NcclEngine::Create(engine_options, nccl, tcp, clock));
  const device::DeviceInfo info = nccl->device().info();
  SMARTGEN_LOG(info, "channel", "nccl={} device={} ({}) staging_bytes={} free_bytes={}",
               NcclVersionText(nccl->version()), info.index, info.name,
               engine_options.piece_bytes * static_cast<uint64_t>(engine_options.slots),
               info.free_bytes);
  return stack;
}

absl::StatusOr<std::vector<std::string>> OpenTransports(const TransportOptions& options, Nccl* nccl,
                                                        TcpEngine* tcp, const base::Clock* clock,
                                                        metrics::Metrics& metrics,
                                                        std::unique_ptr<NcclStack>* stack) {
  std::vector<std::string> transports = options.Transports();
  if (!options.WantsNccl()) return transports;
  auto opened = NcclStack::Open(options, nccl, tcp, clock);
  if (!opened.ok()) {
    std::erase(transports, "nccl");
    if (transports.empty()) return base::Annotate(opened.status(), "channel: nccl");
    SMARTGEN_LOG(warn, "channel", "tcp in the place of nccl: {}", base::MessageOf(opened.status()));
    metrics.GetCounter("fallback_total", {{"reason", "nccl_absent"}}).Add();
    return transports;
  }
  *stack = *std::move(opened);
  metrics.OnCollect([&metrics, engine = &(*stack)->engine(), counted = int64_t{0}]() mutable {
    const NcclStats stats = engine->stats();
    metrics.GetGauge("nccl_channels").Set(stats.channels);
    metrics.GetGauge("nccl_memory_bytes", {{"kind", "communicators"}})
        .Set(static_cast<double>(stats.communicator_bytes));
    metrics.GetGauge("nccl_memory_bytes", {{"kind", "staging"}})
        .Set(static_cast<double>(stats.staging_bytes));
    metrics.GetCounter("nccl_aborts_total")
        .Add(static_cast<double>(stats.aborts - std::exchange(counted, stats.aborts)));
  });
  return transports;
}

}  // namespace smartgen::channel
