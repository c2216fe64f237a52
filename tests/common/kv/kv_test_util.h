// Small pools and sequences for the tests of this folder.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "common/kv/sequence.h"

namespace smartgen::kv {

// Two layers of unlike size: a mix-up of layers shows.
inline KvLayout SmallLayout(int64_t token_capacity = 1024) {
  return {.layers = {{.kv_heads = 3, .head_dim = 4}, {.kv_heads = 2, .head_dim = 8, .window = 64}},
          .dtype = DType::kBF16,
          .token_capacity = token_capacity};
}

inline std::unique_ptr<KvPool> MakePool(int64_t pages, const KvLayout& layout = SmallLayout()) {
  auto pool = KvPool::Create(layout, {.bytes = pages * layout.PageBytesTotal()});
  if (!pool.ok()) std::abort();
  return std::move(pool).value();
}

inline std::vector<int32_t> Tokens(int64_t count, int32_t first = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

inline void MarkAllLocal(KvSequence& sequence, int64_t tokens) {
  for (int layer = 0; layer < sequence.layout().num_layers(); ++layer) {
    sequence.MarkLocal(layer, 0, tokens);
  }
}

}  // namespace smartgen::kv
