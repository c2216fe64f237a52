#include <algorithm>
#include <numeric>
#include <utility>

#include "common/selector/dtype.h"
#include "common/selector/kernels.h"
#include "common/selector/kinds.h"
#include "common/selector/random.h"
#include "common/selector/top_k.h"

namespace smartgen::selector {
namespace {

using kv::kPageTokens;

// Bit i of the code is whether value i is positive.
void PackSigns(const float* values, int bits, std::byte* code) {
  for (int byte = 0; byte < bits / 8; ++byte) {
    unsigned packed = 0;
    for (int i = 0; i < 8; ++i) packed |= (values[8 * byte + i] > 0 ? 1u : 0u) << i;
    code[byte] = static_cast<std::byte>(packed);
  }
}

}  // namespace

HataSelector::HataSelector(const Options& options, const kv::KvLayout& layout,
                           std::vector<int> query_heads, HeadMatrices trained)
    : KvSelector(options, layout, std::move(query_heads)), trained_(std::move(trained)) {
  if (!trained_.empty()) return;
  for (const kv::LayerLayout& layer : layout.layers) {
    std::vector<float>& weights = random_[layer.head_dim];
    if (!weights.empty()) continue;
    weights = RandomHashWeights(layer.head_dim, options.hash_bits, options.hash_seed);
  }
}

std::span<const float> HataSelector::Weights(int layer, int head) const {
  if (!trained_.empty()) return trained_.layers[layer].Matrix(head);
  return random_.at(shape(layer).head_dim);
}

void HataSelector::EncodePage(int layer, const std::byte* keys, int64_t head_stride, int tokens,
                              std::span<const std::byte>, std::byte* out) const {
  const int dim = shape(layer).head_dim;
  const int bits = options().hash_bits;
  const int64_t row = static_cast<int64_t>(dim) * kv::DTypeBytes(dtype());
  std::vector<float> values(static_cast<size_t>(tokens) * (dim + bits));
  float* rows = values.data();
  float* projected = rows + static_cast<int64_t>(tokens) * dim;
  for (int h = 0; h < shape(layer).kv_heads; ++h) {
    for (int t = 0; t < tokens; ++t) {
      LoadRow(keys + h * head_stride + t * row, dim, dtype(), rows + static_cast<int64_t>(t) * dim);
    }
    Project(rows, tokens, dim, Weights(layer, h).data(), bits, projected);
    for (int t = 0; t < tokens; ++t, out += bits / 8) {
      PackSigns(projected + static_cast<int64_t>(t) * bits, bits, out);
    }
  }
}

void HataSelector::Choose(int layer, const MetadataStore::View& view,
                          std::span<const float> queries, const Extent& extent,
                          Selection& out) const {
  const LayerShape& s = shape(layer);
  const int bits = options().hash_bits;
  const int64_t first_page = extent.first / kPageTokens;
  const int64_t pages = (extent.scored_end + kPageTokens - 1) / kPageTokens - first_page;
  const int64_t recent = extent.length - extent.scored_end;
  const int64_t stride = metadata_.UnitBytes(layer);
  Selection::Scratch& scratch = out.scratch;

  out.k = extent.budget;
  out.index.resize(static_cast<size_t>(s.kv_heads * out.k));
  scratch.distances.resize(static_cast<size_t>(pages * kPageTokens));
  scratch.queries.resize(static_cast<size_t>(s.group()) * bits);
  scratch.codes.resize(static_cast<size_t>(s.group()) * bits / 8);
  for (int h = 0; h < s.kv_heads; ++h) {
    Project(queries.data() + static_cast<int64_t>(h) * s.group() * s.head_dim, s.group(),
            s.head_dim, Weights(layer, h).data(), bits, scratch.queries.data());
    for (int g = 0; g < s.group(); ++g) {
      PackSigns(scratch.queries.data() + static_cast<int64_t>(g) * bits, bits,
                scratch.codes.data() + static_cast<int64_t>(g) * bits / 8);
    }
    const std::byte* units =
        view.units.data() + first_page * stride + h * metadata_.HeadUnitBytes(layer);
    HammingDistances(units, stride, pages, bits / 8, scratch.codes.data(), s.group(),
                     scratch.distances.data());
    const auto row = std::span<int32_t>(out.index).subspan(static_cast<size_t>(h * out.k),
                                                           static_cast<size_t>(out.k));
    const auto older = std::span<const uint16_t>(scratch.distances)
                           .subspan(static_cast<size_t>(extent.first % kPageTokens),
                                    static_cast<size_t>(extent.scored_end - extent.first));
    SmallestK(older, static_cast<int32_t>(extent.first),
              row.first(static_cast<size_t>(out.k - recent)));
    std::iota(row.end() - recent, row.end(), static_cast<int32_t>(extent.scored_end));
  }
}

}  // namespace smartgen::selector
