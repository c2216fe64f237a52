// A build without CUDA.
#include "common/executor/cuda/cuda_executor.h"

namespace smartgen::executor {

absl::StatusOr<std::unique_ptr<Executor>> CreateCudaExecutor(const model::Model&,
                                                             const ExecutorOptions&,
                                                             const CudaOptions&) {
  return base::FailedPrecondition(
      "executor cuda: this build has no CUDA: configure with the cuda preset (README, \"GPU\"), or "
      "take executor cpu");
}

}  // namespace smartgen::executor
