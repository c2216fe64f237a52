// What all attention over a sequence's pages is made of: sizes, a worker's memory, and loading
// tiles.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/executor/cpu/kernels.h"
#include "common/executor/cpu/memory.h"
#include "common/kv/sequence.h"

namespace smartgen::executor::cpu {

struct AttentionGeometry {
  int layer;
  int group;  // query heads that share a KV head
  int kv_heads;
  int dim;
  int padded_dim;
  int window;
  float scale;  // log2(e) / sqrt(dim): scores are powers of two

  static AttentionGeometry Of(int layer, const kv::KvLayout& layout, int num_heads);
};

// Of one worker.
struct TileScratch {
  FloatBuffer q, keys, values, total, span;
  std::vector<int32_t> begin, end;

  // Room for tiles and for states of `rows` query rows.
  void Reserve(const AttentionGeometry& g, int rows);
};

// A state of `rows` rows in StateFloats floats.
inline int64_t StateFloats(int rows, int padded_dim) {
  return static_cast<int64_t>(rows) * (padded_dim + 2);
}
inline SoftmaxState StateAt(float* memory, int rows, int padded_dim) {
  float* max = memory + static_cast<int64_t>(rows) * padded_dim;
  return {.acc = memory, .max = max, .sum = max + rows};
}

// Tokens [key_begin, key_end) of one KV head, all within one tile of kKeyTile positions, to the
// columns (keys) and rows (values) of their positions in the tile.
void LoadTile(const AttentionGeometry& g, kv::KvSequence& sequence, int kv_head, int64_t key_begin,
              int64_t key_end, TileScratch& scratch);
// Any tokens (up to kKeyTile) to the first columns and rows.
void GatherTile(const AttentionGeometry& g, kv::KvSequence& sequence, int kv_head,
                std::span<const int32_t> tokens, TileScratch& scratch);

}  // namespace smartgen::executor::cpu
