// KV rows between pages and staging buffers, either way. A warp takes a row.
#include "common/executor/cuda/launch.h"

namespace smartgen::executor::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;

template <typename Word>
__device__ __forceinline__ void CopyWords(std::byte* to, const std::byte* from, int64_t bytes) {
  const auto words = static_cast<int64_t>(bytes / sizeof(Word));
  for (int64_t i = threadIdx.x % 32; i < words; i += 32) {
    reinterpret_cast<Word*>(to)[i] = reinterpret_cast<const Word*>(from)[i];
  }
}

// By the widest words that addresses and size allow; rows are whole elements of 2 or 4 bytes.
__device__ __forceinline__ void CopyRow(std::byte* page_row, std::byte* staged, int64_t bytes,
                                        Direction direction) {
  std::byte* to = direction == Direction::kGather ? staged : page_row;
  const std::byte* from = direction == Direction::kGather ? page_row : staged;
  const uint64_t all = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) |
                       static_cast<uint64_t>(bytes);
  if (all % 16 == 0) return CopyWords<Bytes16>(to, from, bytes);
  if (all % 4 == 0) return CopyWords<uint32_t>(to, from, bytes);
  CopyWords<uint16_t>(to, from, bytes);
}

__global__ void CopyRangesKernel(CopyRangesArgs args) {
  const PagedLayer& layer = args.layer;
  const int64_t bytes = layer.head_dim * ElementBytes(layer.element);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int r = static_cast<int>(blockIdx.y); r < args.count; r += static_cast<int>(gridDim.y)) {
    const StagedRange range = args.ranges[r];
    const int heads = range.head < 0 ? layer.kv_heads : 1;
    const int64_t rows = static_cast<int64_t>(range.end - range.begin) * heads * 2;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; i < rows;
         i += step) {
      const int64_t token = range.begin + i / (2 * heads);
      const int64_t page = token / kPage;
      const int h = static_cast<int>(i % heads);
      const int value = static_cast<int>(i / heads % 2);
      // The range's tokens of this page, which lie together in the staging buffer.
      const int64_t from = range.begin > page * kPage ? range.begin : page * kPage;
      const int64_t to = range.end < (page + 1) * kPage ? range.end : (page + 1) * kPage;
      const int64_t strip = static_cast<int64_t>(value) * heads + h;
      std::byte* staged =
          args.staging + range.offset +
          ((from - range.begin) * 2 * heads + strip * (to - from) + token - from) * bytes;
      std::byte* row = PageOf(layer, page) + value * (layer.page_bytes / 2) +
                       RowOffset(layer, range.head < 0 ? h : range.head, token % kPage);
      CopyRow(row, staged, bytes, args.direction);
    }
  }
}

__global__ void CopyEntriesKernel(CopyEntriesArgs args) {
  const PagedLayer& layer = args.layer;
  const int head = static_cast<int>(blockIdx.y);
  const int64_t bytes = layer.head_dim * ElementBytes(layer.element);
  const int64_t from = args.from == nullptr ? 0 : args.from[head];
  const int64_t to = args.to == nullptr ? args.k : args.to[head];
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t i = from * 2 + static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
       i < to * 2; i += step) {
    const int64_t entry = head * args.k + i / 2;
    const int32_t token = args.index[entry];
    std::byte* staged = (i % 2 == 0 ? args.keys : args.values) + entry * bytes;
    std::byte* row = PageOf(layer, token / kPage) + i % 2 * (layer.page_bytes / 2) +
                     RowOffset(layer, head, token % kPage);
    CopyRow(row, staged, bytes, args.direction);
  }
}

unsigned Blocks(int64_t rows) {
  const unsigned blocks = Ceil(rows, kWarps);
  return blocks < 1024 ? blocks : 1024;
}

}  // namespace

LaunchError CopyRanges(const CopyRangesArgs& args, Stream stream) {
  if (args.count <= 0 || args.most_tokens <= 0) return nullptr;
  if (const LaunchError error = CheckLayer(args.layer)) return error;
  const Grid grid{Blocks(args.most_tokens * args.layer.kv_heads * 2),
                  static_cast<unsigned>(args.count < 65535 ? args.count : 65535)};
  return Launch(CopyRangesKernel, grid, kThreads, 0, stream, args);
}

LaunchError CopyEntries(const CopyEntriesArgs& args, Stream stream) {
  if (args.k <= 0) return nullptr;
  if (const LaunchError error = CheckLayer(args.layer)) return error;
  const Grid grid{Blocks(args.k * 2), static_cast<unsigned>(args.layer.kv_heads)};
  return Launch(CopyEntriesKernel, grid, kThreads, 0, stream, args);
}

}  // namespace smartgen::executor::cuda
