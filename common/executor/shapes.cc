#include "common/executor/shapes.h"

namespace smartgen::executor {

kv::KvLayout LayoutOf(const model::ModelConfig& config, kv::DType dtype, int64_t token_capacity) {
  kv::KvLayout layout{.dtype = dtype, .token_capacity = token_capacity};
  for (const model::LayerConfig& l : config.layers) {
    layout.layers.push_back(
        {.kv_heads = l.num_kv_heads, .head_dim = l.head_dim, .window = l.window});
  }
  return layout;
}

std::vector<int64_t> HalfSplitOrder(int heads, int dim) {
  std::vector<int64_t> rows;
  rows.reserve(static_cast<size_t>(heads) * dim);
  for (int h = 0; h < heads; ++h) {
    for (int i = 0; i < dim; ++i) {
      const int from = i < dim / 2 ? 2 * i : 2 * (i - dim / 2) + 1;
      rows.push_back(static_cast<int64_t>(h) * dim + from);
    }
  }
  return rows;
}

}  // namespace smartgen::executor
