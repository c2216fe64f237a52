#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "common/selector/dtype.h"
#include "common/selector/kernels.h"
#include "common/selector/kinds.h"
#include "common/selector/top_k.h"

namespace smartgen::selector {
namespace {

using kv::kPageTokens;

int ChannelAt(std::span<const std::byte> header, int index) {
  uint16_t channel;
  std::memcpy(&channel, header.data() + 2 * static_cast<size_t>(index), sizeof(channel));
  return channel;
}

}  // namespace

InfiniGenSelector::InfiniGenSelector(const Options& options, const kv::KvLayout& layout,
                                     std::vector<int> query_heads, HeadMatrices skew)
    : KvSelector(options, layout, std::move(query_heads)), skew_(std::move(skew)) {}

absl::Status InfiniGenSelector::ChooseChannels(int layer, std::span<const float> queries,
                                               MetadataStore& store) const {
  if (metadata_.HeaderBytes(layer) == 0) return absl::OkStatus();
  const LayerShape& s = shape(layer);
  const int64_t token = static_cast<int64_t>(s.query_heads) * s.head_dim;
  if (queries.empty() || static_cast<int64_t>(queries.size()) % token != 0) {
    return base::InvalidArgument(
        "selector infinigen: layer {}: want a multiple of {} query values,"
        " got {}",
        layer, token, queries.size());
  }
  const int64_t tokens = static_cast<int64_t>(queries.size()) / token;
  const int dim = s.head_dim;
  const int padded = PadTo16(dim);
  const int group = s.group();
  std::vector<float> matrix(static_cast<size_t>(dim) * padded);
  std::vector<float> skewed(static_cast<size_t>(group) * padded);
  std::vector<uint16_t> chosen;
  for (int h = 0; h < s.kv_heads; ++h) {
    for (int i = 0; i < dim && !skew_.empty(); ++i) {
      const auto row = skew_.layers[layer].Matrix(h).subspan(static_cast<size_t>(i) * dim, dim);
      std::copy(row.begin(), row.end(), matrix.begin() + static_cast<int64_t>(i) * padded);
    }
    std::vector<double> sums(dim);
    for (int64_t t = 0; t < tokens; ++t) {
      const float* q = queries.data() + t * token + static_cast<int64_t>(h) * group * dim;
      int64_t stride = dim;
      if (!skew_.empty()) {
        Project(q, group, dim, matrix.data(), padded, skewed.data());
        q = skewed.data();
        stride = padded;
      }
      for (int g = 0; g < group; ++g) {
        for (int c = 0; c < dim; ++c) sums[c] += std::fabs(q[g * stride + c]);
      }
    }
    std::vector<float> scores(sums.begin(), sums.end());
    std::vector<int32_t> best(Channels(layer));
    LargestK(scores, 0, best);
    chosen.insert(chosen.end(), best.begin(), best.end());
  }
  return store.PutHeader(layer, std::as_bytes(std::span<const uint16_t>(chosen)));
}

void InfiniGenSelector::ProjectToChannels(int layer, int head, std::span<const std::byte> header,
                                          const float* x, int rows, int padded, float* out) const {
  const int dim = shape(layer).head_dim;
  const int count = Channels(layer);
  std::vector<int> channels(count);
  for (int c = 0; c < count; ++c) channels[c] = ChannelAt(header, head * count + c);
  if (skew_.empty()) {
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < count; ++c) {
        out[static_cast<int64_t>(r) * padded + c] = x[static_cast<int64_t>(r) * dim + channels[c]];
      }
    }
    return;
  }
  const std::span<const float> skew = skew_.layers[layer].Matrix(head);
  std::vector<float> matrix(static_cast<size_t>(dim) * padded);
  for (int i = 0; i < dim; ++i) {
    for (int c = 0; c < count; ++c) {
      matrix[static_cast<size_t>(i) * padded + c] =
          skew[static_cast<size_t>(i) * dim + channels[c]];
    }
  }
  Project(x, rows, dim, matrix.data(), padded, out);
}

void InfiniGenSelector::EncodePage(int layer, const std::byte* keys, int64_t head_stride,
                                   int tokens, std::span<const std::byte> header,
                                   std::byte* out) const {
  const int dim = shape(layer).head_dim;
  const int count = Channels(layer);
  const int padded = PadTo16(count);
  const int bytes = kv::DTypeBytes(dtype());
  const int64_t row = static_cast<int64_t>(dim) * bytes;
  std::vector<float> values(static_cast<size_t>(tokens) * (dim + padded));
  float* rows = values.data();
  float* partial = rows + static_cast<int64_t>(tokens) * dim;
  for (int h = 0; h < shape(layer).kv_heads; ++h) {
    for (int t = 0; t < tokens; ++t) {
      LoadRow(keys + h * head_stride + t * row, dim, dtype(), rows + static_cast<int64_t>(t) * dim);
    }
    ProjectToChannels(layer, h, header, rows, tokens, padded, partial);
    for (int c = 0; c < count; ++c) {
      for (int t = 0; t < tokens; ++t, out += bytes) {
        StoreElement(partial[static_cast<int64_t>(t) * padded + c], dtype(), out);
      }
    }
  }
}

void InfiniGenSelector::Choose(int layer, const MetadataStore::View& view,
                               std::span<const float> queries, const Extent& extent,
                               Selection& out) const {
  const LayerShape& s = shape(layer);
  const int dim = s.head_dim;
  const int padded = PadTo16(Channels(layer));
  const int64_t first_page = extent.first / kPageTokens;
  const int64_t pages = (extent.scored_end + kPageTokens - 1) / kPageTokens - first_page;
  const int64_t recent = extent.length - extent.scored_end;
  const int64_t stride = metadata_.UnitBytes(layer);
  Selection::Scratch& scratch = out.scratch;
  scratch.queries.assign(static_cast<size_t>(dim) + padded, 0.0f);
  scratch.scores.resize(static_cast<size_t>(s.kv_heads * pages * kPageTokens));
  const auto older_scores = [&](int h) {
    return std::span<const float>(scratch.scores)
        .subspan(static_cast<size_t>(h * pages * kPageTokens + extent.first % kPageTokens),
                 static_cast<size_t>(extent.scored_end - extent.first));
  };

  // A score summed over the group is the score of the summed query; so the threshold, meant for the
  // group's mean, is group times as wide.
  const float scale = options().attention_scale > 0 ? options().attention_scale
                                                    : 1.0f / std::sqrt(static_cast<float>(dim));
  const float margin = options().alpha * static_cast<float>(s.group()) / scale;
  int64_t above = 0;
  for (int h = 0; h < s.kv_heads; ++h) {
    float* sum = scratch.queries.data();
    std::fill(sum, sum + dim, 0.0f);
    for (int g = 0; g < s.group(); ++g) {
      const float* q = queries.data() + static_cast<int64_t>(h * s.group() + g) * dim;
      for (int c = 0; c < dim; ++c) sum[c] += q[c];
    }
    ProjectToChannels(layer, h, view.header, sum, 1, padded, sum + dim);
    const std::byte* units =
        view.units.data() + first_page * stride + h * metadata_.HeadUnitBytes(layer);
    PartialScores(units, stride, pages, dtype(), Channels(layer), sum + dim,
                  scratch.scores.data() + h * pages * kPageTokens);
    const std::span<const float> scores = older_scores(h);
    above += CountAbove(scores, Greatest(scores) - margin);
  }

  const int64_t mean = (above + s.kv_heads - 1) / s.kv_heads;
  const int64_t chosen = std::min(std::max<int64_t>(1, mean), extent.budget - recent);
  out.k = recent + chosen;
  out.index.resize(static_cast<size_t>(s.kv_heads * out.k));
  for (int h = 0; h < s.kv_heads; ++h) {
    const auto row = std::span<int32_t>(out.index).subspan(static_cast<size_t>(h * out.k),
                                                           static_cast<size_t>(out.k));
    LargestK(older_scores(h), static_cast<int32_t>(extent.first),
             row.first(static_cast<size_t>(chosen)));
    std::iota(row.end() - recent, row.end(), static_cast<int32_t>(extent.scored_end));
  }
}

}  // namespace smartgen::selector
