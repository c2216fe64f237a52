// How launchers queue a kernel: one spelling for nvcc and for the emulator. Included by .cu files
// only.
#pragma once

#include "common/executor/cuda/device.h"
#include "common/executor/cuda/kernels.h"

namespace smartgen::executor::cuda {

struct Grid {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

inline unsigned Ceil(int64_t n, int64_t by) { return static_cast<unsigned>((n + by - 1) / by); }

template <typename Args>
LaunchError Launch(void (*kernel)(Args), Grid grid, int threads, int64_t dynamic_shared,
                   [[maybe_unused]] Stream stream, const Args& args) {
#ifdef SMARTGEN_CUDA_EMULATE
  return emulate::LaunchOn(stream, [=] {
    return emulate::Launch({.grid = {grid.x, grid.y, grid.z},
                            .block = {static_cast<unsigned>(threads), 1, 1},
                            .dynamic_shared = static_cast<size_t>(dynamic_shared)},
                           [&] { kernel(args); });
  });
#else
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(grid.x, grid.y, grid.z);
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(dynamic_shared);
  config.stream = static_cast<cudaStream_t>(stream);
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, args);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
#endif
}

// Null if the layer can be of a KvLayout.
inline LaunchError CheckLayer(const PagedLayer& layer) {
  if (layer.kv_heads < 1 || layer.kv_heads > kMaxHeads) return "want 1 to 1024 KV heads";
  if (layer.head_dim < 1 || layer.head_dim > kMaxHeadDim) return "want a head dim of 1 to 1024";
  if (layer.page_bytes !=
      2LL * kPage * layer.kv_heads * layer.head_dim * ElementBytes(layer.element)) {
    return "want pages of 2 * 16 * KV heads * head dim elements";
  }
  return nullptr;
}

// For kernels that have a block, or a column of them, for a row.
inline LaunchError CheckRows(int64_t rows, int dim) {
  if (rows > kMaxRows) return "want rows below 2^31";
  if (dim < 1) return "want rows of at least one value";
  return nullptr;
}

// The page that holds a token, and where K of (head, token) begins in it; V is half a page further.
__device__ __forceinline__ std::byte* PageOf(const PagedLayer& layer, int64_t page) {
  return layer.base + layer.pages[page] * layer.page_bytes;
}
__device__ __forceinline__ int64_t RowOffset(const PagedLayer& layer, int head, int64_t row) {
  return (static_cast<int64_t>(head) * kPage + row) * layer.head_dim * ElementBytes(layer.element);
}

}  // namespace smartgen::executor::cuda
