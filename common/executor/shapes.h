// Sizes and places that every executor reckons with.
#pragma once

#include <cstdint>

#include "common/executor/executor.h"

namespace smartgen::executor {

// Columns of a layer's queries, and of queries, keys and values together.
inline int64_t QColumns(const model::LayerConfig& l) {
  return static_cast<int64_t>(l.num_heads) * l.head_dim;
}
inline int64_t KvColumns(const model::LayerConfig& l) {
  return static_cast<int64_t>(l.num_kv_heads) * l.head_dim;
}
inline int64_t QkvColumns(const model::LayerConfig& l) { return QColumns(l) + 2 * KvColumns(l); }

// Where a row of activations stands.
struct Row {
  kv::KvSequence* sequence;
  int64_t position;
};

// One past the last layer that a slot runs.
inline int LayerEnd(const DecodeSlot& slot, int layers) {
  return slot.layer_end < 0 ? layers : slot.layer_end;
}

// What a query at `position` sees of a layer begins here.
inline int64_t VisibleBegin(const model::LayerConfig& l, int64_t position) {
  return l.window > 0 && position >= l.window ? position + 1 - l.window : 0;
}

// KV as `config`'s layers make it, in `dtype`.
kv::KvLayout LayoutOf(const model::ModelConfig& config, kv::DType dtype, int64_t token_capacity);

// RoPE turns pairs (2i, 2i + 1) of a head in some models, (i, i + d/2) in others. Executors know
// the latter alone: for the former, rows of W_q and W_k are taken in this order (q . k does not
// change when both are permuted alike). Row i of a half-split head is row 2i of an interleaved one,
// row d/2 + i is row 2i + 1.
std::vector<int64_t> HalfSplitOrder(int heads, int dim);

}  // namespace smartgen::executor
