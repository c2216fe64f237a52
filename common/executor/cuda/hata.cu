// HATA: hash codes of keys and queries, and Hamming distances.
#include "common/executor/cuda/launch.h"

namespace smartgen::executor::cuda {
namespace {

constexpr int kRowsATurn = 4;  // share each weight that is read
constexpr int kScoreThreads = 256;

// Codes of up to kRowsATurn rows, one bit a thread. `rows`: [kRowsATurn][dim] in shared memory.
// Sums go through ascending channels (selector::Project). Calls out(row) for where a row's code
// goes.
template <typename Rows, typename Out>
__device__ __forceinline__ void HashTurn(const Rows& rows, int count, int dim, const float* weights,
                                         int bits, const Out& out) {
  const int bit = static_cast<int>(threadIdx.x);
  float sums[kRowsATurn] = {};
  for (int c = 0; c < dim; ++c) {
    const float w = weights[static_cast<int64_t>(c) * bits + bit];
    for (int r = 0; r < kRowsATurn; ++r) {
      if (r < count) sums[r] = Add(sums[r], Multiply(rows[r * dim + c], w));
    }
  }
  for (int r = 0; r < count; ++r) {
    const uint32_t word = __ballot_sync(kAllLanes, sums[r] > 0);
    if (bit % 32 == 0) reinterpret_cast<uint32_t*>(out(r))[bit / 32] = word;
  }
}

// A block takes a page of one head; a thread takes a bit.
template <typename T>
__global__ void HataEncodeKernel(HataEncodeArgs args) {
  SMARTGEN_DYNAMIC_SHARED(float, rows);
  const PagedLayer& layer = args.layer;
  const int dim = layer.head_dim;
  const int64_t page = args.begin / kPage + blockIdx.x;
  const int head = static_cast<int>(blockIdx.y);
  const int64_t page_begin = page * kPage;
  const int from = args.begin > page_begin ? static_cast<int>(args.begin - page_begin) : 0;
  const int to = args.end < page_begin + kPage ? static_cast<int>(args.end - page_begin) : kPage;
  const T* keys = reinterpret_cast<const T*>(PageOf(layer, page) + RowOffset(layer, head, 0));
  const float* weights = args.weights + head * args.weights_stride;
  std::byte* unit = args.units + (page * layer.kv_heads + head) * kPage * (args.bits / 8);
  for (int t = from; t < to; t += kRowsATurn) {
    const int count = to - t < kRowsATurn ? to - t : kRowsATurn;
    for (int i = static_cast<int>(threadIdx.x); i < count * dim;
         i += static_cast<int>(blockDim.x)) {
      rows[i] = ToFloat(keys[t * dim + i]);
    }
    __syncthreads();
    HashTurn(rows, count, dim, weights, args.bits,
             [&](int r) { return unit + (t + r) * (args.bits / 8); });
    __syncthreads();  // the next turn writes rows
  }
}

// A block takes a KV head's group, kRowsATurn queries at a time.
__global__ void HataQueriesKernel(HataQueriesArgs args) {
  SMARTGEN_DYNAMIC_SHARED(float, rows);
  const int dim = args.head_dim;
  const int head = static_cast<int>(blockIdx.x);
  const int64_t first = static_cast<int64_t>(head) * args.group;
  const float* weights = args.weights + head * args.weights_stride;
  for (int g = 0; g < args.group; g += kRowsATurn) {
    const int count = args.group - g < kRowsATurn ? args.group - g : kRowsATurn;
    for (int i = static_cast<int>(threadIdx.x); i < count * dim;
         i += static_cast<int>(blockDim.x)) {
      rows[i] = args.queries[(first + g) * dim + i];
    }
    __syncthreads();
    HashTurn(rows, count, dim, weights, args.bits,
             [&](int r) { return args.codes + (first + g + r) * (args.bits / 8); });
    __syncthreads();
  }
}

// A thread takes a token.
__global__ void HataScoresKernel(HataScoresArgs args) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kScoreThreads + threadIdx.x;
  if (i >= args.tokens) return;
  const int head = static_cast<int>(blockIdx.y);
  const int words = args.bits / 64;
  const int64_t token = args.first + i;
  const auto* code = reinterpret_cast<const uint64_t*>(args.units) +
                     ((token / kPage * args.kv_heads + head) * kPage + token % kPage) * words;
  const auto* queries = reinterpret_cast<const uint64_t*>(args.codes) +
                        static_cast<int64_t>(head) * args.group * words;
  int sum = 0;
  for (int w = 0; w < words; ++w) {
    const uint64_t word = code[w];
    for (int g = 0; g < args.group; ++g) sum += PopCount(word ^ queries[g * words + w]);
  }
  args.distances[head * args.distance_stride + i] = static_cast<uint16_t>(sum);
}

LaunchError CheckBits(int bits) {
  return bits >= 64 && bits <= 512 && bits % 64 == 0 ? nullptr
                                                     : "want a multiple of 64 hash bits up to 512";
}

}  // namespace

LaunchError HataEncode(const HataEncodeArgs& args, Stream stream) {
  if (args.begin < 0 || args.begin >= args.end) return nullptr;
  if (const LaunchError error = CheckLayer(args.layer)) return error;
  if (const LaunchError error = CheckBits(args.bits)) return error;
  const int64_t pages = (args.end - 1) / kPage - args.begin / kPage + 1;
  const Grid grid{static_cast<unsigned>(pages), static_cast<unsigned>(args.layer.kv_heads)};
  const int64_t shared = int64_t{4} * kRowsATurn * args.layer.head_dim;
  switch (args.layer.element) {
    case Element::kF32:
      return Launch(HataEncodeKernel<float>, grid, args.bits, shared, stream, args);
    case Element::kBF16:
      return Launch(HataEncodeKernel<Bf16>, grid, args.bits, shared, stream, args);
    case Element::kF16:
      return Launch(HataEncodeKernel<F16>, grid, args.bits, shared, stream, args);
  }
  return "unknown element type";
}

LaunchError HataQueries(const HataQueriesArgs& args, Stream stream) {
  if (args.kv_heads <= 0 || args.group <= 0) return nullptr;
  if (args.head_dim < 1 || args.head_dim > kMaxHeadDim) return "want a head dim of 1 to 1024";
  if (const LaunchError error = CheckBits(args.bits)) return error;
  return Launch(HataQueriesKernel, {static_cast<unsigned>(args.kv_heads)}, args.bits,
                int64_t{4} * kRowsATurn * args.head_dim, stream, args);
}

LaunchError HataScores(const HataScoresArgs& args, Stream stream) {
  if (args.tokens <= 0) return nullptr;
  if (args.kv_heads < 1 || args.kv_heads > kMaxHeads) return "want 1 to 1024 KV heads";
  if (const LaunchError error = CheckBits(args.bits)) return error;
  if (args.group < 1 || static_cast<int64_t>(args.group) * args.bits > 65535) {
    return "want distances of a group below 65536";
  }
  const Grid grid{Ceil(args.tokens, kScoreThreads), static_cast<unsigned>(args.kv_heads)};
  return Launch(HataScoresKernel, grid, kScoreThreads, 0, stream, args);
}

}  // namespace smartgen::executor::cuda
