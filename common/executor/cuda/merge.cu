// Partial attentions put together by their log-sum-exps.
#include <cmath>

#include "common/executor/cuda/launch.h"

namespace smartgen::executor::cuda {
namespace {

constexpr int kThreads = 128;

// A block takes a row.
template <typename T>
__global__ void MergePartialsKernel(MergePartialsArgs args) {
  const int64_t row = blockIdx.x;
  T* values = static_cast<T*>(args.values) + row * args.dim;
  const T* others = static_cast<const T*>(args.other_values) + row * args.dim;
  const float empty = FromBits(0xff800000u);
  const float lse = args.lse[row];
  const float other_lse = args.other_lse[row];
  __syncthreads();  // thread 0 writes lse
  if (other_lse == empty) {
    // Without any key there is no value either; otherwise all stays.
    for (int i = static_cast<int>(threadIdx.x); lse == empty && i < args.dim; i += kThreads) {
      FromFloat(0.0f, &values[i]);
    }
    return;
  }
  if (lse == empty) {
    for (int i = static_cast<int>(threadIdx.x); i < args.dim; i += kThreads) values[i] = others[i];
    if (threadIdx.x == 0) args.lse[row] = other_lse;
    return;
  }
  const float most = lse > other_lse ? lse : other_lse;
  const float a = expf(lse - most);
  const float b = expf(other_lse - most);
  const float sum = a + b;
  const float mine = a / sum;
  const float theirs = b / sum;
  for (int i = static_cast<int>(threadIdx.x); i < args.dim; i += kThreads) {
    FromFloat(mine * ToFloat(values[i]) + theirs * ToFloat(others[i]), &values[i]);
  }
  if (threadIdx.x == 0) args.lse[row] = most + logf(sum);
}

}  // namespace

LaunchError MergePartials(const MergePartialsArgs& args, Stream stream) {
  if (args.rows <= 0) return nullptr;
  if (args.rows > INT32_MAX) return "want rows below 2^31";
  if (args.dim < 1) return "want rows of at least one value";
  const Grid grid{static_cast<unsigned>(args.rows)};
  switch (args.element) {
    case Element::kF32:
      return Launch(MergePartialsKernel<float>, grid, kThreads, 0, stream, args);
    case Element::kBF16:
      return Launch(MergePartialsKernel<Bf16>, grid, kThreads, 0, stream, args);
    case Element::kF16:
      return Launch(MergePartialsKernel<F16>, grid, kThreads, 0, stream, args);
  }
  return "unknown element type";
}

}  // namespace smartgen::executor::cuda
