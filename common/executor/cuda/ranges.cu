// Token indices: parted by residency, sorted, and merged into ranges.
#include "common/executor/cuda/launch.h"

namespace smartgen::executor::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ int64_t CellOf(const Mask& mask, int32_t page, int64_t row) {
  return (static_cast<int64_t>(page) * mask.layers + mask.layer) * kPage + row;
}
__device__ __forceinline__ int64_t HeadOf(const Mask& mask, int32_t page, int head) {
  return static_cast<int64_t>(page) * mask.heads_a_page + mask.first_head + head;
}

// A block takes a head. Each entry's residency is read once, since more may arrive meanwhile:
// remote entries go in from the end and are turned round afterwards.
__global__ void SplitByMaskKernel(SplitByMaskArgs args) {
  SMARTGEN_SHARED(int, last_nowhere, 1);  // place in the row
  const int head = static_cast<int>(blockIdx.x);
  int32_t* out = args.out + head * args.k;
  const auto token_at = [&](int64_t i) {
    return args.index == nullptr ? args.first + static_cast<int32_t>(i)
                                 : args.index[head * args.k + i];
  };
  if (threadIdx.x == 0) last_nowhere[0] = -1;
  __syncthreads();
  int64_t locals = 0;
  for (int64_t begin = 0; begin < args.k; begin += kThreads) {
    const int64_t i = begin + threadIdx.x;
    const int32_t token = i < args.k ? token_at(i) : 0;
    bool local = false;
    if (i < args.k) {
      const int32_t page = args.pages[token / kPage];
      const int row = token % kPage;
      const int8_t cell = LoadAcquire(&args.mask.cells[CellOf(args.mask, page, row)]);
      const uint16_t bits = LoadAcquire(&args.mask.heads[HeadOf(args.mask, page, head)]);
      local = cell == 1 || ((bits >> row) & 1) != 0;
      if (!local && cell == 0) atomicMax(&last_nowhere[0], static_cast<int>(i));
    }
    int all_local;
    const int rank = BlockRank<kThreads>(local, &all_local);
    if (local) {
      out[locals + rank] = token;
    } else if (i < args.k) {
      // Entries before it less local ones before it.
      out[args.k - 1 - (i - locals - rank)] = token;
    }
    locals += all_local;
  }
  __syncthreads();
  const int64_t remote = args.k - locals;
  for (int64_t i = threadIdx.x; i < remote / 2; i += kThreads) {
    const int32_t token = out[locals + i];
    out[locals + i] = out[args.k - 1 - i];
    out[args.k - 1 - i] = token;
  }
  if (threadIdx.x != 0) return;
  args.local_count[head] = static_cast<int32_t>(locals);
  args.nowhere[head] = last_nowhere[0] < 0 ? -1 : token_at(last_nowhere[0]);
}

// A block takes a row, by way of a bit a token.
__global__ void SortTokensKernel(SortTokensArgs args) {
  const int64_t words = SortScratchWords(args.capacity);
  int32_t* tokens = args.tokens + blockIdx.x * args.stride;
  uint32_t* bits = args.scratch + blockIdx.x * words;
  const int32_t count = args.counts[blockIdx.x];
  for (int64_t w = threadIdx.x; w < words; w += kThreads) bits[w] = 0;
  __syncthreads();
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kThreads) {
    atomicOr(&bits[tokens[i] / 32], 1u << (tokens[i] % 32));
  }
  __syncthreads();
  int64_t written = 0;
  for (int64_t begin = 0; begin < words; begin += kThreads) {
    const int64_t w = begin + threadIdx.x;
    const uint32_t word = w < words ? bits[w] : 0;
    int total;
    int64_t at = written + BlockInclusiveSum<kThreads>(PopCount(word), &total) - PopCount(word);
    for (uint32_t left = word; left != 0; left &= left - 1) {
      // The lowest bit that is left: as many are below it.
      tokens[at++] = static_cast<int32_t>(w * 32) + PopCount((left & (0u - left)) - 1u);
    }
    written += total;
  }
  if (threadIdx.x == 0) args.counts[blockIdx.x] = static_cast<int32_t>(written);
}

// A block takes a row. A token that does not follow its predecessor begins a range.
__global__ void MergeRangesKernel(MergeRangesArgs args) {
  const int row = static_cast<int>(blockIdx.x);
  const int32_t* tokens = args.tokens + row * args.stride;
  Range* ranges = args.ranges + row * args.range_stride;
  const int64_t first = args.begins == nullptr ? 0 : args.begins[row];
  const int64_t end = args.ends == nullptr ? args.limit : args.ends[row];
  int count = 0;
  for (int64_t begin = first; begin < end; begin += kThreads) {
    const int64_t i = begin + threadIdx.x;
    const bool here = i < end;
    const bool starts = here && (i == first || tokens[i - 1] + 1 != tokens[i]);
    int all_start;
    const int before = BlockRank<kThreads>(starts, &all_start);
    if (starts) ranges[count + before].begin = tokens[i];
    if (here && (i + 1 == end || tokens[i] + 1 != tokens[i + 1])) {
      ranges[count + before - (starts ? 0 : 1)].end = tokens[i] + 1;
    }
    count += all_start;
  }
  if (threadIdx.x == 0) args.range_counts[row] = count;
}

// A thread takes a token of a range.
__global__ void MarkRangesKernel(MarkRangesArgs args) {
  const Mask& mask = args.mask;
  for (int r = static_cast<int>(blockIdx.y); r < args.count; r += static_cast<int>(gridDim.y)) {
    const MarkRange range = args.ranges[r];
    const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
    for (int64_t token = range.begin + static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
         token < range.end; token += step) {
      const int32_t page = args.pages[token / kPage];
      const int row = static_cast<int>(token % kPage);
      int8_t* cell = &mask.cells[CellOf(mask, page, row)];
      if (args.as == MarkAs::kRemote) {
        // Only from nothing, in the word that holds the cell; it may become local meanwhile.
        const int64_t at = cell - mask.cells;
        auto* word = reinterpret_cast<uint32_t*>(mask.cells) + at / 4;
        const unsigned shift = static_cast<unsigned>(at % 4) * 8;
        uint32_t seen = atomicOr(word, 0u);
        while (((seen >> shift) & 0xff) == 0) {
          const uint32_t old = atomicCAS(word, seen, seen | (2u << shift));
          if (old == seen) break;
          seen = old;
        }
        continue;
      }
      FenceSystem();
      bool whole = true;
      if (range.head >= 0) {
        auto* words = reinterpret_cast<uint32_t*>(mask.heads);
        const int64_t own = HeadOf(mask, page, range.head);
        atomicOr(&words[own / 2], 1u << (own % 2 * 16 + row));
        // Of two threads that bring the last two heads at least one sees both.
        FenceSystem();
        for (int h = 0; h < mask.kv_heads && whole; ++h) {
          const int64_t at = HeadOf(mask, page, h);
          whole = ((atomicOr(&words[at / 2], 0u) >> (at % 2 * 16 + row)) & 1) != 0;
        }
      }
      if (whole) StoreRelease(cell, 1);
    }
  }
}

}  // namespace

LaunchError SplitByMask(const SplitByMaskArgs& args, Stream stream) {
  if (args.k < 0 || args.k > INT32_MAX) return "want 0 to 2^31 - 1 entries a head";
  if (args.mask.kv_heads < 1 || args.mask.kv_heads > kMaxHeads) return "want 1 to 1024 KV heads";
  return Launch(SplitByMaskKernel, {static_cast<unsigned>(args.mask.kv_heads)}, kThreads, 0, stream,
                args);
}

LaunchError SortTokens(const SortTokensArgs& args, Stream stream) {
  if (args.rows <= 0) return nullptr;
  if (args.capacity < 0 || args.capacity > INT32_MAX) return "want a capacity below 2^31 tokens";
  return Launch(SortTokensKernel, {static_cast<unsigned>(args.rows)}, kThreads, 0, stream, args);
}

LaunchError MergeRanges(const MergeRangesArgs& args, Stream stream) {
  if (args.rows <= 0) return nullptr;
  return Launch(MergeRangesKernel, {static_cast<unsigned>(args.rows)}, kThreads, 0, stream, args);
}

LaunchError MarkRanges(const MarkRangesArgs& args, Stream stream) {
  if (args.count <= 0 || args.most_tokens <= 0) return nullptr;
  const Grid grid{Ceil(args.most_tokens, kThreads),
                  static_cast<unsigned>(args.count < 65535 ? args.count : 65535)};
  return Launch(MarkRangesKernel, grid, kThreads, 0, stream, args);
}

}  // namespace smartgen::executor::cuda
