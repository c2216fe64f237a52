// Attention over paged KV: of a prompt (many queries of one sequence), and of a decode step (a
// query each of many sequences, cut into parts along their entries).
//
// A block has query rows that share a KV head and takes them through tiles of entries. A warp has
// kRows of the rows and 32 entries at a time. For scores a lane has an entry and all of the warp's
// rows; for values it has channels lane, lane + 32, ... and all of the warp's rows. Between the two
// a row's softmax is done by 32 / kRows lanes. So only keys need the block's shared memory, and
// only they need its barriers.
//
// Order of operations. A row's tiles begin at fixed entries and are taken in ascending order;
// entries that it does not see weigh exactly 0 and tiles without any that it sees change nothing.
// So a row's bits depend on what it sees alone, not on the rows beside it.
#include <cmath>

#include "common/executor/cuda/launch.h"
#include "common/executor/cuda/layer_kernels.h"

namespace smartgen::executor::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kTile = 32;               // entries a warp has at a time, one a lane
constexpr int kChunk = 32;              // channels of keys that are in shared memory at a time
constexpr int kKeyStride = kChunk + 1;  // lanes that read a channel of their keys: 32 banks
constexpr float kLog2OfE = 1.44269504f;
constexpr float kLnOf2 = 0.693147181f;

struct alignas(16) Float4 {
  float v[4];
};

// kSlots: channels a lane has, head dims up to 32 * kSlots. kRows: rows a warp has, 4, 8 or 16.
// kKeyWarps: warps that have the same rows, and each a tile of its own of every kKeyWarps.
template <int kSlotsOf, int kRowsOf, int kKeyWarpsOf>
struct Tiling {
  static constexpr int kSlots = kSlotsOf;
  static constexpr int kRows = kRowsOf;
  static constexpr int kKeyWarps = kKeyWarpsOf;
  static constexpr int kBlockRows = kRows * (kWarps / kKeyWarps);
  static constexpr int kBlockKeys = kTile * kKeyWarps;
  static constexpr int kQuads = kRows / 4;
  // An odd number of quads: eight lanes that write theirs at once hit all banks.
  static constexpr int kQuadStride = kQuads | 1;
  static constexpr int kLanesARow = 32 / kRows;
  static constexpr int kSums = kRows * kSlots;  // a lane has
  // Entries whose values a lane loads at once: as far as registers go.
  static constexpr int kAtOnce = kSums > 64 ? 1 : kSums > 32 ? 2 : 4;
  static_assert(kRows % 4 == 0 && 32 % kRows == 0 && kWarps % kKeyWarps == 0);
};

// Where a row's result goes. Of a part (max not null): the values' weighted sum, the greatest score
// and the sum of weights, in powers of two. Else the result itself.
struct Result {
  float* values;
  float* lse;  // may be null
  float* max;
  float* sum;
};

__device__ __forceinline__ float MinusInfinity() { return FromBits(0xff800000u); }
// e^(score - max) where there is a score at all.
__device__ __forceinline__ float Weight(float score, float max) {
  return max == MinusInfinity() ? 0.0f : exp2f(score - max);
}
__device__ __forceinline__ float Inverse(float sum) { return sum == 0 ? 0.0f : 1.0f / sum; }
__device__ __forceinline__ float NaturalLse(float max, float sum) {
  return sum == 0 ? MinusInfinity() : (max + log2f(sum)) * kLnOf2;
}
__device__ __forceinline__ int ClampToTile(int64_t n) {
  return static_cast<int>(n < 0 ? 0 : n < kTile ? n : kTile);
}
__device__ __forceinline__ int Chunks(int dim) { return (dim + kChunk - 1) / kChunk; }

// K of a token in its page, from the layer's base; V is half a page further.
__device__ __forceinline__ int64_t KeyOffset(const PagedLayer& layer, const int32_t* pages,
                                             int head, int64_t token) {
  return pages[token / kPage] * layer.page_bytes + RowOffset(layer, head, token % kPage);
}

// Where a thread stands in its block.
template <class S>
struct Place {
  int thread;
  int lane;
  int warp;
  int key_warp;   // which of the warps that have the same rows
  int first_row;  // the warp's, of the block's
  int own_row;    // the lane's in softmaxes, of the warp's
  int state_at;   // of the warp in arrays [warp][row]

  __device__ __forceinline__ Place()
      : thread(static_cast<int>(threadIdx.x)),
        lane(thread % 32),
        warp(thread / 32),
        key_warp(warp % S::kKeyWarps),
        first_row(warp / S::kKeyWarps * S::kRows),
        own_row(lane / S::kLanesARow),
        state_at(warp * S::kRows) {}
  // Of several lanes that have a row, one.
  __device__ __forceinline__ bool SpeaksForRow() const { return lane % S::kLanesARow == 0; }
  __device__ __forceinline__ int WeightsAt(int key) const {
    return (warp * kTile + key) * S::kQuadStride;
  }
};

// The block's query rows, scaled, with zeros behind each and for rows that there are none of.
template <class S, class Job, class Queries>
__device__ __forceinline__ void LoadQueries(const Place<S>& place, const Job& job, int dim,
                                            float scale, Queries& queries) {
  const int padded = Chunks(dim) * kChunk;
  for (int row = place.warp; row < S::kBlockRows; row += kWarps) {
    const float* query = job.Has(row) ? job.Query(row) : nullptr;
    for (int c = place.lane; c < padded; c += 32) {
      const bool there = query != nullptr && c < dim;
      const int at = row * padded + c;
      queries[at / 4].v[at % 4] = there ? query[c] * scale : 0.0f;
    }
  }
}

// Channels [chunk * kChunk, ...) of the block's keys, zeros where there is no entry or channel.
template <typename T, class S, class Offsets, class Keys>
__device__ __forceinline__ void LoadKeys(const Place<S>& place, const PagedLayer& layer, int chunk,
                                         Offsets& offsets, Keys& keys) {
  const int c = chunk * kChunk + place.lane;
  SMARTGEN_UNROLL_BY(8)
  for (int k = place.warp; k < S::kBlockKeys; k += kWarps) {
    const int64_t offset = offsets[k];
    float key = 0;
    if (offset >= 0 && c < layer.head_dim) {
      key = ToFloat(reinterpret_cast<const T*>(layer.base + offset)[c]);
    }
    keys[k * kKeyStride + place.lane] = key;
  }
}

// scores[r] += a chunk of the product of the warp's row r with the lane's key.
template <class S, class Queries, class Keys>
__device__ __forceinline__ void AddScores(const Place<S>& place, int chunk, int chunks,
                                          Queries& queries, Keys& keys, float (&scores)[S::kRows]) {
  constexpr int kQuadsAChunk = kChunk / 4;
  const int key_at = (place.key_warp * kTile + place.lane) * kKeyStride;
  SMARTGEN_UNROLL_BY(1)
  for (int quad = 0; quad < kQuadsAChunk; ++quad) {
    float key[4];
    SMARTGEN_UNROLL
    for (int i = 0; i < 4; ++i) key[i] = keys[key_at + quad * 4 + i];
    SMARTGEN_UNROLL
    for (int r = 0; r < S::kRows; ++r) {
      const Float4 query = queries[((place.first_row + r) * chunks + chunk) * kQuadsAChunk + quad];
      SMARTGEN_UNROLL
      for (int i = 0; i < 4; ++i) scores[r] += query.v[i] * key[i];
    }
  }
}

template <class S, class Weights>
__device__ __forceinline__ void PutScores(const Place<S>& place, const float (&scores)[S::kRows],
                                          Weights& weights) {
  SMARTGEN_UNROLL
  for (int quad = 0; quad < S::kQuads; ++quad) {
    Float4 four;
    SMARTGEN_UNROLL
    for (int i = 0; i < 4; ++i) four.v[i] = scores[quad * 4 + i];
    weights[place.WeightsAt(place.lane) + quad] = four;
  }
}

// What the lanes of a row know of it: the greatest score so far, the sum of weights.
struct RowState {
  float max;
  float sum;
};

// Turns the scores of the lane's row in the warp's tile into weights: entries [begin, end) of the
// tile are seen, others weigh 0. Returns the factor for what was summed up before. All lanes of the
// warp.
template <class S, class Weights>
__device__ __forceinline__ float SoftmaxRow(const Place<S>& place, int begin, int end,
                                            Weights& weights, RowState* state) {
  const int quad = place.own_row / 4;
  const int i = place.own_row % 4;
  const int first = place.lane % S::kLanesARow;
  float top = state->max;
  for (int k = first; k < kTile; k += S::kLanesARow) {
    const float score = weights[place.WeightsAt(k) + quad].v[i];
    top = k >= begin && k < end && score > top ? score : top;
  }
  SMARTGEN_UNROLL
  for (int lanes = 1; lanes < S::kLanesARow; lanes *= 2) {
    const float other = __shfl_xor_sync(kAllLanes, top, lanes);
    top = other > top ? other : top;
  }
  float sum = 0;
  for (int k = first; k < kTile; k += S::kLanesARow) {
    const int at = place.WeightsAt(k) + quad;
    const float weight = k >= begin && k < end ? Weight(weights[at].v[i], top) : 0.0f;
    weights[at].v[i] = weight;
    sum += weight;
  }
  SMARTGEN_UNROLL
  for (int lanes = 1; lanes < S::kLanesARow; lanes *= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, lanes);
  }
  // Nothing seen yet: nothing was summed up.
  const float factor = top == MinusInfinity() ? 1.0f : exp2f(state->max - top);
  state->sum = state->sum * factor + sum;
  state->max = top;
  return factor;
}

// acc[r] += the weight of the warp's row r * an entry's values, for the lane's channels.
template <typename T, class S, class Weights>
__device__ __forceinline__ void AddValues(const Place<S>& place, const T* values, int dim, int key,
                                          Weights& weights, float (&acc)[S::kRows][S::kSlots]) {
  float value[S::kSlots];
  SMARTGEN_UNROLL
  for (int j = 0; j < S::kSlots; ++j) {
    const int c = place.lane + 32 * j;
    value[j] = c < dim ? ToFloat(values[c]) : 0.0f;
  }
  Float4 weight[S::kQuads];
  SMARTGEN_UNROLL
  for (int quad = 0; quad < S::kQuads; ++quad) weight[quad] = weights[place.WeightsAt(key) + quad];
  SMARTGEN_UNROLL
  for (int j = 0; j < S::kSlots; ++j) {
    if (32 * j >= dim) continue;
    SMARTGEN_UNROLL
    for (int r = 0; r < S::kRows; ++r) acc[r][j] += weight[r / 4].v[r % 4] * value[j];
  }
}

// The greatest score, the sum of weights and, in `factors`, what each warp's sums are to be
// multiplied with, of a row of the block: over the warps that have it, in ascending order of their
// entries.
template <class S, class Floats>
__device__ __forceinline__ void MergeStates(int row, Floats& maxima, Floats& sums,
                                            Floats& factors) {
  // Of the row in the first of its warps.
  const int at = row / S::kRows * S::kKeyWarps * S::kRows + row % S::kRows;
  float top = MinusInfinity();
  for (int w = 0; w < S::kKeyWarps; ++w) {
    const float max = maxima[at + w * S::kRows];
    top = max > top ? max : top;
  }
  float sum = 0;
  for (int w = 0; w < S::kKeyWarps; ++w) {
    const float weight = Weight(maxima[at + w * S::kRows], top);
    factors[at + w * S::kRows] = weight;
    sum += weight * sums[at + w * S::kRows];
  }
  maxima[at] = top;
  sums[at] = sum;
}

// Puts the sums of warps that have the same rows together in the first of them, one after the other
// through `exchange` ([S::kBlockRows][stride / 4]). All threads of the block.
template <class S, class Exchange, class Floats>
__device__ __forceinline__ void MergeSums(const Place<S>& place, int dim, int stride,
                                          Floats& factors, Exchange& exchange,
                                          float (&acc)[S::kRows][S::kSlots]) {
  SMARTGEN_UNROLL
  for (int r = 0; r < S::kRows; ++r) {
    const float factor = factors[place.state_at + r];
    SMARTGEN_UNROLL
    for (int j = 0; j < S::kSlots; ++j) acc[r][j] *= factor;
  }
  SMARTGEN_UNROLL_BY(1)
  for (int turn = 1; turn < S::kKeyWarps; ++turn) {
    __syncthreads();  // what the turn before gave is read
    if (place.key_warp == turn) {
      SMARTGEN_UNROLL
      for (int r = 0; r < S::kRows; ++r) {
        SMARTGEN_UNROLL
        for (int j = 0; j < S::kSlots; ++j) {
          const int c = place.lane + 32 * j;
          const int at = (place.first_row + r) * stride + c;
          if (c < dim) exchange[at / 4].v[at % 4] = acc[r][j];
        }
      }
    }
    __syncthreads();
    if (place.key_warp != 0) continue;
    SMARTGEN_UNROLL
    for (int r = 0; r < S::kRows; ++r) {
      SMARTGEN_UNROLL
      for (int j = 0; j < S::kSlots; ++j) {
        const int c = place.lane + 32 * j;
        const int at = (place.first_row + r) * stride + c;
        if (c < dim) acc[r][j] += exchange[at / 4].v[at % 4];
      }
    }
  }
}

// A row's result by the lanes of a warp.
template <class S>
__device__ __forceinline__ void Store(const Place<S>& place, const Result& to, float max, float sum,
                                      int dim, const float (&acc)[S::kSlots]) {
  const float norm = to.max == nullptr ? Inverse(sum) : 1.0f;
  SMARTGEN_UNROLL
  for (int j = 0; j < S::kSlots; ++j) {
    const int c = place.lane + 32 * j;
    if (c < dim) to.values[c] = acc[j] * norm;
  }
  if (place.lane != 0) return;
  if (to.max != nullptr) {
    *to.max = max;
    *to.sum = sum;
  } else if (to.lse != nullptr) {
    *to.lse = NaturalLse(max, sum);
  }
}

// Takes the job's rows through its entries. Job:
//   first, end, origin    entries that any row sees; where tiles begin, at most first
//   Has(row)              whether the block has that row: all those below some number
//   Begin(row), End(row)  entries that a row sees, both ascending in rows; of rows that it has
//   Query(row)            its channels
//   Offset(entry)         KeyOffset of its token
//   ResultOf(row)
template <typename T, class S, class Job>
__device__ __forceinline__ void AttendBlock(const PagedLayer& layer, float scale, const Job& job) {
  SMARTGEN_DYNAMIC_SHARED(Float4, queries);  // [S::kBlockRows][chunks * kChunk / 4]
  SMARTGEN_SHARED(float, keys, S::kBlockKeys* kKeyStride);
  SMARTGEN_SHARED(Float4, weights, kWarps * kTile * S::kQuadStride);  // [warp][entry][row quad]
  SMARTGEN_SHARED(int64_t, offsets, S::kBlockKeys);
  SMARTGEN_SHARED(float, factors, kWarps* S::kRows);  // [warp][row]
  SMARTGEN_SHARED(float, maxima, kWarps* S::kRows);
  SMARTGEN_SHARED(float, sums, kWarps* S::kRows);
  const Place<S> place;
  const int dim = layer.head_dim;
  const int chunks = Chunks(dim);
  // What the warp's rows see together, and what the lane's row sees.
  int64_t warp_begin = 0;
  int64_t warp_end = 0;
  for (int r = 0; r < S::kRows && job.Has(place.first_row + r); ++r) {
    if (r == 0) warp_begin = job.Begin(place.first_row);
    warp_end = job.End(place.first_row + r);
  }
  const int own = place.first_row + place.own_row;
  const int64_t own_begin = job.Has(own) ? job.Begin(own) : 0;
  const int64_t own_end = job.Has(own) ? job.End(own) : 0;

  LoadQueries<S>(place, job, dim, scale, queries);
  RowState state{MinusInfinity(), 0.0f};
  float acc[S::kRows][S::kSlots] = {};
  for (int64_t tile = job.origin; tile < job.end; tile += S::kBlockKeys) {
    __syncthreads();  // the tile before is done with
    if (place.thread < S::kBlockKeys) {
      const int64_t entry = tile + place.thread;
      offsets[place.thread] = entry >= job.first && entry < job.end ? job.Offset(entry) : -1;
    }
    const int64_t first_key = tile + place.key_warp * kTile;
    // The same for all lanes of a warp.
    const bool seen = first_key < warp_end && first_key + kTile > warp_begin;
    float scores[S::kRows] = {};
    for (int chunk = 0; chunk < chunks; ++chunk) {
      __syncthreads();  // offsets are there, the chunk before is done with
      LoadKeys<T, S>(place, layer, chunk, offsets, keys);
      __syncthreads();
      if (seen) AddScores<S>(place, chunk, chunks, queries, keys, scores);
    }
    if (!seen) continue;
    PutScores<S>(place, scores, weights);
    __syncwarp(kAllLanes);
    const float own_factor = SoftmaxRow<S>(place, ClampToTile(own_begin - first_key),
                                           ClampToTile(own_end - first_key), weights, &state);
    if (place.SpeaksForRow()) factors[place.state_at + place.own_row] = own_factor;
    __syncwarp(kAllLanes);
    SMARTGEN_UNROLL
    for (int r = 0; r < S::kRows; ++r) {
      const float factor = factors[place.state_at + r];
      SMARTGEN_UNROLL
      for (int j = 0; j < S::kSlots; ++j) acc[r][j] *= factor;
    }
    const int to = ClampToTile(warp_end - first_key);
    SMARTGEN_UNROLL_BY(S::kAtOnce)
    for (int k = ClampToTile(warp_begin - first_key); k < to; ++k) {
      const std::byte* values =
          layer.base + offsets[place.key_warp * kTile + k] + layer.page_bytes / 2;
      AddValues<T, S>(place, reinterpret_cast<const T*>(values), dim, k, weights, acc);
    }
  }

  if (place.SpeaksForRow()) {
    maxima[place.state_at + place.own_row] = state.max;
    sums[place.state_at + place.own_row] = state.sum;
  }
  __syncthreads();
  if (place.thread < S::kBlockRows) MergeStates<S>(place.thread, maxima, sums, factors);
  __syncthreads();
  MergeSums<S>(place, dim, chunks * kChunk, factors, queries, acc);
  if (place.key_warp != 0) return;
  SMARTGEN_UNROLL
  for (int r = 0; r < S::kRows; ++r) {
    if (!job.Has(place.first_row + r)) continue;
    Store<S>(place, job.ResultOf(place.first_row + r), maxima[place.state_at + r],
             sums[place.state_at + r], dim, acc[r]);
  }
}

// --- Prefill ---

struct PrefillRun {
  PrefillAttentionArgs args;
  float scale = 0;
};

// Rows of a block are (position, query head of the group), positions outside; all of a KV head's
// rows together are fewer than 2^31.
struct PrefillJob {
  const PrefillAttentionArgs& args;
  int kv_head;
  int group;
  int first_row;
  int64_t first;
  int64_t end;
  int64_t origin;

  __device__ __forceinline__ bool Has(int row) const { return first_row + row < args.rows * group; }
  __device__ __forceinline__ int64_t Row(int row) const { return (first_row + row) / group; }
  __device__ __forceinline__ int64_t Head(int row) const {
    return int64_t{kv_head} * group + (first_row + row) % group;
  }
  __device__ __forceinline__ int64_t End(int row) const { return args.position + Row(row) + 1; }
  __device__ __forceinline__ int64_t Begin(int row) const {
    const int64_t begin = End(row) - args.window;
    return args.window > 0 && begin > 0 ? begin : 0;
  }
  __device__ __forceinline__ const float* Query(int row) const {
    return args.queries + Row(row) * args.query_stride + Head(row) * args.layer.head_dim;
  }
  __device__ __forceinline__ int64_t Offset(int64_t entry) const {
    return KeyOffset(args.layer, args.layer.pages, kv_head, entry);
  }
  __device__ __forceinline__ Result ResultOf(int row) const {
    return {
        .values = args.out + Row(row) * args.out_stride + Head(row) * args.layer.head_dim,
        .lse = args.lse == nullptr ? nullptr : args.lse + Row(row) * args.query_heads + Head(row),
        .max = nullptr,
        .sum = nullptr};
  }
};

// Blocks that a multiprocessor's registers are shared out to.
template <class S>
constexpr int kPrefillBlocks = S::kSums > 64 ? 2 : 3;

template <typename T, class S>
__global__ void __launch_bounds__(kThreads, kPrefillBlocks<S>) PrefillKernel(PrefillRun run) {
  const PrefillAttentionArgs& args = run.args;
  const int group = args.query_heads / args.layer.kv_heads;
  // The last rows see most and begin first.
  const int first_row = static_cast<int>(gridDim.x - 1 - blockIdx.x) * S::kBlockRows;
  PrefillJob job{args, static_cast<int>(blockIdx.y), group, first_row, 0, 0, 0};
  const int64_t rows = args.rows * group - first_row;
  job.first = job.Begin(0);
  job.end = job.End(static_cast<int>(rows < S::kBlockRows ? rows : S::kBlockRows) - 1);
  job.origin = job.first / S::kBlockKeys * S::kBlockKeys;
  AttendBlock<T, S>(args.layer, run.scale, job);
}

// --- Decode ---

struct DecodeRun {
  DecodeAttentionArgs args;
  float scale = 0;
  int64_t parts = 1;  // a slot has at most
};

// Of a KV head of a slot.
struct Entries {
  int64_t begin;
  int64_t end;
};
__device__ __forceinline__ Entries EntriesOf(const AttendSlot& slot, int kv_head) {
  return {slot.begins == nullptr ? slot.begin : slot.begins[kv_head],
          slot.ends == nullptr ? slot.end : slot.ends[kv_head]};
}

// Parts' results: values [slot][query head][part][head dim], then maxima and sums [slot][query
// head][part].
struct Parts {
  float* values;
  float* maxima;
  float* sums;
};
__device__ __forceinline__ Parts PartsOf(const DecodeRun& run, int64_t slot, int head) {
  const DecodeAttentionArgs& args = run.args;
  const int64_t all = int64_t{args.count} * args.query_heads * run.parts;
  const int64_t first = (slot * args.query_heads + head) * run.parts;
  float* maxima = args.scratch + all * args.layer.head_dim;
  return {args.scratch + first * args.layer.head_dim, maxima + first, maxima + all + first};
}

// Rows of a block are query heads of the group.
struct DecodeJob {
  const DecodeRun& run;
  const AttendSlot& slot;
  int64_t slot_number;
  int kv_head;
  int group;
  int first_row;
  int64_t part;
  int64_t first;
  int64_t end;
  int64_t origin;

  __device__ __forceinline__ bool Has(int row) const { return first_row + row < group; }
  __device__ __forceinline__ int Head(int row) const { return kv_head * group + first_row + row; }
  __device__ __forceinline__ int64_t Begin(int) const { return first; }
  __device__ __forceinline__ int64_t End(int) const { return end; }
  __device__ __forceinline__ const float* Query(int row) const {
    const DecodeAttentionArgs& args = run.args;
    return args.queries + slot.row * args.query_stride + int64_t{Head(row)} * args.layer.head_dim;
  }
  __device__ __forceinline__ int64_t Offset(int64_t entry) const {
    const int64_t token =
        slot.index == nullptr ? entry : slot.index[kv_head * slot.index_stride + entry];
    return KeyOffset(run.args.layer, slot.pages, kv_head, token);
  }
  __device__ __forceinline__ Result ResultOf(int row) const {
    const DecodeAttentionArgs& args = run.args;
    const int head = Head(row);
    if (run.parts > 1) {
      const Parts parts = PartsOf(run, slot_number, head);
      return {.values = parts.values + part * args.layer.head_dim,
              .lse = nullptr,
              .max = parts.maxima + part,
              .sum = parts.sums + part};
    }
    return {.values = args.out + slot.row * args.out_stride + int64_t{head} * args.layer.head_dim,
            .lse = args.lse == nullptr ? nullptr : args.lse + slot.row * args.query_heads + head,
            .max = nullptr,
            .sum = nullptr};
  }
};

template <typename T, class S>
__global__ void DecodeKernel(DecodeRun run) {
  const DecodeAttentionArgs& args = run.args;
  const int group = args.query_heads / args.layer.kv_heads;
  const int row_tiles = (group + S::kBlockRows - 1) / S::kBlockRows;
  const int y = static_cast<int>(blockIdx.y);
  const AttendSlot slot = args.slots[blockIdx.z];
  const int kv_head = y / row_tiles;
  const Entries entries = EntriesOf(slot, kv_head);
  const int64_t part = blockIdx.x;
  const int64_t first = entries.begin + part * args.part;
  if (run.parts > 1 && first >= entries.end) return;  // nobody asks for it
  const int64_t end = first + args.part < entries.end ? first + args.part : entries.end;
  const DecodeJob job{run,  slot,  blockIdx.z, kv_head, group, y % row_tiles * S::kBlockRows,
                      part, first, end,        first};
  AttendBlock<T, S>(args.layer, run.scale, job);
}

__device__ __forceinline__ float BlockMax(float value) {
  SMARTGEN_SHARED(float, greatest, kWarps);
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, value, lanes);
    value = other > value ? other : value;
  }
  if (threadIdx.x % 32 == 0) greatest[threadIdx.x / 32] = value;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) value = greatest[w] > value ? greatest[w] : value;
  return value;
}

// A block takes a query head of a slot; parts' weights are made kThreads at a time.
__global__ void MergePartsKernel(DecodeRun run) {
  constexpr int kSlots = kMaxHeadDim / kThreads;
  SMARTGEN_SHARED(float, weights, kThreads);
  SMARTGEN_SHARED(float, weighted, kThreads);  // sums
  const DecodeAttentionArgs& args = run.args;
  const int dim = args.layer.head_dim;
  const int head = static_cast<int>(blockIdx.x);
  const AttendSlot slot = args.slots[blockIdx.y];
  const Entries entries = EntriesOf(slot, head / (args.query_heads / args.layer.kv_heads));
  int64_t count =
      entries.begin < entries.end ? (entries.end - entries.begin + args.part - 1) / args.part : 0;
  count = count < run.parts ? count : run.parts;
  const Parts parts = PartsOf(run, blockIdx.y, head);
  float top = MinusInfinity();
  for (int64_t p = threadIdx.x; p < count; p += kThreads) {
    top = parts.maxima[p] > top ? parts.maxima[p] : top;
  }
  top = BlockMax(top);
  float sum = 0;
  float acc[kSlots] = {};
  for (int64_t begin = 0; begin < count; begin += kThreads) {
    __syncthreads();  // the parts before are read
    const int64_t p = begin + threadIdx.x;
    if (p < count) {
      const float weight = Weight(parts.maxima[p], top);
      weights[threadIdx.x] = weight;
      weighted[threadIdx.x] = weight * parts.sums[p];
    }
    __syncthreads();
    const int here = static_cast<int>(count - begin < kThreads ? count - begin : kThreads);
    SMARTGEN_UNROLL_BY(8)
    for (int i = 0; i < here; ++i) {
      const float* values = parts.values + (begin + i) * dim;
      const float weight = weights[i];
      sum += weighted[i];
      SMARTGEN_UNROLL
      for (int j = 0; j < kSlots; ++j) {
        const int c = static_cast<int>(threadIdx.x) + kThreads * j;
        if (c < dim) acc[j] += weight * values[c];
      }
    }
  }
  float* out = args.out + slot.row * args.out_stride + int64_t{head} * dim;
  const float inverse = Inverse(sum);
  SMARTGEN_UNROLL
  for (int j = 0; j < kSlots; ++j) {
    const int c = static_cast<int>(threadIdx.x) + kThreads * j;
    if (c < dim) out[c] = acc[j] * inverse;
  }
  if (threadIdx.x == 0 && args.lse != nullptr) {
    args.lse[slot.row * args.query_heads + head] = NaturalLse(top, sum);
  }
}

// --- Launchers ---

float ScaleOf(const PagedLayer& layer) {
  return kLog2OfE / std::sqrt(static_cast<float>(layer.head_dim));
}

template <class S>
int64_t QueryBytes(const PagedLayer& layer) {
  const int64_t padded = (layer.head_dim + kChunk - 1) / kChunk * kChunk;
  return S::kBlockRows * padded * static_cast<int64_t>(sizeof(float));
}

template <typename T, class S>
LaunchError PrefillWith(const PrefillRun& run, Stream stream) {
  const PagedLayer& layer = run.args.layer;
  const int64_t rows = run.args.rows * (run.args.query_heads / layer.kv_heads);
  const Grid grid{Ceil(rows, S::kBlockRows), static_cast<unsigned>(layer.kv_heads)};
  return Launch(PrefillKernel<T, S>, grid, kThreads, QueryBytes<S>(layer), stream, run);
}

// Tilings keep a lane's sums (kRows * kSlots) in registers and the block's queries in 32 KiB.
template <typename T>
LaunchError PrefillOf(const PrefillRun& run, Stream stream) {
  const int dim = run.args.layer.head_dim;
  if (dim <= 128) return PrefillWith<T, Tiling<4, 16, 1>>(run, stream);
  if (dim <= 256) return PrefillWith<T, Tiling<8, 8, 1>>(run, stream);
  return PrefillWith<T, Tiling<32, 4, 2>>(run, stream);
}

template <typename T, class S>
LaunchError DecodeWith(const DecodeRun& run, Stream stream) {
  const DecodeAttentionArgs& args = run.args;
  const int group = args.query_heads / args.layer.kv_heads;
  const Grid grid{static_cast<unsigned>(run.parts),
                  static_cast<unsigned>(args.layer.kv_heads) * Ceil(group, S::kBlockRows),
                  static_cast<unsigned>(args.count)};
  const LaunchError error =
      Launch(DecodeKernel<T, S>, grid, kThreads, QueryBytes<S>(args.layer), stream, run);
  if (error != nullptr || run.parts == 1) return error;
  const Grid rows{static_cast<unsigned>(args.query_heads), static_cast<unsigned>(args.count)};
  return Launch(MergePartsKernel, rows, kThreads, 0, stream, run);
}

template <typename T>
LaunchError DecodeOf(const DecodeRun& run, Stream stream) {
  const PagedLayer& layer = run.args.layer;
  const int group = run.args.query_heads / layer.kv_heads;
  if (layer.head_dim <= 128) {
    return group <= 4 ? DecodeWith<T, Tiling<4, 4, 4>>(run, stream)
                      : DecodeWith<T, Tiling<4, 8, 4>>(run, stream);
  }
  if (layer.head_dim <= 256) return DecodeWith<T, Tiling<8, 4, 4>>(run, stream);
  return DecodeWith<T, Tiling<32, 4, 4>>(run, stream);
}

LaunchError CheckQueries(const PagedLayer& layer, int query_heads, int64_t query_stride,
                         int64_t out_stride) {
  if (const LaunchError error = CheckLayer(layer)) return error;
  if (query_heads < 1 || query_heads > kMaxHeads || query_heads % layer.kv_heads != 0) {
    return "want up to 1024 query heads, a multiple of the KV heads";
  }
  const int64_t length = int64_t{query_heads} * layer.head_dim;
  if (query_stride < length || out_stride < length) {
    return "want strides of at least the row's length";
  }
  return nullptr;
}

}  // namespace

LaunchError PrefillAttention(const PrefillAttentionArgs& args, Stream stream) {
  if (args.rows <= 0) return nullptr;
  if (args.rows > kMaxRows / kMaxHeads) return "want rows below 2^21";
  if (args.position < 0) return "want a position that is not negative";
  if (args.window < 0) return "want a window that is not negative";
  if (const LaunchError error =
          CheckQueries(args.layer, args.query_heads, args.query_stride, args.out_stride)) {
    return error;
  }
  const PrefillRun run{args, ScaleOf(args.layer)};
  switch (args.layer.element) {
    case Element::kF32:
      return PrefillOf<float>(run, stream);
    case Element::kBF16:
      return PrefillOf<Bf16>(run, stream);
    case Element::kF16:
      return PrefillOf<F16>(run, stream);
  }
  return "unknown element type";
}

LaunchError DecodeAttention(const DecodeAttentionArgs& args, Stream stream) {
  if (args.count <= 0) return nullptr;
  if (args.count > 65535) return "want up to 65535 slots";
  if (args.part < 1 || args.part > INT32_MAX) return "want parts of 1 to 2^31 - 1 entries";
  if (const LaunchError error =
          CheckQueries(args.layer, args.query_heads, args.query_stride, args.out_stride)) {
    return error;
  }
  const DecodeRun run{args, ScaleOf(args.layer), DecodeParts(args.most_entries, args.part)};
  if (run.parts > kMaxRows) return "want fewer than 2^31 parts";
  if (run.parts > 1 && args.scratch == nullptr) return "want scratch for several parts";
  switch (args.layer.element) {
    case Element::kF32:
      return DecodeOf<float>(run, stream);
    case Element::kBF16:
      return DecodeOf<Bf16>(run, stream);
    case Element::kF16:
      return DecodeOf<F16>(run, stream);
  }
  return "unknown element type";
}

}  // namespace smartgen::executor::cuda
