// Quest and dense.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "common/selector/dtype.h"
#include "common/selector/kernels.h"
#include "common/selector/kinds.h"
#include "common/selector/top_k.h"

namespace smartgen::selector {

using kv::kPageTokens;

DenseSelector::DenseSelector(const Options& options, const kv::KvLayout& layout,
                             std::vector<int> query_heads)
    : KvSelector(options, layout, std::move(query_heads)) {}

QuestSelector::QuestSelector(const Options& options, const kv::KvLayout& layout,
                             std::vector<int> query_heads)
    : KvSelector(options, layout, std::move(query_heads)) {}

void QuestSelector::EncodePage(int layer, const std::byte* keys, int64_t head_stride, int tokens,
                               std::span<const std::byte>, std::byte* out) const {
  const int dim = shape(layer).head_dim;
  const int bytes = kv::DTypeBytes(dtype());
  const int64_t row = static_cast<int64_t>(dim) * bytes;
  std::vector<float> values(3 * static_cast<size_t>(dim));
  float* key = values.data();
  float* low = key + dim;
  float* high = low + dim;
  for (int h = 0; h < shape(layer).kv_heads; ++h) {
    const std::byte* rows = keys + h * head_stride;
    LoadRow(rows, dim, dtype(), low);
    std::copy(low, low + dim, high);
    for (int t = 1; t < tokens; ++t) {
      LoadRow(rows + t * row, dim, dtype(), key);
      for (int c = 0; c < dim; ++c) {
        low[c] = key[c] < low[c] ? key[c] : low[c];
        high[c] = key[c] > high[c] ? key[c] : high[c];
      }
    }
    for (int c = 0; c < dim; ++c) {
      StoreElement(low[c], dtype(), out + 2 * h * row + c * bytes);
      StoreElement(high[c], dtype(), out + (2 * h + 1) * row + c * bytes);
    }
  }
}

void QuestSelector::Choose(int layer, const MetadataStore::View& view,
                           std::span<const float> queries, const Extent& extent,
                           Selection& out) const {
  const LayerShape& s = shape(layer);
  const int padded = PadTo16(s.head_dim);
  // Pages that compete: all but that of the newest token and one that the window cuts.
  const int64_t first_page = (extent.first + kPageTokens - 1) / kPageTokens;
  const int64_t competing = extent.scored_end / kPageTokens - first_page;
  const int64_t cut = first_page * kPageTokens - extent.first;
  const int64_t chosen = (extent.budget - cut - (extent.length - extent.scored_end)) / kPageTokens;
  const int64_t stride = metadata_.UnitBytes(layer);

  out.k = extent.budget;
  out.index.resize(static_cast<size_t>(s.kv_heads * out.k));
  out.scratch.scores.resize(static_cast<size_t>(competing));
  out.scratch.pages.resize(static_cast<size_t>(chosen));
  for (int h = 0; h < s.kv_heads; ++h) {
    out.scratch.queries.assign(2 * static_cast<size_t>(padded), 0.0f);
    float* positive = out.scratch.queries.data();
    float* negative = positive + padded;
    for (int g = 0; g < s.group(); ++g) {
      const float* q = queries.data() + static_cast<int64_t>(h * s.group() + g) * s.head_dim;
      for (int c = 0; c < s.head_dim; ++c) {
        positive[c] += q[c] > 0 ? q[c] : 0.0f;
        negative[c] += q[c] < 0 ? q[c] : 0.0f;
      }
    }
    const std::byte* units =
        view.units.data() + first_page * stride + h * metadata_.HeadUnitBytes(layer);
    QuestScores(units, stride, competing, dtype(), s.head_dim, positive, negative,
                out.scratch.scores.data());
    LargestK(out.scratch.scores, static_cast<int32_t>(first_page), out.scratch.pages);

    int32_t* row = out.index.data() + h * out.k;
    const auto append = [&row](int64_t begin, int64_t end) {
      std::iota(row, row + (end - begin), static_cast<int32_t>(begin));
      row += end - begin;
    };
    append(extent.first, extent.first + cut);
    for (const int64_t page : out.scratch.pages) {
      append(page * kPageTokens, (page + 1) * kPageTokens);
    }
    append(extent.scored_end, extent.length);
  }
}

}  // namespace smartgen::selector
