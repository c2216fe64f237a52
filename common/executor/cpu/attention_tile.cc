#include "common/executor/cpu/attention_tile.h"

#include <algorithm>
#include <cmath>

namespace smartgen::executor::cpu {
namespace {

constexpr int64_t kCacheLine = 64;

}  // namespace

AttentionGeometry AttentionGeometry::Of(int layer, const kv::KvLayout& layout, int num_heads) {
  const kv::LayerLayout& l = layout.layers[layer];
  const int width = PanelWidth();
  return {.layer = layer,
          .group = num_heads / l.kv_heads,
          .kv_heads = l.kv_heads,
          .dim = l.head_dim,
          .padded_dim = (l.head_dim + width - 1) / width * width,
          .window = l.window,
          .scale = 1.44269504f / std::sqrt(static_cast<float>(l.head_dim))};
}

void TileScratch::Reserve(const AttentionGeometry& g, int rows) {
  q.Resize(static_cast<int64_t>(rows) * g.dim);
  keys.Resize(static_cast<int64_t>(kKeyTile) * g.dim);
  values.Resize(static_cast<int64_t>(kKeyTile) * g.padded_dim);
  total.Resize(StateFloats(rows, g.padded_dim));
  span.Resize(StateFloats(rows, g.padded_dim));
  if (static_cast<int>(begin.size()) < rows) {
    begin.resize(rows);
    end.resize(rows);
  }
}

void LoadTile(const AttentionGeometry& g, kv::KvSequence& sequence, int kv_head, int64_t key_begin,
              int64_t key_end, TileScratch& scratch) {
  const kv::KvLayout& layout = sequence.layout();
  for (int64_t key = key_begin; key < key_end;) {
    const int64_t page_index = key / kv::kPageTokens;
    const int token = static_cast<int>(key % kv::kPageTokens);
    const int count = static_cast<int>(std::min<int64_t>(kv::kPageTokens - token, key_end - key));
    const std::byte* page = sequence.Page(g.layer, page_index);
    const int column = static_cast<int>(key % kKeyTile);
    TransposeKeys(page + layout.KOffset(g.layer, kv_head, token), layout.dtype, count, g.dim,
                  column, scratch.keys.data());
    const std::byte* v = page + layout.VOffset(g.layer, kv_head, token);
    float* to = scratch.values.data() + static_cast<int64_t>(column) * g.padded_dim;
    if (g.dim == g.padded_dim) {
      LoadKv(v, static_cast<int64_t>(count) * g.dim, layout.dtype, to);
    } else {
      for (int i = 0; i < count; ++i, to += g.padded_dim, v += layout.RowBytes(g.layer)) {
        LoadKv(v, g.dim, layout.dtype, to);
        std::fill(to + g.dim, to + g.padded_dim, 0.0f);
      }
    }
    key += count;
  }
}

void GatherTile(const AttentionGeometry& g, kv::KvSequence& sequence, int kv_head,
                std::span<const int32_t> tokens, TileScratch& scratch) {
  const kv::KvLayout& layout = sequence.layout();
  const std::byte* keys[kKeyTile];
  const std::byte* values[kKeyTile];
  const int count = static_cast<int>(tokens.size());
  for (int i = 0; i < count; ++i) {
    const std::byte* page = sequence.Page(g.layer, tokens[i] / kv::kPageTokens);
    const int row = tokens[i] % kv::kPageTokens;
    keys[i] = page + layout.KOffset(g.layer, kv_head, row);
    values[i] = page + layout.VOffset(g.layer, kv_head, row);
    // Rows lie anywhere; no hardware prefetcher finds them.
    for (int64_t at = 0; at < layout.RowBytes(g.layer); at += kCacheLine) {
      __builtin_prefetch(keys[i] + at);
      __builtin_prefetch(values[i] + at);
    }
  }
  GatherKeys(keys, layout.dtype, count, g.dim, scratch.keys.data());
  GatherValues(values, layout.dtype, count, g.dim, g.padded_dim, scratch.values.data());
}

}  // namespace smartgen::executor::cpu
