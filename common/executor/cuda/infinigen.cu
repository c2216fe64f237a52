// InfiniGen: partial keys, scores of a partial query, and how many tokens to keep.
#include "common/executor/cuda/launch.h"

namespace smartgen::executor::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kCountThreads = 256;

// Channel `channel` of x * skew, x of `dim` floats; ascending, as selector::Project.
template <typename X>
__device__ __forceinline__ float SkewedChannel(const X& x, int dim, const float* skew,
                                               int channel) {
  if (skew == nullptr) return x(channel);
  float sum = 0;
  for (int i = 0; i < dim; ++i) {
    sum = Add(sum, Multiply(x(i), skew[static_cast<int64_t>(i) * dim + channel]));
  }
  return sum;
}

// A block takes a page of one head; threads take (channel, token), tokens side by side.
template <typename T>
__global__ void InfiniGenEncodeKernel(InfiniGenEncodeArgs args) {
  const PagedLayer& layer = args.layer;
  const int dim = layer.head_dim;
  const int64_t page = args.begin / kPage + blockIdx.x;
  const int head = static_cast<int>(blockIdx.y);
  const int64_t page_begin = page * kPage;
  const int from = args.begin > page_begin ? static_cast<int>(args.begin - page_begin) : 0;
  const int to = args.end < page_begin + kPage ? static_cast<int>(args.end - page_begin) : kPage;
  const T* keys = reinterpret_cast<const T*>(PageOf(layer, page) + RowOffset(layer, head, 0));
  const float* skew =
      args.skew == nullptr ? nullptr : args.skew + static_cast<int64_t>(head) * dim * dim;
  const uint16_t* channels = args.channels + static_cast<int64_t>(head) * args.count;
  T* unit = reinterpret_cast<T*>(args.units) + (page * layer.kv_heads + head) * args.count * kPage;
  for (int i = static_cast<int>(threadIdx.x); i < args.count * kPage; i += kThreads) {
    const int token = i % kPage;
    if (token < from || token >= to) continue;
    const T* key = keys + token * dim;
    const float value =
        SkewedChannel([&](int c) { return ToFloat(key[c]); }, dim, skew, channels[i / kPage]);
    FromFloat(value, &unit[i]);
  }
}

// The block's head's group of queries is summed and projected to the chosen channels; then a thread
// takes a token.
template <typename T>
__global__ void InfiniGenScoresKernel(InfiniGenScoresArgs args) {
  SMARTGEN_DYNAMIC_SHARED(float, sums);  // [dim], then [count]
  const int dim = args.head_dim;
  const int head = static_cast<int>(blockIdx.y);
  const float* queries = args.queries + static_cast<int64_t>(head) * args.group * dim;
  const float* skew =
      args.skew == nullptr ? nullptr : args.skew + static_cast<int64_t>(head) * dim * dim;
  const uint16_t* channels = args.channels + static_cast<int64_t>(head) * args.count;
  for (int c = static_cast<int>(threadIdx.x); c < dim; c += kThreads) {
    float sum = 0;
    for (int g = 0; g < args.group; ++g) sum = Add(sum, queries[g * dim + c]);
    sums[c] = sum;
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < args.count; i += kThreads) {
    sums[dim + i] = SkewedChannel([&](int c) { return sums[c]; }, dim, skew, channels[i]);
  }
  __syncthreads();
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < args.tokens;
       i += step) {
    const int64_t token = args.first + i;
    const T* column = reinterpret_cast<const T*>(args.units) +
                      (token / kPage * args.kv_heads + head) * args.count * kPage + token % kPage;
    float sum = 0;
    for (int c = 0; c < args.count; ++c) {
      sum = Add(sum, Multiply(sums[dim + c], ToFloat(column[c * kPage])));
    }
    args.scores[head * args.score_stride + i] = sum;
  }
}

// One block for all heads: the mean needs them all, and a head's scores are few.
__global__ void CountAboveKernel(CountAboveArgs args) {
  constexpr int kWarps = kCountThreads / 32;
  SMARTGEN_SHARED(float, greatest, kWarps);
  SMARTGEN_SHARED(unsigned, above, 1);
  const int lane = static_cast<int>(threadIdx.x % 32);
  int64_t total = 0;
  for (int head = 0; head < args.kv_heads; ++head) {
    const float* scores = args.scores + head * args.stride;
    float best = FromBits(0xff800000u);  // -infinity; NaN is never greater
    for (int64_t i = threadIdx.x; i < args.n; i += kCountThreads) {
      best = scores[i] > best ? scores[i] : best;
    }
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      const float other = __shfl_xor_sync(kAllLanes, best, lanes);
      best = other > best ? other : best;
    }
    if (lane == 0) greatest[threadIdx.x / 32] = best;
    if (threadIdx.x == 0) above[0] = 0;
    __syncthreads();
    for (int w = 0; w < kWarps; ++w) best = greatest[w] > best ? greatest[w] : best;
    const float threshold = Add(best, -args.margin);
    unsigned count = 0;
    for (int64_t i = threadIdx.x; i < args.n; i += kCountThreads) {
      count += scores[i] > threshold ? 1 : 0;
    }
    for (int delta = 16; delta > 0; delta /= 2) {
      count += __shfl_down_sync(kAllLanes, count, delta);
    }
    if (lane == 0) atomicAdd(&above[0], count);
    __syncthreads();
    total += above[0];
    __syncthreads();  // the next head writes greatest and above
  }
  if (threadIdx.x != 0) return;
  int64_t chosen = (total + args.kv_heads - 1) / args.kv_heads;
  chosen = chosen > 1 ? chosen : 1;
  args.chosen[0] = chosen < args.most ? chosen : args.most;
}

template <typename T>
LaunchError ScoresOf(const InfiniGenScoresArgs& args, Stream stream) {
  const unsigned blocks = Ceil(args.tokens, kThreads);
  const Grid grid{blocks < 256 ? blocks : 256, static_cast<unsigned>(args.kv_heads)};
  return Launch(InfiniGenScoresKernel<T>, grid, kThreads, int64_t{4} * (args.head_dim + args.count),
                stream, args);
}

LaunchError CheckChannels(int count, int head_dim) {
  return count >= 1 && count <= head_dim ? nullptr : "want 1 to head dim chosen channels";
}

}  // namespace

LaunchError InfiniGenEncode(const InfiniGenEncodeArgs& args, Stream stream) {
  if (args.begin < 0 || args.begin >= args.end) return nullptr;
  if (const LaunchError error = CheckLayer(args.layer)) return error;
  if (const LaunchError error = CheckChannels(args.count, args.layer.head_dim)) return error;
  const int64_t pages = (args.end - 1) / kPage - args.begin / kPage + 1;
  const Grid grid{static_cast<unsigned>(pages), static_cast<unsigned>(args.layer.kv_heads)};
  switch (args.layer.element) {
    case Element::kF32:
      return Launch(InfiniGenEncodeKernel<float>, grid, kThreads, 0, stream, args);
    case Element::kBF16:
      return Launch(InfiniGenEncodeKernel<Bf16>, grid, kThreads, 0, stream, args);
    case Element::kF16:
      return Launch(InfiniGenEncodeKernel<F16>, grid, kThreads, 0, stream, args);
  }
  return "unknown element type";
}

LaunchError InfiniGenScores(const InfiniGenScoresArgs& args, Stream stream) {
  if (args.tokens <= 0) return nullptr;
  if (args.head_dim < 1 || args.head_dim > kMaxHeadDim) return "want a head dim of 1 to 1024";
  if (args.kv_heads < 1 || args.kv_heads > kMaxHeads) return "want 1 to 1024 KV heads";
  if (args.group < 1) return "want at least one query head a KV head";
  if (const LaunchError error = CheckChannels(args.count, args.head_dim)) return error;
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

LaunchError CountAbove(const CountAboveArgs& args, Stream stream) {
  if (args.kv_heads < 1 || args.kv_heads > kMaxHeads) return "want 1 to 1024 KV heads";
  if (args.n < 0 || args.most < 0) return "want sizes that are not negative";
  return Launch(CountAboveKernel, {}, kCountThreads, 0, stream, args);
}

}  // namespace smartgen::executor::cuda
