// A CUDA executor on the real device, with the real libraries.
#include <utility>

#include "common/executor/cuda/cublaslt_gemm.h"
#include "common/executor/cuda/cuda_executor.h"

namespace smartgen::executor {
namespace {

// Of the least device that the kernels are compiled for and tested against: bf16 products.
constexpr int kLeastMajor = 8;

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> CreateCudaExecutor(const model::Model& model,
                                                             const ExecutorOptions& options,
                                                             const CudaOptions& cuda_options) {
  ASSIGN_OR_RETURN(auto device, device::OpenDevice(cuda_options.device));
  const device::DeviceInfo info = device->info();
  if (info.compute_major < kLeastMajor) {
    return base::FailedPrecondition(
        "executor cuda: device {} ({}) has compute capability {}.{}; want {}.0 (Ampere) or later",
        info.index, info.name, info.compute_major, info.compute_minor, kLeastMajor);
  }
  ASSIGN_OR_RETURN(auto gemm, cuda::CreateCublasLtGemm(device.get()));
  return NewCudaExecutor(model, options, cuda_options, std::move(device), std::move(gemm));
}

}  // namespace smartgen::executor
