// Rotary embedding of queries and keys, and K and V to their pages.
#include <cmath>

#include "common/executor/cuda/launch.h"
#include "common/executor/cuda/layer_kernels.h"

namespace smartgen::executor::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kItemsAThread = 4;  // then a row is worth another block

// Threads take angles of all rows. In double, as on the CPU: an angle may be thousands of turns.
__global__ void RopeAnglesKernel(RopeAnglesArgs args) {
  const int64_t count = args.rows * args.angles;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += step) {
    const float angle = Multiply(static_cast<float>(args.positions[i / args.angles]),
                                 args.frequencies[i % args.angles]);
    args.cosines[i] = static_cast<float>(cos(static_cast<double>(angle)));
    args.sines[i] = static_cast<float>(sin(static_cast<double>(angle)));
  }
}

// Blocks of a column take a row. A head's items are its pairs, and an odd last channel, which only
// goes to the page. T: of the pages.
template <typename T>
__global__ void RopeKernel(RopeArgs args) {
  const int64_t row = blockIdx.x;
  const int dim = args.head_dim;
  const int half = dim / 2;
  const int items_a_head = (dim + 1) / 2;
  const int rotated = (args.query_heads + args.kv_heads) * items_a_head;
  const int values = args.layer.base == nullptr ? 0 : args.kv_heads * dim;
  float* x = args.x + row * args.stride;
  const float* cosines = args.cosines + row * half;
  const float* sines = args.sines + row * half;
  T* page = nullptr;
  int64_t token = 0;
  if (values > 0) {
    PagedLayer layer = args.layer;
    if (args.row_pages != nullptr) layer.pages = args.row_pages[row];
    const int64_t position = args.positions[row];
    token = position % kPage;
    page = reinterpret_cast<T*>(PageOf(layer, position / kPage));
  }
  const int step = static_cast<int>(gridDim.y) * kThreads;
  for (int i = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
       i < rotated + values; i += step) {
    if (i >= rotated) {
      const int v = i - rotated;
      const int64_t to = (int64_t{args.kv_heads} * kPage + int64_t{v / dim} * kPage + token) * dim;
      FromFloat(x[(args.query_heads + args.kv_heads) * dim + v], &page[to + v % dim]);
      continue;
    }
    const int head = i / items_a_head;
    const int c = i % items_a_head;
    const int kv_head = head - args.query_heads;
    float* at = x + head * dim;
    T* key =
        page == nullptr || kv_head < 0 ? nullptr : page + (int64_t{kv_head} * kPage + token) * dim;
    if (c == half) {
      if (key != nullptr) FromFloat(at[dim - 1], &key[dim - 1]);
      continue;
    }
    const float a = at[c];
    const float b = at[half + c];
    const float low = a * cosines[c] - b * sines[c];
    const float high = b * cosines[c] + a * sines[c];
    at[c] = low;
    at[half + c] = high;
    if (key == nullptr) continue;
    FromFloat(low, &key[c]);
    FromFloat(high, &key[half + c]);
  }
}

LaunchError CheckRope(const RopeArgs& args) {
  if (args.rows > kMaxRows) return "want rows below 2^31";
  if (args.head_dim < 1 || args.head_dim > kMaxHeadDim) return "want a head dim of 1 to 1024";
  if (args.query_heads < 0 || args.query_heads > kMaxHeads) return "want up to 1024 query heads";
  if (args.kv_heads < 0 || args.kv_heads > kMaxHeads) return "want up to 1024 KV heads";
  if (args.stride < (int64_t{args.query_heads} + 2 * args.kv_heads) * args.head_dim) {
    return "want a stride of at least the row's length";
  }
  if (args.layer.base == nullptr) return nullptr;
  if (const LaunchError error = CheckLayer(args.layer)) return error;
  if (args.layer.kv_heads != args.kv_heads || args.layer.head_dim != args.head_dim) {
    return "want rows of the layer's KV heads and head dim";
  }
  if (args.positions == nullptr) return "want the rows' positions in the pages";
  return nullptr;
}

}  // namespace

LaunchError RopeAngles(const RopeAnglesArgs& args, Stream stream) {
  if (args.rows <= 0 || args.angles <= 0) return nullptr;
  if (args.rows > kMaxRows) return "want rows below 2^31";
  if (args.angles > kMaxHeadDim / 2) return "want up to 512 angles";
  const unsigned blocks = Ceil(args.rows * args.angles, kThreads);
  const Grid grid{blocks < 4096 ? blocks : 4096};
  return Launch(RopeAnglesKernel, grid, kThreads, 0, stream, args);
}

LaunchError Rope(const RopeArgs& args, Stream stream) {
  if (args.rows <= 0) return nullptr;
  if (const LaunchError error = CheckRope(args)) return error;
  const int64_t items = int64_t{args.query_heads + args.kv_heads} * ((args.head_dim + 1) / 2) +
                        int64_t{args.kv_heads} * args.head_dim;
  if (items == 0) return nullptr;
  const Grid grid{static_cast<unsigned>(args.rows), Ceil(items, kThreads * kItemsAThread)};
  switch (args.layer.element) {
    case Element::kF32:
      return Launch(RopeKernel<float>, grid, kThreads, 0, stream, args);
    case Element::kBF16:
      return Launch(RopeKernel<Bf16>, grid, kThreads, 0, stream, args);
    case Element::kF16:
      return Launch(RopeKernel<F16>, grid, kThreads, 0, stream, args);
  }
  return "unknown element type";
}

}  // namespace smartgen::executor::cuda
