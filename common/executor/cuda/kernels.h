// SmartGen's own CUDA kernels: what selection, transfer and merging need and no library has. Each
// is one .cu file that holds kernel and launcher, for nvcc and for the emulator (emulate.h) alike.
//
// A launcher checks what it is given, picks the grid, and queues the kernel on a stream; it does
// not wait. It returns null, or what went wrong (valid until the calling thread's next launch), in
// which case nothing was queued. Nothing to do is no error. Thread-safe.
//
// All pointers are to memory that the device can read or write, are aligned to their type (bytes of
// metadata and KV: to 4 where not said otherwise) and must stay until the stream has passed.
// Results equal those of the CPU (named at each) bit for bit unless said otherwise, on any device.
#pragma once

#include <cstddef>
#include <cstdint>

namespace smartgen::executor::cuda {

using Stream = void*;  // a cudaStream_t; the emulator runs at once
using LaunchError = const char*;

// The numbers of kv::DType.
enum class Element : uint8_t { kF32 = 0, kBF16 = 1, kF16 = 2 };
inline constexpr int64_t ElementBytes(Element element) { return element == Element::kF32 ? 4 : 2; }

inline constexpr int kPage = 16;  // tokens; kv::kPageTokens
inline constexpr int kMaxHeadDim = 1024;
inline constexpr int kMaxHeads = 1024;
inline constexpr int64_t kMaxRows = INT32_MAX;

// A layer of a sequence: page p of it is at base + pages[p] * page_bytes and holds, for tokens
// [16 p, 16 p + 16), K[head][token][dim], then V[head][token][dim] (kv::KvLayout).
struct PagedLayer {
  std::byte* base = nullptr;
  const int32_t* pages = nullptr;
  int64_t page_bytes = 0;
  int kv_heads = 0;
  int head_dim = 0;
  Element element = Element::kBF16;
};

// The device's copy of kv::ResidencyMask, laid out as it is. `heads`: 4-byte aligned, an even
// number of them; bit t of a head's is token t of the page.
struct Mask {
  int8_t* cells = nullptr;    // [page][layer][16]
  uint16_t* heads = nullptr;  // [page][heads of all layers]
  int layers = 0;
  int heads_a_page = 0;
  // The layer in question.
  int layer = 0;
  int first_head = 0;
  int kv_heads = 0;
};

// --- Metadata and scores (common/selector) ---

// Bounds of the keys of tokens [begin, end) into the units of the pages that they touch:
// units[page][kv head][min, max][dim], unit 0 that of page 0. A page whose first token is not among
// them is widened, not made anew (MetadataStore::Put of KvSelector::Encode). Keys are numbers.
struct QuestBoundsArgs {
  PagedLayer layer;
  int64_t begin = 0;
  int64_t end = 0;
  std::byte* units = nullptr;
};
LaunchError QuestBounds(const QuestBoundsArgs& args, Stream stream);

// scores[h * score_stride + p] = the group's sum of max(q * min, q * max) over channels, for pages
// [first_page, first_page + pages) (selector::QuestScores).
struct QuestScoresArgs {
  const std::byte* units = nullptr;
  int64_t first_page = 0;
  int64_t pages = 0;
  int kv_heads = 0;
  int group = 0;  // query heads a KV head
  int head_dim = 0;
  Element element = Element::kBF16;
  const float* queries = nullptr;  // [kv_heads * group][head_dim]
  float* scores = nullptr;
  int64_t score_stride = 0;
};
LaunchError QuestScores(const QuestScoresArgs& args, Stream stream);

// Tokens of chosen pages: index[h] = tokens [first, cut_end), those of the row's pages (pages[h *
// page_stride + i], each whole), tokens [recent, length). Ascending where the pages are.
struct QuestIndexArgs {
  const int32_t* pages = nullptr;
  int64_t page_stride = 0;
  int64_t chosen = 0;  // pages a head
  int kv_heads = 0;
  int64_t first = 0;
  int64_t cut_end = 0;
  int64_t recent = 0;
  int64_t length = 0;
  int32_t* index = nullptr;  // [kv_heads][k], k = (cut_end - first) + 16 * chosen + length - recent
};
LaunchError QuestIndex(const QuestIndexArgs& args, Stream stream);

// Hash codes of the keys of tokens [begin, end): bit m of a code is whether the key's product with
// column m of the head's weights is positive. units[page][kv head][token][bits / 8].
struct HataEncodeArgs {
  PagedLayer layer;
  int64_t begin = 0;
  int64_t end = 0;
  const float* weights = nullptr;  // [head_dim][bits], the head's at + h * weights_stride floats
  int64_t weights_stride = 0;      // 0: one matrix for all heads
  int bits = 0;                    // a multiple of 64 up to 512
  std::byte* units = nullptr;
};
LaunchError HataEncode(const HataEncodeArgs& args, Stream stream);

// The same of queries [kv_heads * group][head_dim]: codes[query head][bits / 8].
struct HataQueriesArgs {
  const float* queries = nullptr;
  int kv_heads = 0;
  int group = 0;
  int head_dim = 0;
  const float* weights = nullptr;
  int64_t weights_stride = 0;
  int bits = 0;
  std::byte* codes = nullptr;
};
LaunchError HataQueries(const HataQueriesArgs& args, Stream stream);

// distances[h * distance_stride + i] = bits in which the code of token first + i and the group's
// query codes differ, summed over the group (selector::HammingDistances). Codes 8-byte aligned.
struct HataScoresArgs {
  const std::byte* units = nullptr;
  int64_t first = 0;
  int64_t tokens = 0;
  int kv_heads = 0;
  int group = 0;  // group * bits < 65536
  int bits = 0;
  const std::byte* codes = nullptr;
  uint16_t* distances = nullptr;
  int64_t distance_stride = 0;
};
LaunchError HataScores(const HataScoresArgs& args, Stream stream);

// InfiniGen's partial keys of tokens [begin, end): units[page][kv head][chosen channel][token], the
// chosen channels of (key * skew), or of the key where skew is null.
struct InfiniGenEncodeArgs {
  PagedLayer layer;
  int64_t begin = 0;
  int64_t end = 0;
  const float* skew = nullptr;         // [kv head][head_dim][head_dim]
  const uint16_t* channels = nullptr;  // [kv head][count], each below head_dim
  int count = 0;
  std::byte* units = nullptr;
};
LaunchError InfiniGenEncode(const InfiniGenEncodeArgs& args, Stream stream);

// scores[h * score_stride + i] = partial key of token first + i times the partial sum of the
// group's queries (selector::PartialScores).
struct InfiniGenScoresArgs {
  const std::byte* units = nullptr;
  int64_t first = 0;
  int64_t tokens = 0;
  int kv_heads = 0;
  int group = 0;
  int head_dim = 0;
  Element element = Element::kBF16;
  const float* queries = nullptr;  // [kv_heads * group][head_dim]
  const float* skew = nullptr;
  const uint16_t* channels = nullptr;
  int count = 0;
  float* scores = nullptr;
  int64_t score_stride = 0;
};
LaunchError InfiniGenScores(const InfiniGenScoresArgs& args, Stream stream);

// chosen[0] = min(max(1, mean over heads, rounded up, of how many of the head's n scores are above
// its greatest - margin), most): how many tokens a head InfiniGen keeps.
struct CountAboveArgs {
  const float* scores = nullptr;  // head h's at + h * stride
  int64_t stride = 0;
  int64_t n = 0;
  int kv_heads = 0;
  float margin = 0;
  int64_t most = 0;
  int64_t* chosen = nullptr;
};
LaunchError CountAbove(const CountAboveArgs& args, Stream stream);

// --- Selection ---

// For each of `rows` rows: the positions of the k best of n, each plus `base`, ascending, then
// tail_count numbers from tail_begin on. Ties go to the lower position; NaN is worse than all
// (selector::LargestK, selector::SmallestK).
struct TopKArgs {
  // One of them, row r's at + r * stride: the greatest scores or the smallest distances.
  const float* scores = nullptr;
  const uint16_t* distances = nullptr;
  int64_t stride = 0;
  int64_t n = 0;
  int rows = 0;
  int64_t k = 0;                      // at most n
  const int64_t* device_k = nullptr;  // not null: k = min(k, device_k[0]), known on the device only
  int32_t base = 0;
  int32_t tail_begin = 0;
  int64_t tail_count = 0;
  int32_t* out = nullptr;  // row r's at + r * out_stride
  int64_t out_stride = 0;
};
LaunchError TopK(const TopKArgs& args, Stream stream);

// Each head's row of a selection parted by residency: local entries first, then remote ones, both
// in the order given (selector::SplitByMask).
struct SplitByMaskArgs {
  const int32_t* index =
      nullptr;  // [kv_heads][k]; null: tokens first, first + 1, ... for each head
  int64_t k = 0;
  int32_t first = 0;
  const int32_t* pages = nullptr;  // of the sequence
  Mask mask;
  int32_t* out = nullptr;          // [kv_heads][k]
  int32_t* local_count = nullptr;  // [kv_heads]
  int32_t* nowhere = nullptr;      // [kv_heads]: the row's last token that nobody has, -1 without
};
LaunchError SplitByMask(const SplitByMaskArgs& args, Stream stream);

// Tokens of each row in ascending order, each once. In place.
struct SortTokensArgs {
  int32_t* tokens = nullptr;  // row r's at + r * stride, counts[r] of them, each in [0, capacity)
  int64_t stride = 0;
  int32_t* counts = nullptr;  // then: how many different ones
  int rows = 0;
  int64_t capacity = 0;
  uint32_t* scratch = nullptr;  // SortScratchWords(capacity) a row
};
inline constexpr int64_t SortScratchWords(int64_t capacity) { return (capacity + 31) / 32; }
LaunchError SortTokens(const SortTokensArgs& args, Stream stream);

struct Range {
  int32_t begin = 0;
  int32_t end = 0;
};
// Ascending tokens of each row as ranges, adjacent ones merged (Split::RemoteRanges).
struct MergeRangesArgs {
  const int32_t* tokens = nullptr;  // row r's are [begins[r], ends[r]) of + r * stride
  int64_t stride = 0;
  const int32_t* begins = nullptr;  // null: 0
  const int32_t* ends = nullptr;    // null: limit
  int64_t limit = 0;
  int rows = 0;
  Range* ranges = nullptr;  // row r's at + r * range_stride; room for all its tokens
  int64_t range_stride = 0;
  int32_t* range_counts = nullptr;  // [rows]
};
LaunchError MergeRanges(const MergeRangesArgs& args, Stream stream);

// --- Bytes and residency ---

enum class Direction : uint8_t { kGather, kScatter };  // pages to staging; staging to pages

// A range on its way in the wire's order (KvSequence::Segments): page by page K of the heads, then
// V of the heads; head < 0: all.
struct StagedRange {
  int32_t head = -1;
  int32_t begin = 0;
  int32_t end = 0;
  int64_t offset = 0;  // in the staging buffer, bytes
};
struct CopyRangesArgs {
  PagedLayer layer;
  const StagedRange* ranges = nullptr;  // on the device
  int count = 0;
  int64_t most_tokens = 0;  // of a range; sizes the grid
  std::byte* staging = nullptr;
  Direction direction = Direction::kGather;
};
LaunchError CopyRanges(const CopyRangesArgs& args, Stream stream);

// Entries one by one: head h's i-th token is row (h * k + i) of keys and of values, head_dim
// elements each. Entries outside [from[h], to[h]) of the row are left alone.
struct CopyEntriesArgs {
  PagedLayer layer;
  const int32_t* index = nullptr;  // [kv_heads][k]
  int64_t k = 0;
  const int32_t* from = nullptr;  // null: 0
  const int32_t* to = nullptr;    // null: k
  std::byte* keys = nullptr;
  std::byte* values = nullptr;
  Direction direction = Direction::kGather;
};
LaunchError CopyEntries(const CopyEntriesArgs& args, Stream stream);

// What becomes of tokens [begin, end) of a head (< 0: all heads).
struct MarkRange {
  int32_t head = -1;
  int32_t begin = 0;
  int32_t end = 0;
};
enum class MarkAs : uint8_t { kLocal, kRemote };
// kv::ResidencyMask's MarkLocal, MarkHeadLocal and (all heads only) MarkRemote. Local is a release:
// whoever sees it sees the bytes that earlier work on the stream wrote, on the device and on the
// host. Two ranges of one launch do not share a head's token.
struct MarkRangesArgs {
  Mask mask;
  const int32_t* pages = nullptr;
  const MarkRange* ranges = nullptr;  // on the device
  int count = 0;
  int64_t most_tokens = 0;
  MarkAs as = MarkAs::kLocal;
};
LaunchError MarkRanges(const MarkRangesArgs& args, Stream stream);

// --- Attention ---

// Row by row selector::MergePartial: (values, lse) becomes the merge of itself and the others.
// Within 1e-5 of the CPU (f32) or the element's rounding. lse is natural.
struct MergePartialsArgs {
  void* values = nullptr;  // [rows][dim]
  float* lse = nullptr;    // [rows]
  const void* other_values = nullptr;
  const float* other_lse = nullptr;
  Element element = Element::kF32;  // of both values
  int64_t rows = 0;
  int dim = 0;
};
LaunchError MergePartials(const MergePartialsArgs& args, Stream stream);

}  // namespace smartgen::executor::cuda
