// Elementwise work on rows: SwiGLU, sums, rounding. Blocks of a column take a row.
#include <cmath>

#include "common/executor/cuda/launch.h"
#include "common/executor/cuda/layer_kernels.h"

namespace smartgen::executor::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kElementsAThread = 8;  // then a row is worth another block
// Of one grid column.
constexpr unsigned kMaxBlocksARow = 1024;

template <typename Out>
__global__ void SwiGluKernel(SwiGluArgs args) {
  const int64_t row = blockIdx.x;
  const float* gates = args.gate + row * args.stride;
  const float* ups = args.up + row * args.stride;
  Out* out = static_cast<Out*>(args.out) + row * args.out_stride;
  const int step = static_cast<int>(gridDim.y) * kThreads;
  for (int i = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
       i < args.dim; i += step) {
    const float gate = gates[i];
    // silu(g) = g / (1 + e^-g); beyond the clamp the quotient is 0 or g to float precision.
    const float power = gate * -1.44269504f;
    FromFloat(gate / (1.0f + exp2f(power > 126.0f ? 126.0f : power)) * ups[i], &out[i]);
  }
}

template <typename Y>
__global__ void AddRowsKernel(AddRowsArgs args) {
  const int64_t row = blockIdx.x;
  float* x = args.x + row * args.x_stride;
  const Y* y = static_cast<const Y*>(args.y) + row * args.y_stride;
  const int step = static_cast<int>(gridDim.y) * kThreads;
  for (int i = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
       i < args.dim; i += step) {
    x[i] += ToFloat(y[i]);
  }
}

template <typename Out>
__global__ void RoundRowsKernel(RoundRowsArgs args) {
  const int64_t row = blockIdx.x;
  const float* x = args.x + row * args.x_stride;
  Out* out = static_cast<Out*>(args.out) + row * args.out_stride;
  const int step = static_cast<int>(gridDim.y) * kThreads;
  for (int i = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
       i < args.dim; i += step) {
    FromFloat(x[i], &out[i]);
  }
}

Grid GridOf(int64_t rows, int dim) {
  const unsigned blocks = Ceil(dim, kThreads * kElementsAThread);
  return {static_cast<unsigned>(rows), blocks < kMaxBlocksARow ? blocks : kMaxBlocksARow};
}

}  // namespace

LaunchError SwiGlu(const SwiGluArgs& args, Stream stream) {
  if (args.rows <= 0) return nullptr;
  if (const LaunchError error = CheckRows(args.rows, args.dim)) return error;
  if (args.stride < args.dim || args.out_stride < args.dim) {
    return "want strides of at least the row's length";
  }
  const Grid grid = GridOf(args.rows, args.dim);
  switch (args.out_element) {
    case Element::kF32:
      return Launch(SwiGluKernel<float>, grid, kThreads, 0, stream, args);
    case Element::kBF16:
      return Launch(SwiGluKernel<Bf16>, grid, kThreads, 0, stream, args);
    case Element::kF16:
      return Launch(SwiGluKernel<F16>, grid, kThreads, 0, stream, args);
  }
  return "unknown element type";
}

LaunchError AddRows(const AddRowsArgs& args, Stream stream) {
  if (args.rows <= 0) return nullptr;
  if (const LaunchError error = CheckRows(args.rows, args.dim)) return error;
  if (args.x_stride < args.dim || (args.y_stride != 0 && args.y_stride < args.dim)) {
    return "want strides of at least the row's length";
  }
  const Grid grid = GridOf(args.rows, args.dim);
  switch (args.y_element) {
    case Element::kF32:
      return Launch(AddRowsKernel<float>, grid, kThreads, 0, stream, args);
    case Element::kBF16:
      return Launch(AddRowsKernel<Bf16>, grid, kThreads, 0, stream, args);
    case Element::kF16:
      return Launch(AddRowsKernel<F16>, grid, kThreads, 0, stream, args);
  }
  return "unknown element type";
}

LaunchError RoundRows(const RoundRowsArgs& args, Stream stream) {
  if (args.rows <= 0) return nullptr;
  if (const LaunchError error = CheckRows(args.rows, args.dim)) return error;
  if (args.x_stride < args.dim || args.out_stride < args.dim) {
    return "want strides of at least the row's length";
  }
  const Grid grid = GridOf(args.rows, args.dim);
  switch (args.out_element) {
    case Element::kF32:
      return Launch(RoundRowsKernel<float>, grid, kThreads, 0, stream, args);
    case Element::kBF16:
      return Launch(RoundRowsKernel<Bf16>, grid, kThreads, 0, stream, args);
    case Element::kF16:
      return Launch(RoundRowsKernel<F16>, grid, kThreads, 0, stream, args);
  }
  return "unknown element type";
}

}  // namespace smartgen::executor::cuda
