// SmartGen's own CUDA kernels, second part: a layer's arithmetic but for its products with weights
// (gemm.h). They run on any shape that a model file may have, with plain f32 arithmetic. What is
// said at the top of kernels.h of launchers, errors, threads and pointers holds here too, but for
// bits: results are within 1e-5 of the CPU's (common/executor/cpu, named at each) where the output
// is f32, plus one rounding where it is narrower.
//
// Activations are f32 rows. Strides count elements of the row's type from one row to the next and
// are at least the row's length (0 where said). Elements between rows are left alone. Rows of one
// launch do not overlap.
//
// What a row becomes does not depend, bit for bit, on the other rows of the launch.
#pragma once

#include <cstdint>

#include "common/executor/cuda/kernels.h"

namespace smartgen::executor::cuda {

// --- Embedding and norm ---

// Row i of `out` = row tokens[i] of the table (cpu::Matrix::DecodeRow), exactly. A token outside
// the table gives NaN: no memory is read for it.
struct EmbedArgs {
  const void* table = nullptr;  // [vocabulary][dim], without gaps
  Element element = Element::kBF16;
  int64_t vocabulary = 0;
  int dim = 0;
  const int32_t* tokens = nullptr;  // [rows]
  int64_t rows = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
};
LaunchError Embed(const EmbedArgs& args, Stream stream);

// x += add (where there is one), then out = x / rms(x) * weight, rms(x) = sqrt(mean of squares +
// eps) (cpu::RmsNorm).
struct RmsNormArgs {
  float* x = nullptr;  // changed only where there is something to add
  int64_t x_stride = 0;
  const float* add = nullptr;  // null: nothing
  int64_t add_stride = 0;
  const void* weight = nullptr;  // [dim]
  Element weight_element = Element::kF32;
  float eps = 0;
  void* out = nullptr;  // may be x, if f32 and of its stride
  Element out_element = Element::kF32;
  int64_t out_stride = 0;
  int64_t rows = 0;
  int dim = 0;
};
LaunchError RmsNorm(const RmsNormArgs& args, Stream stream);

// --- Rotary embedding and KV ---

// cosines[row][i], sines[row][i] = those of the angle positions[row] * frequencies[i], which is
// rounded to float first (cpu::Forward::FillRope). Once a step, for all its layers. Frequencies are
// model::ModelConfig::RopeInverseFrequencies, which has all of the model's scaling in it.
struct RopeAnglesArgs {
  const int32_t* positions = nullptr;  // [rows]
  int64_t rows = 0;
  const float* frequencies = nullptr;  // [angles]
  int angles = 0;                      // head dim / 2
  float* cosines = nullptr;            // [rows][angles]
  float* sines = nullptr;
};
LaunchError RopeAngles(const RopeAnglesArgs& args, Stream stream);

// Rows of [query heads | key heads | value heads] x head dim. Rotates queries and keys in place:
// pairs (i, i + head dim / 2) of a head (cpu::Rope; weights of models with interleaved pairs are
// put in this order when they are loaded), an odd last channel stays. With pages it also writes K
// after rotation and V to the rows' positions there, rounded to the layer's element to nearest even
// (cpu::StoreKv); V of the row stays.
struct RopeArgs {
  float* x = nullptr;
  int64_t stride = 0;
  int64_t rows = 0;
  int query_heads = 0;
  int kv_heads = 0;  // 0: the rows hold queries alone
  int head_dim = 0;
  const float* cosines = nullptr;  // [rows][head_dim / 2]
  const float* sines = nullptr;
  // Where K and V go; base null: nowhere. No two rows have the same page and position in it.
  PagedLayer layer;
  const int32_t* positions = nullptr;         // [rows], not negative
  const int32_t* const* row_pages = nullptr;  // [rows], each row's sequence; null: layer.pages, all
};
LaunchError Rope(const RopeArgs& args, Stream stream);

// --- Elementwise ---

// out = silu(gate) * up (cpu::SwiGlu). Fused products have gate and up side by side: up = gate +
// dim, stride = 2 * dim.
struct SwiGluArgs {
  const float* gate = nullptr;
  const float* up = nullptr;
  int64_t stride = 0;   // of both
  void* out = nullptr;  // may be gate or up, if f32 and of their stride
  Element out_element = Element::kF32;
  int64_t out_stride = 0;
  int64_t rows = 0;
  int dim = 0;
};
LaunchError SwiGlu(const SwiGluArgs& args, Stream stream);

// x += y: a residual, or with y_stride 0 one row (a bias) to all.
struct AddRowsArgs {
  float* x = nullptr;
  int64_t x_stride = 0;
  const void* y = nullptr;
  Element y_element = Element::kF32;
  int64_t y_stride = 0;
  int64_t rows = 0;
  int dim = 0;
};
LaunchError AddRows(const AddRowsArgs& args, Stream stream);

// out = x rounded to nearest even, for products that take narrower rows.
struct RoundRowsArgs {
  const float* x = nullptr;
  int64_t x_stride = 0;
  void* out = nullptr;
  Element out_element = Element::kBF16;
  int64_t out_stride = 0;
  int64_t rows = 0;
  int dim = 0;
};
LaunchError RoundRows(const RoundRowsArgs& args, Stream stream);

// --- Attention ---
//
// A query's scores are its products with the keys over sqrt(head dim); out is the mean of the
// values with the scores' softmax for weights, lse the natural logarithm of the sum of e^score
// (cpu::SelectedAttention). Without any key out is 0 and lse -infinity. Query heads [g * kv head,
// g * (kv head + 1)) share a KV head, g = query heads / KV heads. Keys and values are read as
// stored and must be numbers; what nobody sees is not read.

// Queries of consecutive positions of one sequence: row i stands at position + i and sees tokens up
// to itself, with a window its last `window` ones. A row's result depends on its position, its
// queries and what it sees alone. For few queries over much context DecodeAttention, a slot a
// query, has more of the device at work.
struct PrefillAttentionArgs {
  PagedLayer layer;
  int64_t position = 0;  // of row 0
  int64_t rows = 0;
  int window = 0;  // 0: none
  int query_heads = 0;
  const float* queries = nullptr;  // [rows][query_heads][head_dim] after RoPE, not scaled
  int64_t query_stride = 0;
  float* out = nullptr;  // the same shape
  int64_t out_stride = 0;
  float* lse = nullptr;  // [rows][query_heads], without gaps; null: not wanted
};
LaunchError PrefillAttention(const PrefillAttentionArgs& args, Stream stream);

// A query of a decode step. It sees entries [begin, end) of each KV head's list: entry i is token
// i, or with an index (a selection) token index[kv head * index_stride + i] of the sequence.
struct AttendSlot {
  const int32_t* pages = nullptr;  // the sequence's
  int64_t row = 0;                 // of queries, out and lse; no two slots have the same
  const int32_t* index = nullptr;
  int64_t index_stride = 0;
  int64_t begin = 0;
  int64_t end = 0;
  // [kv_heads], not null: instead of begin, of end (local_count of SplitByMask: the local part of a
  // selection, then the rest; MergePartials puts the two together).
  const int32_t* begins = nullptr;
  const int32_t* ends = nullptr;
};

// Entries that a block takes; parts are merged in ascending order.
inline constexpr int64_t kAttentionPart = 256;

// Each slot's entries are cut into parts, by their distance from the slot's first entry, and the
// parts are merged in order by a second kernel. A slot's result depends on its queries, its list
// and `part` alone. Rows that no slot has are left alone.
struct DecodeAttentionArgs {
  PagedLayer layer;                   // `pages` is not used: each slot has its own
  const AttendSlot* slots = nullptr;  // on the device
  int count = 0;                      // up to 65535
  int64_t most_entries = 0;           // no slot has more; sizes the grid
  int query_heads = 0;
  const float* queries = nullptr;  // [rows][query_heads][head_dim] after RoPE, not scaled
  int64_t query_stride = 0;
  float* out = nullptr;  // the same shape
  int64_t out_stride = 0;
  float* lse = nullptr;  // [rows][query_heads], without gaps; null: not wanted
  int64_t part = kAttentionPart;
  // DecodeScratchFloats of them; may be null where that is 0.
  float* scratch = nullptr;
};
LaunchError DecodeAttention(const DecodeAttentionArgs& args, Stream stream);

inline constexpr int64_t DecodeParts(int64_t most_entries, int64_t part = kAttentionPart) {
  return most_entries <= part ? 1 : (most_entries + part - 1) / part;
}
inline constexpr int64_t DecodeScratchFloats(int count, int query_heads, int head_dim,
                                             int64_t most_entries, int64_t part = kAttentionPart) {
  const int64_t parts = DecodeParts(most_entries, part);
  return parts == 1 ? 0 : parts * count * query_heads * (int64_t{head_dim} + 2);
}

}  // namespace smartgen::executor::cuda
