// Rows of the embedding table as f32.
#include "common/executor/cuda/launch.h"
#include "common/executor/cuda/layer_kernels.h"

namespace smartgen::executor::cuda {
namespace {

constexpr int kThreads = 256;

// A block takes a row.
template <typename T>
__global__ void EmbedKernel(EmbedArgs args) {
  const int64_t row = blockIdx.x;
  const int32_t token = args.tokens[row];
  float* out = args.out + row * args.out_stride;
  const bool known = token >= 0 && token < args.vocabulary;
  const T* from = static_cast<const T*>(args.table) + (known ? token * int64_t{args.dim} : 0);
  for (int i = static_cast<int>(threadIdx.x); i < args.dim; i += kThreads) {
    out[i] = known ? ToFloat(from[i]) : FromBits(0x7fc00000u);
  }
}

}  // namespace

LaunchError Embed(const EmbedArgs& args, Stream stream) {
  if (args.rows <= 0) return nullptr;
  if (const LaunchError error = CheckRows(args.rows, args.dim)) return error;
  if (args.out_stride < args.dim) return "want a stride of at least the row's length";
  const Grid grid{static_cast<unsigned>(args.rows)};
  switch (args.element) {
    case Element::kF32:
      return Launch(EmbedKernel<float>, grid, kThreads, 0, stream, args);
    case Element::kBF16:
      return Launch(EmbedKernel<Bf16>, grid, kThreads, 0, stream, args);
    case Element::kF16:
      return Launch(EmbedKernel<F16>, grid, kThreads, 0, stream, args);
  }
  return "unknown element type";
}

}  // namespace smartgen::executor::cuda
