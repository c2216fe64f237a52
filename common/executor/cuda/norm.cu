// RMSNorm of rows, with the residual's addition before it.
#include <cmath>

#include "common/executor/cuda/launch.h"
#include "common/executor/cuda/layer_kernels.h"

namespace smartgen::executor::cuda {
namespace {

constexpr int kThreads = 256;

// Over the block, the same in all threads, all of whom must come.
__device__ __forceinline__ float BlockSum(float value) {
  constexpr int kWarps = kThreads / 32;
  SMARTGEN_SHARED(float, sums, kWarps);
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, lanes);
  }
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += sums[w];
  return sum;
}

// A block takes a row; a thread reads in the second pass what it wrote itself in the first.
template <typename W, typename Out>
__global__ void RmsNormKernel(RmsNormArgs args) {
  const int64_t row = blockIdx.x;
  const int dim = args.dim;
  float* x = args.x + row * args.x_stride;
  const float* add = args.add == nullptr ? nullptr : args.add + row * args.add_stride;
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += kThreads) {
    float value = x[i];
    if (add != nullptr) {
      value += add[i];
      x[i] = value;
    }
    sum += value * value;
  }
  const float inverse = 1.0f / sqrtf(BlockSum(sum) / static_cast<float>(dim) + args.eps);
  const W* weight = static_cast<const W*>(args.weight);
  Out* out = static_cast<Out*>(args.out) + row * args.out_stride;
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += kThreads) {
    FromFloat(x[i] * inverse * ToFloat(weight[i]), &out[i]);
  }
}

template <typename W>
LaunchError NormOf(const RmsNormArgs& args, Stream stream) {
  const Grid grid{static_cast<unsigned>(args.rows)};
  switch (args.out_element) {
    case Element::kF32:
      return Launch(RmsNormKernel<W, float>, grid, kThreads, 0, stream, args);
    case Element::kBF16:
      return Launch(RmsNormKernel<W, Bf16>, grid, kThreads, 0, stream, args);
    case Element::kF16:
      return Launch(RmsNormKernel<W, F16>, grid, kThreads, 0, stream, args);
  }
  return "unknown element type";
}

}  // namespace

LaunchError RmsNorm(const RmsNormArgs& args, Stream stream) {
  if (args.rows <= 0) return nullptr;
  if (const LaunchError error = CheckRows(args.rows, args.dim)) return error;
  if (args.x_stride < args.dim || args.out_stride < args.dim ||
      (args.add != nullptr && args.add_stride < args.dim)) {
    return "want strides of at least the row's length";
  }
  switch (args.weight_element) {
    case Element::kF32:
      return NormOf<float>(args, stream);
    case Element::kBF16:
      return NormOf<Bf16>(args, stream);
    case Element::kF16:
      return NormOf<F16>(args, stream);
  }
  return "unknown element type";
}

}  // namespace smartgen::executor::cuda
