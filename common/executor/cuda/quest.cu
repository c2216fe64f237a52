// Quest: bounds of pages, their scores, and the tokens of chosen pages.
#include "common/executor/cuda/launch.h"

namespace smartgen::executor::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kSumLanes = 16;  // selector::kSumLanes

// A block takes a page of one head; threads take channels.
template <typename T>
__global__ void QuestBoundsKernel(QuestBoundsArgs args) {
  const PagedLayer& layer = args.layer;
  const int64_t page = args.begin / kPage + blockIdx.x;
  const int head = static_cast<int>(blockIdx.y);
  const int dim = layer.head_dim;
  const int64_t page_begin = page * kPage;
  const int from = args.begin > page_begin ? static_cast<int>(args.begin - page_begin) : 0;
  const int to = args.end < page_begin + kPage ? static_cast<int>(args.end - page_begin) : kPage;
  const T* keys = reinterpret_cast<const T*>(PageOf(layer, page) + RowOffset(layer, head, 0));
  T* low_out = reinterpret_cast<T*>(args.units) + (page * layer.kv_heads + head) * 2 * dim;
  T* high_out = low_out + dim;
  for (int c = static_cast<int>(threadIdx.x); c < dim; c += kThreads) {
    T low = from > 0 ? low_out[c] : keys[c];
    T high = from > 0 ? high_out[c] : keys[c];
    for (int t = from; t < to; ++t) {
      const T key = keys[t * dim + c];
      if (ToFloat(key) < ToFloat(low)) low = key;
      if (ToFloat(key) > ToFloat(high)) high = key;
    }
    low_out[c] = low;
    high_out[c] = high;
  }
}

__device__ __forceinline__ int PadToLanes(int n) {
  return (n + kSumLanes - 1) / kSumLanes * kSumLanes;
}

// Sixteen threads take a page: channel c is lane c % 16's, and lanes are summed by the tree of
// selector::SumLanes.
template <typename T>
__global__ void QuestScoresKernel(QuestScoresArgs args) {
  SMARTGEN_DYNAMIC_SHARED(float, sums);  // of the group's positive query parts, then negative ones
  const int dim = args.head_dim;
  const int padded = PadToLanes(dim);
  const int head = static_cast<int>(blockIdx.y);
  const float* queries = args.queries + static_cast<int64_t>(head) * args.group * dim;
  for (int c = static_cast<int>(threadIdx.x); c < padded; c += kThreads) {
    float positive = 0;
    float negative = 0;
    for (int g = 0; g < args.group && c < dim; ++g) {
      const float q = queries[g * dim + c];
      positive = Add(positive, q > 0 ? q : 0.0f);
      negative = Add(negative, q < 0 ? q : 0.0f);
    }
    sums[c] = positive;
    sums[padded + c] = negative;
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x % kSumLanes);
  constexpr int kPagesATurn = kThreads / kSumLanes;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kPagesATurn;
  for (int64_t turn = static_cast<int64_t>(blockIdx.x) * kPagesATurn; turn < args.pages;
       turn += step) {
    const int64_t p = turn + threadIdx.x / kSumLanes;
    float above = 0;
    float below = 0;
    if (p < args.pages) {
      const T* minima = reinterpret_cast<const T*>(args.units) +
                        ((args.first_page + p) * args.kv_heads + head) * 2 * dim;
      for (int c = lane; c < dim; c += kSumLanes) {
        above = Add(above, Multiply(sums[c], ToFloat(minima[dim + c])));
        below = Add(below, Multiply(sums[padded + c], ToFloat(minima[c])));
      }
    }
    float sum = Add(above, below);
    for (int lanes = kSumLanes / 2; lanes > 0; lanes /= 2) {
      sum = Add(sum, __shfl_xor_sync(kAllLanes, sum, lanes));
    }
    if (p < args.pages && lane == 0) args.scores[head * args.score_stride + p] = sum;
  }
}

__global__ void QuestIndexKernel(QuestIndexArgs args) {
  const int head = static_cast<int>(blockIdx.y);
  const int64_t cut = args.cut_end - args.first;
  const int64_t paged = cut + kPage * args.chosen;
  const int64_t k = paged + args.length - args.recent;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= k) return;
  int64_t token = args.first + i;
  if (i >= paged) {
    token = args.recent + i - paged;
  } else if (i >= cut) {
    const int64_t at = (i - cut) / kPage;
    token = args.pages[head * args.page_stride + at] * int64_t{kPage} + (i - cut) % kPage;
  }
  args.index[head * k + i] = static_cast<int32_t>(token);
}

template <typename T>
LaunchError ScoresOf(const QuestScoresArgs& args, Stream stream) {
  const int64_t shared = 2LL * ((args.head_dim + kSumLanes - 1) / kSumLanes) * kSumLanes * 4;
  // Several pages a thread once there are blocks enough: the query sums are made once a block.
  const unsigned blocks = Ceil(args.pages, kThreads / kSumLanes);
  const Grid grid{blocks < 256 ? blocks : 256, static_cast<unsigned>(args.kv_heads)};
  return Launch(QuestScoresKernel<T>, grid, kThreads, shared, stream, args);
}

}  // namespace

LaunchError QuestBounds(const QuestBoundsArgs& args, Stream stream) {
  if (args.begin < 0 || args.begin >= args.end) return nullptr;
  if (const LaunchError error = CheckLayer(args.layer)) return error;
  const int64_t pages = (args.end - 1) / kPage - args.begin / kPage + 1;
  const Grid grid{static_cast<unsigned>(pages), static_cast<unsigned>(args.layer.kv_heads)};
  switch (args.layer.element) {
    case Element::kF32:
      return Launch(QuestBoundsKernel<float>, grid, kThreads, 0, stream, args);
    case Element::kBF16:
      return Launch(QuestBoundsKernel<Bf16>, grid, kThreads, 0, stream, args);
    case Element::kF16:
      return Launch(QuestBoundsKernel<F16>, grid, kThreads, 0, stream, args);
  }
  return "unknown element type";
}

LaunchError QuestScores(const QuestScoresArgs& args, Stream stream) {
  if (args.pages <= 0) return nullptr;
  if (args.head_dim < 1 || args.head_dim > kMaxHeadDim) return "want a head dim of 1 to 1024";
  if (args.kv_heads < 1 || args.kv_heads > kMaxHeads) return "want 1 to 1024 KV heads";
  if (args.group < 1) return "want at least one query head a KV head";
  switch (args.element) {
    case Element::kF32:
      return ScoresOf<float>(args, stream);
    case Element::kBF16:
      return ScoresOf<Bf16>(args, stream);
    case Element::kF16:
      return ScoresOf<F16>(args, stream);
  }
  return "unknown element type";
}

LaunchError QuestIndex(const QuestIndexArgs& args, Stream stream) {
  const int64_t k = args.cut_end - args.first + kPage * args.chosen + args.length - args.recent;
  if (k <= 0) return nullptr;
  if (args.kv_heads < 1 || args.kv_heads > kMaxHeads) return "want 1 to 1024 KV heads";
  const Grid grid{Ceil(k, kThreads), static_cast<unsigned>(args.kv_heads)};
  return Launch(QuestIndexKernel, grid, kThreads, 0, stream, args);
}

}  // namespace smartgen::executor::cuda
