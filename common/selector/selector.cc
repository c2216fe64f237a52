#include "common/selector/selector.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

#include "common/base/hash.h"
#include "common/selector/kernels.h"
#include "common/selector/kinds.h"

namespace smartgen::selector {
namespace {

using kv::kPageTokens;

constexpr int kMaxGroup = kMaxQueryCodes;  // query heads a KV head
constexpr int kMaxHashBits = 512;
static_assert(kMaxGroup * kMaxHashBits <= 65535, "a sum of distances fits 16 bits");
constexpr int64_t kQuestMinPages = 3;

absl::Status CheckOptions(const Options& o) {
  if (!(o.budget_share > 0 && o.budget_share <= 1)) {
    return base::InvalidArgument("selector budget_share: want more than 0 and at most 1, got {}",
                                 o.budget_share);
  }
  if (o.dense_tokens < 0 || o.dense_layers < 0 || o.recent_tokens < 1) {
    return base::InvalidArgument(
        "selector: want dense_tokens >= 0, dense_layers >= 0, recent_tokens >= 1, got {}, {}, {}",
        o.dense_tokens, o.dense_layers, o.recent_tokens);
  }
  if (o.kind == Kind::kHata &&
      (o.hash_bits < 64 || o.hash_bits > kMaxHashBits || o.hash_bits % 64 != 0)) {
    return base::InvalidArgument("selector hash_bits: want a multiple of 64 up to {}, got {}",
                                 kMaxHashBits, o.hash_bits);
  }
  if (o.kind != Kind::kInfiniGen) return absl::OkStatus();
  if (!(o.channel_share > 0 && o.channel_share <= 1)) {
    return base::InvalidArgument("selector channel_share: want more than 0 and at most 1, got {}",
                                 o.channel_share);
  }
  if (!(std::isfinite(o.alpha) && o.alpha > 0) ||
      !(std::isfinite(o.attention_scale) && o.attention_scale >= 0)) {
    return base::InvalidArgument(
        "selector: want a finite alpha > 0 and attention_scale >= 0, got {} and {}", o.alpha,
        o.attention_scale);
  }
  return absl::OkStatus();
}

absl::Status CheckQueryHeads(const kv::KvLayout& layout, const std::vector<int>& query_heads) {
  if (static_cast<int>(query_heads.size()) != layout.num_layers()) {
    return base::InvalidArgument("selector: want query heads of {} layers, got {}",
                                 layout.num_layers(), query_heads.size());
  }
  for (int i = 0; i < layout.num_layers(); ++i) {
    const int kv_heads = layout.layers[i].kv_heads;
    if (query_heads[i] <= 0 || query_heads[i] % kv_heads != 0 ||
        query_heads[i] / kv_heads > kMaxGroup) {
      return base::InvalidArgument(
          "selector: layer {}: want a multiple of {} KV heads up to {} query heads, got {}", i,
          kv_heads, kv_heads * kMaxGroup, query_heads[i]);
    }
  }
  return absl::OkStatus();
}

int RowElements(const Options& options, int head_dim) {
  if (options.kind == Kind::kHata) return options.hash_bits / 8;
  if (options.kind != Kind::kInfiniGen) return 0;
  return std::clamp(static_cast<int>(std::lround(head_dim * options.channel_share)), 1, head_dim);
}

uint64_t HashMatrices(const HeadMatrices& matrices) {
  base::Hasher64 hasher;
  for (const HeadMatrices::Layer& layer : matrices.layers) {
    hasher.Update(std::as_bytes(std::span<const float>(layer.values)));
  }
  return hasher.Digest();
}

}  // namespace

KvSelector::KvSelector(const Options& options, const kv::KvLayout& layout,
                       std::vector<int> query_heads)
    : options_(options) {
  metadata_.kind = options.kind;
  metadata_.dtype = layout.dtype;
  for (int i = 0; i < layout.num_layers(); ++i) {
    const kv::LayerLayout& l = layout.layers[i];
    shapes_.push_back({.kv_heads = l.kv_heads,
                       .query_heads = query_heads[i],
                       .head_dim = l.head_dim,
                       .window = l.window});
    metadata_.layers.push_back({.kv_heads = l.kv_heads,
                                .head_dim = l.head_dim,
                                .row = RowElements(options, l.head_dim),
                                .dense = options.kind == Kind::kDense || i < options.dense_layers});
  }
  const auto bits = [](auto x) { return std::bit_cast<uint64_t>(static_cast<double>(x)); };
  for (const uint64_t value :
       {static_cast<uint64_t>(options.kind), static_cast<uint64_t>(layout.dtype),
        bits(options.budget_share), static_cast<uint64_t>(options.dense_tokens),
        static_cast<uint64_t>(options.dense_layers), static_cast<uint64_t>(options.recent_tokens),
        static_cast<uint64_t>(options.hash_bits), options.hash_seed, bits(options.alpha),
        bits(options.attention_scale), bits(options.channel_share)}) {
    MixIntoFingerprint(value);
  }
}

void KvSelector::MixIntoFingerprint(uint64_t value) {
  const std::array<uint64_t, 2> pair = {fingerprint_, value};
  fingerprint_ = base::Hash64(std::as_bytes(std::span<const uint64_t>(pair)));
}

absl::StatusOr<std::unique_ptr<KvSelector>> KvSelector::Create(const Options& options,
                                                               const kv::KvLayout& layout,
                                                               std::vector<int> query_heads,
                                                               const Parameters& parameters) {
  RETURN_IF_ERROR(layout.Check());
  RETURN_IF_ERROR(CheckOptions(options));
  RETURN_IF_ERROR(CheckQueryHeads(layout, query_heads));
  std::unique_ptr<KvSelector> selector;
  const HeadMatrices* used = nullptr;
  switch (options.kind) {
    case Kind::kDense:
      selector = std::make_unique<DenseSelector>(options, layout, std::move(query_heads));
      break;
    case Kind::kQuest:
      selector = std::make_unique<QuestSelector>(options, layout, std::move(query_heads));
      break;
    case Kind::kHata:
      used = &parameters.hash_weights;
      break;
    case Kind::kInfiniGen:
      used = &parameters.skew;
      break;
  }
  if (used != nullptr && !used->empty()) {
    const auto want =
        options.kind == Kind::kHata ? HeadMatrices::Purpose::kHash : HeadMatrices::Purpose::kSkew;
    if (used->purpose != want) {
      return base::InvalidArgument("selector {}: want matrices of purpose {}, got {}",
                                   KindName(options.kind), static_cast<int>(want),
                                   static_cast<int>(used->purpose));
    }
    RETURN_IF_ERROR(used->CheckShapes(layout, options.dense_layers, options.hash_bits));
  }
  if (options.kind == Kind::kHata) {
    selector = std::make_unique<HataSelector>(options, layout, std::move(query_heads), *used);
  } else if (options.kind == Kind::kInfiniGen) {
    selector = std::make_unique<InfiniGenSelector>(options, layout, std::move(query_heads), *used);
  }
  if (used != nullptr && !used->empty()) selector->MixIntoFingerprint(HashMatrices(*used));
  return selector;
}

absl::Status KvSelector::ChooseChannels(int, std::span<const float>, MetadataStore&) const {
  return absl::OkStatus();
}

absl::Status KvSelector::CheckRange(int layer, const kv::KvSequence& sequence, int64_t begin,
                                    int64_t end) const {
  if (layer < 0 || layer >= metadata_.num_layers()) {
    return base::InvalidArgument("selector: want a layer below {}, got {}", metadata_.num_layers(),
                                 layer);
  }
  const kv::KvLayout& layout = sequence.layout();
  const LayerShape& s = shapes_[layer];
  if (layout.num_layers() != metadata_.num_layers() || layout.dtype != metadata_.dtype ||
      layout.layers[layer].kv_heads != s.kv_heads || layout.layers[layer].head_dim != s.head_dim) {
    return base::InvalidArgument("selector: layer {}: the sequence's KV layout is another one",
                                 layer);
  }
  if (begin < 0 || begin > end || end > sequence.capacity()) {
    return base::InvalidArgument("selector: layer {}: want a token range within {}, got [{}, {})",
                                 layer, sequence.capacity(), begin, end);
  }
  return absl::OkStatus();
}

absl::Status KvSelector::Encode(int layer, kv::KvSequence& sequence, int64_t begin, int64_t end,
                                std::span<const std::byte> header,
                                std::vector<std::byte>& out) const {
  RETURN_IF_ERROR(CheckRange(layer, sequence, begin, end));
  if (metadata_.UnitBytes(layer) == 0) return absl::OkStatus();
  if (static_cast<int64_t>(header.size()) != metadata_.HeaderBytes(layer)) {
    return base::FailedPrecondition(
        "selector {}: layer {}: want a header of {} bytes (choose channels first), got {}",
        KindName(options_.kind), layer, metadata_.HeaderBytes(layer), header.size());
  }
  const kv::KvLayout& layout = sequence.layout();
  const int64_t head_stride = kPageTokens * layout.RowBytes(layer);
  size_t at = out.size();
  out.resize(at + static_cast<size_t>(metadata_.RangeBytes(layer, begin, end)));
  for (int64_t token = begin; token < end;) {
    const int64_t page = token / kPageTokens;
    const int64_t stop = std::min(end, (page + 1) * kPageTokens);
    const std::byte* keys = sequence.Page(layer, page) +
                            layout.KOffset(layer, 0, static_cast<int>(token % kPageTokens));
    EncodePage(layer, keys, head_stride, static_cast<int>(stop - token), header, out.data() + at);
    at += static_cast<size_t>(metadata_.RangeBytes(layer, token, stop));
    token = stop;
  }
  return absl::OkStatus();
}

absl::Status KvSelector::Extend(int layer, kv::KvSequence& sequence, int64_t begin, int64_t end,
                                MetadataStore& store) const {
  RETURN_IF_ERROR(CheckRange(layer, sequence, begin, end));
  std::vector<std::byte> bytes;
  RETURN_IF_ERROR(Encode(layer, sequence, begin, end, store.Header(layer), bytes));
  return store.Put(layer, begin, end, bytes);
}

Extent KvSelector::ExtentOf(int layer, int64_t length) const {
  const int window = shapes_[layer].window;
  Extent e{.length = length};
  e.first = window > 0 ? std::max<int64_t>(0, length - window) : 0;
  e.scored_end = e.first;
  e.budget = e.visible();
  e.dense = metadata_.layers[layer].dense || e.visible() <= options_.dense_tokens;
  if (e.dense) return e;
  // The tiny addend: 0.2 * 5 is 1, not 0.99...
  const auto budget = std::max<int64_t>(
      1, static_cast<int64_t>(options_.budget_share * static_cast<double>(e.visible()) + 1e-6));
  if (budget >= e.visible()) {
    e.dense = true;
  } else if (options_.kind == Kind::kQuest) {
    const int64_t newest_page = (length - 1) / kPageTokens;
    const int64_t pages = std::max(kQuestMinPages, budget / kPageTokens);
    e.dense = pages >= newest_page - e.first / kPageTokens + 1;
    if (e.dense) return e;
    const int64_t cut = (kPageTokens - e.first % kPageTokens) % kPageTokens;
    e.scored_end = newest_page * kPageTokens;
    e.budget = (pages - 1 - (cut > 0 ? 1 : 0)) * kPageTokens + cut + (length - e.scored_end);
  } else {
    e.budget = budget;
    const int64_t most = std::max<int64_t>(1, budget / 2);
    e.scored_end = length - std::min(options_.recent_tokens, most);
  }
  return e;
}

bool KvSelector::Ready(int layer, const MetadataStore& store, int64_t length) const {
  const Extent e = ExtentOf(layer, length);
  return e.dense || store.Complete(layer, e.first, e.scored_end);
}

absl::Status KvSelector::Select(int layer, const MetadataStore& store,
                                std::span<const float> queries, int64_t length,
                                Selection& out) const {
  if (layer < 0 || layer >= metadata_.num_layers() || length < 1 ||
      length > store.token_capacity()) {
    return base::InvalidArgument(
        "selector: want a layer below {} and 1 to {} tokens, got {} and {}", metadata_.num_layers(),
        store.token_capacity(), layer, length);
  }
  const LayerShape& s = shapes_[layer];
  const int64_t want = static_cast<int64_t>(s.query_heads) * s.head_dim;
  if (static_cast<int64_t>(queries.size()) != want) {
    return base::InvalidArgument("selector: layer {}: want {} query values, got {}", layer, want,
                                 queries.size());
  }
  const Extent e = ExtentOf(layer, length);
  out.dense = e.dense;
  out.first = e.first;
  out.length = length;
  out.kv_heads = s.kv_heads;
  out.k = e.visible();
  out.index.clear();
  if (e.dense) return absl::OkStatus();
  return store.Read(layer, e.first, e.scored_end,
                    [&](const MetadataStore::View& view) { Choose(layer, view, queries, e, out); });
}

}  // namespace smartgen::selector
