// Gemm over cuBLASLt, in builds with CUDA.
#pragma once

#include <cstddef>
#include <memory>

#include "common/base/status.h"
#include "common/device/device.h"
#include "common/executor/cuda/gemm.h"

namespace smartgen::executor::cuda {

struct CublasLtOptions {
  // Of the device, for the library's split sums; what cuBLAS itself takes on Hopper.
  size_t workspace_bytes = size_t{32} << 20;
  // Of the device, for rows on their way to another type. Calls whose rows need more run in several
  // products of fewer rows.
  size_t staging_bytes = size_t{32} << 20;
  // Shapes whose algorithm is remembered. Asking the library for one takes as long as a small
  // product.
  size_t cached_shapes = 2048;
};

// Products of f32 are true f32, not TF32. `device` must outlive the result, which makes it current
// on the thread that calls. Internal names cuBLASLt's status; ResourceExhausted if the device has
// no room for workspace and staging.
absl::StatusOr<std::unique_ptr<Gemm>> CreateCublasLtGemm(device::Device* device,
                                                         const CublasLtOptions& options = {});

}  // namespace smartgen::executor::cuda
