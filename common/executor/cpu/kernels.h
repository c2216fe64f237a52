// The arithmetic of the CPU executor, for the best instruction set of the machine (chosen at run
// time by Highway: AVX-512, AVX2, SSE4, NEON, scalar). No Highway types here.
//
// Order of operations. Every product of the model is one chain of multiply-adds over k, in
// ascending k and from zero, whatever the number of rows at hand, so a row's result has the same
// bits alone, in a batch, in any chunk and through either of the two routes (ExpandPanel +
// GemmTile, or GemvPanels). Sums over a row go through 16 partial sums and one tree (see Sum16 in
// vec-inl.h), so they don't depend on the vector width either. Machines with fused multiply-add
// agree with each other bit for bit.
//
// All functions are thread-safe and allocate nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/executor/cpu/panel.h"
#include "common/kv/layout.h"

namespace smartgen::executor::cpu {

// Columns of a panel: two vectors of the chosen instruction set (16 for AVX2, 32 for AVX-512). A
// power of two up to kMaxPanelWidth.
int PanelWidth();
inline constexpr int kMaxPanelWidth = 32;
// "AVX2", for logs.
const char* InstructionSet();

// GemvPanels takes up to this many rows.
inline constexpr int kMaxGemvRows = 4;
// ... and this many panels at once.
inline constexpr int kMaxGemvPanels = 2;

// Decodes k in [k_begin, k_end) (multiples of the shape's block) of a panel into out[k -
// k_begin][width].
void ExpandPanel(const PanelShape& shape, const std::byte* panel, int64_t k_begin, int64_t k_end,
                 float* out);

// c[rows][width] = (accumulate ? c : 0) + a[rows][k] * b[k][width]; leading dimensions in floats.
void GemmTile(const float* a, int64_t lda, int rows, const float* b, int64_t ldb, int64_t k,
              float* c, int64_t ldc, bool accumulate);

// c[rows][count * width] = x[rows][k] * panels, decoding weights in registers. `count` panels of
// one shape.
void GemvPanels(const PanelShape& shape, const std::byte* const* panels, int count, const float* x,
                int64_t ldx, int rows, float* c, int64_t ldc);

// out = x / rms(x) * weight.
void RmsNorm(const float* x, const float* weight, float eps, int64_t size, float* out);
// Rotates pairs (i, i + size / 2) by the angles whose cosines and sines are given (size / 2 of
// each).
void Rope(const float* cosines, const float* sines, int size, float* x);
// out = silu(gate) * up.
void SwiGlu(const float* gate, const float* up, int64_t size, float* out);
// Rounds to the KV type (nearest even) and back.
void StoreKv(const float* x, int64_t size, kv::DType dtype, std::byte* out);
void LoadKv(const std::byte* x, int64_t size, kv::DType dtype, float* out);

// --- Attention ---
// Keys are taken in tiles of kKeyTile absolute positions, tiles in spans of kKeySpan: inside a span
// tiles follow each other in an online softmax, spans are merged in ascending order by their
// log-sum-exp. A row's result depends on its own position only.
inline constexpr int kKeyTile = 64;
inline constexpr int kKeySpan = 256;

// Running state of `rows` query rows over a span. Scores are in units of log2.
struct SoftmaxState {
  float* acc;  // rows x ld
  float* max;  // rows
  float* sum;  // rows
};

// tokens x dim values of K (one page, one head) into columns [column, column + tokens) of
// out[dim][kKeyTile].
void TransposeKeys(const std::byte* k, kv::DType dtype, int tokens, int dim, int column,
                   float* out);

// The same of `tokens` (up to kKeyTile) rows that lie anywhere: row i to column i, i from 0 on.
void GatherKeys(const std::byte* const* rows, kv::DType dtype, int tokens, int dim, float* out);
// Rows of V to out[token][padded_dim], zeros behind each.
void GatherValues(const std::byte* const* rows, kv::DType dtype, int tokens, int dim,
                  int padded_dim, float* out);

struct AttendArgs {
  const float* q;  // rows x dim, already scaled by log2(e) / sqrt(dim)
  int rows;
  int dim;
  int padded_dim;        // dim rounded up to PanelWidth(): leading dimension of v and acc
  const float* keys;     // [dim][kKeyTile], transposed
  const float* values;   // [kKeyTile][padded_dim]; rows that nobody may see are finite
  const int32_t* begin;  // per row: first and end key of the tile that it sees
  const int32_t* end;
};
// Adds a tile of keys to the rows' states.
void AttendTile(const AttendArgs& args, const SoftmaxState& state);
// Merges `from` into `into` (later span into earlier ones), row by row; then resets `from` to
// empty.
void MergeSpan(int rows, int padded_dim, const SoftmaxState& into, const SoftmaxState& from);
void ResetState(int rows, int padded_dim, const SoftmaxState& state);
// out[dim] = acc / sum of one row.
void FinishRow(const SoftmaxState& state, int row, int dim, int padded_dim, float* out);

}  // namespace smartgen::executor::cpu
