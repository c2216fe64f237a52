// The executor on a CUDA device, written against narrow interfaces (device.h, gemm.h) and launchers
// (kernels.h, layer_kernels.h), so that it runs on doubles and the emulator too.
//
// KV belongs in host memory (kv::KvPool). kv_location says where kernels read it:
//   device  from a copy on the device. A step's or chunk's own KV is written there and copied to
//           the host; what came by other ways is copied up when a layer first needs it. The copy
//           holds what fits, the longest unused goes first.
//   host    from the pool itself, over the bus. The pool must be made of page_memory().
//   auto    device if the pool (CudaOptions::kv_bytes) fits into what weights and activations
//           leave, else host.
// Selection (selector::KvSelector) runs on the host: queries of slots that select or wait for
// remote KV are copied there in every layer, and attention to what was chosen runs on the device.
//
// Numbers: products are summed in f32, in an order of the library's, so that logits are within
// rounding of the CPU executor's, and a row's may depend on how many rows are computed together.
//
// An error of the device is final: every later call returns it, and the process must be started
// anew.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "common/device/device.h"
#include "common/executor/cuda/gemm.h"
#include "common/executor/executor.h"
#include "common/executor/kv_location.h"

namespace smartgen::executor {

struct CudaOptions {
  int device = 0;
  KvLocation kv_location = KvLocation::kAuto;
  // Of the device, for all that the executor holds; 0: what is free, less a twentieth.
  uint64_t memory_bytes = 0;
  // Of the pool that it will serve. 0: not known; auto then means device.
  uint64_t kv_bytes = 0;
};

// ResourceExhausted, if the device has too little memory, says what was wanted for what and what
// would fit.
absl::StatusOr<std::unique_ptr<Executor>> NewCudaExecutor(const model::Model& model,
                                                          const ExecutorOptions& options,
                                                          const CudaOptions& cuda_options,
                                                          std::unique_ptr<device::Device> device,
                                                          std::unique_ptr<cuda::Gemm> gemm);

// On the real device, with the real libraries. FailedPrecondition in a build without CUDA.
absl::StatusOr<std::unique_ptr<Executor>> CreateCudaExecutor(const model::Model& model,
                                                             const ExecutorOptions& options,
                                                             const CudaOptions& cuda_options);

}  // namespace smartgen::executor
