// All that a daemon needs to speak NCCL: device, library and engine, in the order of their lives.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/channel/nccl/nccl_engine.h"
#include "common/channel/transport_options.h"
#include "common/metrics/metrics.h"

namespace smartgen::channel {

class NcclStack {
 public:
  // `nccl` null: the library on options.device. Otherwise it must outlive the stack, as `tcp` must.
  // Errors say what is missing: CUDA or NCCL in this build, the device, memory for the staging.
  static absl::StatusOr<std::unique_ptr<NcclStack>> Open(const TransportOptions& options,
                                                         Nccl* nccl, TcpEngine* tcp,
                                                         const base::Clock* clock);
  NcclEngine& engine() { return *engine_; }

 private:
  NcclStack() = default;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<Nccl> library_;
  std::unique_ptr<NcclEngine> engine_;
};

// What a daemon takes part in, by its options: the names for Hello and Identity. Opens the stack if
// it is wanted; with nccl_or_tcp a stack that cannot be opened is a fallback, logged and counted.
// `metrics` shows the stack from then on and must not be asked once it is gone.
absl::StatusOr<std::vector<std::string>> OpenTransports(const TransportOptions& options, Nccl* nccl,
                                                        TcpEngine* tcp, const base::Clock* clock,
                                                        metrics::Metrics& metrics,
                                                        std::unique_ptr<NcclStack>* stack);

}  // namespace smartgen::channel
