// The k best of each row, deterministic: a radix select of the k-th best key, then a compaction in
// order of position.
#include "common/executor/cuda/launch.h"

namespace smartgen::executor::cuda {
namespace {

constexpr int kThreads = 256;  // one a bin
constexpr int kBins = 256;
static_assert(kThreads == kBins);

// Better entries have greater keys.
struct ScoreKeys {
  static constexpr int kBits = 32;
  const float* row;
  __device__ __forceinline__ explicit ScoreKeys(const TopKArgs& args)
      : row(args.scores + blockIdx.x * args.stride) {}
  // -0 and +0 have the same key, NaN has 0.
  __device__ __forceinline__ uint32_t operator()(int64_t i) const {
    const float score = row[i];
    if (score != score) return 0;
    const uint32_t bits = ToBits(Add(score, 0.0f));
    return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  }
};
struct DistanceKeys {
  static constexpr int kBits = 16;
  const uint16_t* row;
  __device__ __forceinline__ explicit DistanceKeys(const TopKArgs& args)
      : row(args.distances + blockIdx.x * args.stride) {}
  __device__ __forceinline__ uint32_t operator()(int64_t i) const { return 0xffffu - row[i]; }
};

struct Threshold {
  uint32_t key;   // the k-th best
  int64_t equal;  // how many of that key belong to the k
};

// 0 < k <= n. All threads of the block.
template <typename Keys>
__device__ __forceinline__ Threshold FindThreshold(const Keys& keys, int64_t n, int64_t k) {
  SMARTGEN_SHARED(int, histogram, kBins);
  SMARTGEN_SHARED(int, found, 2);  // digit, and how many entries have a greater one
  uint64_t prefix = 0;
  int64_t left = k;
  for (int shift = Keys::kBits - 8; shift >= 0; shift -= 8) {
    histogram[threadIdx.x] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < n; i += kThreads) {
      const uint64_t key = keys(i);
      if (key >> (shift + 8) == prefix) atomicAdd(&histogram[(key >> shift) % kBins], 1);
    }
    __syncthreads();
    const int bin = kBins - 1 - static_cast<int>(threadIdx.x);
    const int count = histogram[bin];
    int total;
    const int sum = BlockInclusiveSum<kThreads>(count, &total);
    if (sum >= left && sum - count < left) {
      found[0] = bin;
      found[1] = sum - count;
    }
    __syncthreads();
    prefix = prefix * kBins + static_cast<uint64_t>(found[0]);
    left -= found[1];
    __syncthreads();  // the next digit writes found
  }
  return {static_cast<uint32_t>(prefix), left};
}

template <typename Keys>
__global__ void TopKKernel(TopKArgs args) {
  const Keys keys(args);
  int32_t* out = args.out + blockIdx.x * args.out_stride;
  int64_t k = args.k;
  if (args.device_k != nullptr && args.device_k[0] < k) k = args.device_k[0];
  if (k > 0) {  // the same for all threads
    const Threshold threshold = FindThreshold(keys, args.n, k);
    int64_t taken = 0;
    int64_t equal = threshold.equal;
    for (int64_t begin = 0; begin < args.n && taken < k; begin += kThreads) {
      const int64_t i = begin + threadIdx.x;
      const uint32_t key = i < args.n ? keys(i) : 0;
      const bool same = i < args.n && key == threshold.key;
      int all_same;
      const int rank = BlockRank<kThreads>(same, &all_same);
      const bool take = i < args.n && (key > threshold.key || (same && rank < equal));
      int all_taken;
      const int at = BlockRank<kThreads>(take, &all_taken);
      if (take) out[taken + at] = args.base + static_cast<int32_t>(i);
      taken += all_taken;
      equal -= all_same < equal ? all_same : equal;
    }
  } else {
    k = 0;
  }
  for (int64_t i = threadIdx.x; i < args.tail_count; i += kThreads) {
    out[k + i] = args.tail_begin + static_cast<int32_t>(i);
  }
}

}  // namespace

LaunchError TopK(const TopKArgs& args, Stream stream) {
  if (args.rows <= 0) return nullptr;
  if (args.k < 0 || args.k > args.n) return "want k from 0 to n";
  if (args.n > INT32_MAX) return "want n below 2^31";
  if ((args.scores == nullptr) == (args.distances == nullptr) && args.n > 0) {
    return "want either scores or distances";
  }
  const Grid grid{static_cast<unsigned>(args.rows)};
  return args.distances != nullptr
             ? Launch(TopKKernel<DistanceKeys>, grid, kThreads, 0, stream, args)
             : Launch(TopKKernel<ScoreKeys>, grid, kThreads, 0, stream, args);
}

}  // namespace smartgen::executor::cuda
