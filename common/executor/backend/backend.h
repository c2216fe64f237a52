// Which executor runs the model, and where. Everything that runs one has these options.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/config/binder.h"
#include "common/executor/executor.h"

namespace smartgen::executor {

struct BackendOptions {
  std::string executor = "cpu";  // cpu, cuda
  // Of `cuda`; see CudaOptions (common/executor/cuda/cuda_executor.h).
  int device = 0;                    // CUDA's number of it
  std::string kv_location = "auto";  // auto, device, host
  int64_t memory_bytes = 0;          // of the device; 0: what is free, less a twentieth

  // Keys executor and cuda.*.
  void Bind(config::Binder& b);
  absl::Status Check() const;
  bool UsesCuda() const { return executor == "cuda"; }
};

// `model` is only read during the call. `kv_bytes`: how large the KV pool will be that the executor
// serves; it should then be made in the executor's page_memory().
//
// FailedPrecondition for cuda if this build has none or the device is too old; NotFound names the
// devices that there are; InvalidArgument for options that Check refuses.
absl::StatusOr<std::unique_ptr<Executor>> CreateExecutor(const model::Model& model,
                                                         const ExecutorOptions& options,
                                                         const BackendOptions& backend,
                                                         int64_t kv_bytes);

// Of a pool with room for `tokens` tokens, in whatever type KV is kept (f32 at most): for
// CreateExecutor, where the pool's layout is known only once there is an executor.
int64_t KvBytesAtMost(const model::ModelConfig& config, int64_t tokens);

// What the model runs on ("AMD EPYC 9654", "NVIDIA H200"): what has been measured on one says
// nothing of another. Errors as of CreateExecutor.
absl::StatusOr<std::string> HardwareName(const BackendOptions& backend);

}  // namespace smartgen::executor
