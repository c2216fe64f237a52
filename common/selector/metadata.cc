#include "common/selector/metadata.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "common/selector/dtype.h"

namespace smartgen::selector {
namespace {

using kv::kPageTokens;

// A unit of HATA or InfiniGen is `count` strips of 16 elements of `element` bytes, one a token.
struct Strips {
  int64_t count = 0;
  int64_t element = 0;
};

Strips StripsOf(const MetadataLayout& layout, int layer) {
  const MetadataLayout::Layer& l = layout.layers[layer];
  if (layout.kind == Kind::kHata) return {l.kv_heads, l.row};
  return {static_cast<int64_t>(l.kv_heads) * l.row, kv::DTypeBytes(layout.dtype)};
}

// Calls f(page, from, to) with the tokens [from, to) of each page that [begin, end) touches.
template <typename F>
void ForEachPage(int64_t begin, int64_t end, F f) {
  for (int64_t at = begin; at < end;) {
    const int64_t page = at / kPageTokens;
    const int64_t stop = std::min(end, (page + 1) * kPageTokens);
    f(page, at - page * kPageTokens, stop - page * kPageTokens);
    at = stop;
  }
}

// Calls f(byte offset in the unit, bytes) for the tokens [from, to) in wire order.
template <typename F>
void ForEachPiece(const Strips& strips, int64_t from, int64_t to, F f) {
  if (from == 0 && to == kPageTokens)
    return f(int64_t{0}, strips.count * kPageTokens * strips.element);
  for (int64_t s = 0; s < strips.count; ++s) {
    f((s * kPageTokens + from) * strips.element, (to - from) * strips.element);
  }
}

// Bounds that hold nothing: any key widens them.
void ClearBounds(std::byte* unit, int64_t heads, int64_t dim, kv::DType dtype) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const int64_t bytes = kv::DTypeBytes(dtype);
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t c = 0; c < dim; ++c) {
      StoreElement(kInfinity, dtype, unit + (2 * h * dim + c) * bytes);
      StoreElement(-kInfinity, dtype, unit + ((2 * h + 1) * dim + c) * bytes);
    }
  }
}

void WidenBounds(std::byte* unit, const std::byte* other, int64_t heads, int64_t dim,
                 kv::DType dtype) {
  const int64_t bytes = kv::DTypeBytes(dtype);
  for (int64_t row = 0; row < 2 * heads; ++row) {
    for (int64_t c = 0; c < dim; ++c) {
      const int64_t at = (row * dim + c) * bytes;
      const float mine = LoadElement(unit + at, dtype);
      const float theirs = LoadElement(other + at, dtype);
      if (row % 2 == 0 ? theirs < mine : theirs > mine) std::memcpy(unit + at, other + at, bytes);
    }
  }
}

absl::Status CheckChannels(const MetadataLayout::Layer& l, int layer,
                           std::span<const std::byte> bytes) {
  for (int h = 0; h < l.kv_heads; ++h) {
    int previous = -1;
    for (int c = 0; c < l.row; ++c) {
      uint16_t channel;
      std::memcpy(&channel, bytes.data() + 2 * (static_cast<size_t>(h) * l.row + c), 2);
      if (channel <= previous || channel >= l.head_dim) {
        return base::InvalidArgument(
            "selection metadata: layer {} head {}: want ascending channels below {}, got {} after "
            "{}",
            layer, h, l.head_dim, channel, previous);
      }
      previous = channel;
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view KindName(Kind kind) {
  switch (kind) {
    case Kind::kDense:
      return "dense";
    case Kind::kQuest:
      return "quest";
    case Kind::kHata:
      return "hata";
    case Kind::kInfiniGen:
      return "infinigen";
  }
  return "unknown";
}

absl::StatusOr<Kind> ParseKind(std::string_view name) {
  for (const Kind kind : {Kind::kDense, Kind::kQuest, Kind::kHata, Kind::kInfiniGen}) {
    if (name == KindName(kind)) return kind;
  }
  return base::InvalidArgument("selector: want dense, quest, hata or infinigen, got \"{}\"",
                               name.substr(0, 64));
}

int64_t MetadataLayout::HeadUnitBytes(int layer) const {
  const Layer& l = layers[layer];
  if (l.dense) return 0;
  switch (kind) {
    case Kind::kDense:
      return 0;
    case Kind::kQuest:
      return 2LL * l.head_dim * kv::DTypeBytes(dtype);
    case Kind::kHata:
      return static_cast<int64_t>(kPageTokens) * l.row;
    case Kind::kInfiniGen:
      return static_cast<int64_t>(kPageTokens) * l.row * kv::DTypeBytes(dtype);
  }
  return 0;
}

int64_t MetadataLayout::UnitBytes(int layer) const {
  return HeadUnitBytes(layer) * layers[layer].kv_heads;
}

int64_t MetadataLayout::RangeBytes(int layer, int64_t begin, int64_t end) const {
  if (begin >= end) return 0;
  if (kind != Kind::kQuest) return UnitBytes(layer) / kPageTokens * (end - begin);
  return UnitBytes(layer) * ((end - 1) / kPageTokens - begin / kPageTokens + 1);
}

int64_t MetadataLayout::HeaderBytes(int layer) const {
  const Layer& l = layers[layer];
  return kind == Kind::kInfiniGen && !l.dense ? 2LL * l.kv_heads * l.row : 0;
}

int64_t MetadataLayout::TotalBytes(int64_t begin, int64_t end) const {
  int64_t bytes = 0;
  for (int layer = 0; layer < num_layers(); ++layer) {
    bytes += HeaderBytes(layer) + RangeBytes(layer, begin, end);
  }
  return bytes;
}

MetadataStore::MetadataStore(const MetadataLayout* layout, int64_t token_capacity)
    : layout_(layout), token_capacity_(token_capacity), layers_(layout->layers.size()) {}

absl::Status MetadataStore::CheckRange(int layer, int64_t begin, int64_t end) const {
  if (layer < 0 || layer >= layout_->num_layers()) {
    return base::InvalidArgument("selection metadata: want a layer below {}, got {}",
                                 layout_->num_layers(), layer);
  }
  if (begin < 0 || begin > end) {
    return base::InvalidArgument("selection metadata: layer {}: [{}, {}) is no token range", layer,
                                 begin, end);
  }
  if (end > token_capacity_) {
    return base::OutOfRange("selection metadata: layer {}: room for {} tokens, got [{}, {})", layer,
                            token_capacity_, begin, end);
  }
  return absl::OkStatus();
}

int64_t MetadataStore::MissingFrom(const Layer& state, int64_t begin, int64_t end) {
  for (const Range& range : state.here) {
    if (range.begin > begin) break;
    if (range.end > begin) return std::min(range.end, end);
  }
  return begin;
}

void MetadataStore::Add(Layer& state, Range range) {
  std::vector<Range>& here = state.here;
  auto first =
      std::find_if(here.begin(), here.end(), [&](const Range& r) { return r.end >= range.begin; });
  auto last = first;
  for (; last != here.end() && last->begin <= range.end; ++last) {
    range.begin = std::min(range.begin, last->begin);
    range.end = std::max(range.end, last->end);
  }
  if (first == last) {
    here.insert(first, range);
  } else {
    *first = range;
    here.erase(first + 1, last);
  }
}

void MetadataStore::Grow(int layer, Layer& state, int64_t units) {
  const int64_t unit_bytes = layout_->UnitBytes(layer);
  const auto old_size = static_cast<int64_t>(state.units.size());
  if (units * unit_bytes <= old_size) return;
  state.units.resize(static_cast<size_t>(units * unit_bytes));
  if (layout_->kind != Kind::kQuest) return;
  const MetadataLayout::Layer& l = layout_->layers[layer];
  for (int64_t at = old_size; at < units * unit_bytes; at += unit_bytes) {
    ClearBounds(state.units.data() + at, l.kv_heads, l.head_dim, layout_->dtype);
  }
}

absl::Status MetadataStore::Put(int layer, int64_t begin, int64_t end,
                                std::span<const std::byte> bytes) {
  RETURN_IF_ERROR(CheckRange(layer, begin, end));
  const int64_t want = layout_->RangeBytes(layer, begin, end);
  if (static_cast<int64_t>(bytes.size()) != want) {
    return base::InvalidArgument(
        "selection metadata: layer {} tokens [{}, {}): want {} bytes, got {}", layer, begin, end,
        want, bytes.size());
  }
  if (want == 0) return absl::OkStatus();
  Layer& state = layers_[layer];
  base::MutexLock lock(state.mutex);
  if (MissingFrom(state, begin, end) == end) return absl::OkStatus();
  Grow(layer, state, (end + kPageTokens - 1) / kPageTokens);
  const MetadataLayout::Layer& l = layout_->layers[layer];
  const int64_t unit_bytes = layout_->UnitBytes(layer);
  const Strips strips = StripsOf(*layout_, layer);
  const std::byte* from_wire = bytes.data();
  std::byte* const units = state.units.data();
  ForEachPage(begin, end, [&](int64_t page, int64_t from, int64_t to) {
    std::byte* unit = units + page * unit_bytes;
    if (layout_->kind == Kind::kQuest) {
      WidenBounds(unit, from_wire, l.kv_heads, l.head_dim, layout_->dtype);
      from_wire += unit_bytes;
      return;
    }
    ForEachPiece(strips, from, to, [&](int64_t offset, int64_t size) {
      std::memcpy(unit + offset, from_wire, static_cast<size_t>(size));
      from_wire += size;
    });
  });
  Add(state, {begin, end});
  return absl::OkStatus();
}

absl::Status MetadataStore::CheckHere(const Layer& state, int layer, int64_t begin,
                                      int64_t end) const {
  if (layout_->UnitBytes(layer) == 0) return absl::OkStatus();
  if (static_cast<int64_t>(state.header.size()) != layout_->HeaderBytes(layer)) {
    return base::FailedPrecondition("selection metadata: layer {}: the header is missing", layer);
  }
  const int64_t missing = MissingFrom(state, begin, end);
  if (missing < end) {
    return base::FailedPrecondition(
        "selection metadata: layer {}: want tokens [{}, {}), {} is missing", layer, begin, end,
        missing);
  }
  return absl::OkStatus();
}

absl::Status MetadataStore::Export(int layer, int64_t begin, int64_t end,
                                   std::vector<std::byte>& out) const {
  RETURN_IF_ERROR(CheckRange(layer, begin, end));
  return Read(layer, begin, end, [&](const View& view) {
    const int64_t unit_bytes = layout_->UnitBytes(layer);
    if (unit_bytes == 0) return;
    const Strips strips = StripsOf(*layout_, layer);
    ForEachPage(begin, end, [&](int64_t page, int64_t from, int64_t to) {
      const std::byte* unit = view.units.data() + page * unit_bytes;
      if (layout_->kind == Kind::kQuest) {
        out.insert(out.end(), unit, unit + unit_bytes);
        return;
      }
      ForEachPiece(strips, from, to, [&](int64_t offset, int64_t size) {
        out.insert(out.end(), unit + offset, unit + offset + size);
      });
    });
  });
}

absl::Status MetadataStore::PutHeader(int layer, std::span<const std::byte> bytes) {
  RETURN_IF_ERROR(CheckRange(layer, 0, 0));
  const int64_t want = layout_->HeaderBytes(layer);
  if (static_cast<int64_t>(bytes.size()) != want) {
    return base::InvalidArgument("selection metadata: layer {} header: want {} bytes, got {}",
                                 layer, want, bytes.size());
  }
  if (want == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckChannels(layout_->layers[layer], layer, bytes));
  Layer& state = layers_[layer];
  base::MutexLock lock(state.mutex);
  if (state.header.empty()) {
    state.header.assign(bytes.begin(), bytes.end());
  } else if (!std::equal(bytes.begin(), bytes.end(), state.header.begin())) {
    return base::FailedPrecondition(
        "selection metadata: layer {}: other channels were chosen before for this sequence", layer);
  }
  return absl::OkStatus();
}

std::vector<std::byte> MetadataStore::Header(int layer) const {
  const Layer& state = layers_[layer];
  base::MutexLock lock(state.mutex);
  return state.header;
}

bool MetadataStore::Complete(int layer, int64_t begin, int64_t end) const {
  const Layer& state = layers_[layer];
  base::MutexLock lock(state.mutex);
  return CheckHere(state, layer, begin, end).ok();
}

int64_t MetadataStore::FirstMissing(int layer, int64_t begin, int64_t end) const {
  if (layout_->UnitBytes(layer) == 0) return end;
  const Layer& state = layers_[layer];
  base::MutexLock lock(state.mutex);
  if (static_cast<int64_t>(state.header.size()) != layout_->HeaderBytes(layer)) return begin;
  return MissingFrom(state, begin, end);
}

bool MetadataStore::Complete(int64_t begin, int64_t end) const {
  for (int layer = 0; layer < layout_->num_layers(); ++layer) {
    if (!Complete(layer, begin, end)) return false;
  }
  return true;
}

absl::Status MetadataStore::Read(int layer, int64_t begin, int64_t end,
                                 absl::FunctionRef<void(const View&)> use) const {
  const Layer& state = layers_[layer];
  base::MutexLock lock(state.mutex);
  RETURN_IF_ERROR(CheckHere(state, layer, begin, end));
  use({.units = state.units, .header = state.header});
  return absl::OkStatus();
}

}  // namespace smartgen::selector
