// What a selector must know about the keys of a sequence, per layer: its *metadata*.
//
// Metadata is built from keys (KvSelector::Encode), travels as plain bytes and is kept in a
// MetadataStore, which does not care whether the bytes were made here or received. It comes in
// units: a unit is what belongs to one KV page (16 tokens at absolute positions) of one layer.
//
//   Quest      [kv head][min, max][channel], KV dtype: bounds of the page's keys, channel by
//   channel HATA       [kv head][token of the page][bits / 8]: bit i of a code is bit i % 8 of byte
//   i / 8 InfiniGen  [kv head][chosen channel][token of the page], KV dtype, after the skew
//
// On the wire a token range [begin, end) of a layer is, for each page that it touches in ascending
// order, the unit's part that belongs to these tokens: the same nesting with the other tokens left
// out, so that a whole page is the unit as it lies in memory. For Quest it is the bounds of the
// range's tokens in the page; the store widens its own bounds by them. Little-endian throughout.
//
// InfiniGen also has a header per layer: which channels were chosen for this request, uint16,
// [kv head][number of channels], ascending in each head. The other kinds' headers are empty.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/kv/layout.h"

namespace smartgen::selector {

enum class Kind : uint8_t { kDense = 0, kQuest = 1, kHata = 2, kInfiniGen = 3 };
std::string_view KindName(Kind kind);  // "dense", "quest", "hata", "infinigen"
absl::StatusOr<Kind> ParseKind(std::string_view name);

// Sizes; everything follows from the KV layout and the selector's options. Made by KvSelector.
struct MetadataLayout {
  struct Layer {
    int kv_heads = 0;
    int head_dim = 0;
    // Of one KV head and token, in elements: HATA bytes of a code, InfiniGen chosen channels.
    // Quest: 0. A layer that is always dense has no metadata.
    int row = 0;
    bool dense = false;
  };
  Kind kind = Kind::kDense;
  kv::DType dtype = kv::DType::kBF16;
  std::vector<Layer> layers;

  int num_layers() const { return static_cast<int>(layers.size()); }
  int64_t HeadUnitBytes(int layer) const;  // one KV head's part of a unit
  int64_t UnitBytes(int layer) const;      // 0: no metadata
  // Of tokens [begin, end) on the wire. A Quest page that two ranges touch is sent with both.
  int64_t RangeBytes(int layer, int64_t begin, int64_t end) const;
  int64_t HeaderBytes(int layer) const;
  // Of tokens [begin, end), headers included, all layers.
  int64_t TotalBytes(int64_t begin, int64_t end) const;
};

// The metadata of one sequence. Thread-safe; one lock a layer, held while a unit is copied or
// scored. What is complete never changes, except that Quest's bounds of a page grow with its later
// tokens.
class MetadataStore {
 public:
  // At most `token_capacity` tokens; memory grows with what is put. The layout must outlive it.
  MetadataStore(const MetadataLayout* layout, int64_t token_capacity);

  // Takes tokens [begin, end) of a layer in the wire format. Ranges may come in any order and may
  // overlap; what is here already is left alone, so a repeated range is harmless. InvalidArgument
  // for sizes that do not fit the layout, OutOfRange beyond the capacity; nothing is changed then.
  absl::Status Put(int layer, int64_t begin, int64_t end, std::span<const std::byte> bytes);
  // Appends the wire format of tokens [begin, end) to `out`. FailedPrecondition if some of it is
  // missing. Quest: the bounds of all tokens known of each page (never narrower than asked for).
  absl::Status Export(int layer, int64_t begin, int64_t end, std::vector<std::byte>& out) const;

  // The layer's header. A second, different one is refused: units depend on it.
  absl::Status PutHeader(int layer, std::span<const std::byte> bytes);
  // Empty as long as there is none.
  std::vector<std::byte> Header(int layer) const;

  // Header and tokens [begin, end) are here.
  bool Complete(int layer, int64_t begin, int64_t end) const;
  // The first token of [begin, end) whose metadata is missing; end if all is here.
  int64_t FirstMissing(int layer, int64_t begin, int64_t end) const;
  // All layers.
  bool Complete(int64_t begin, int64_t end) const;

  struct View {
    std::span<const std::byte> units;  // unit p belongs to tokens [16 p, 16 p + 16)
    std::span<const std::byte> header;
  };
  // Calls `use` under the layer's lock if header and tokens [begin, end) are here, else
  // FailedPrecondition that says what is missing.
  absl::Status Read(int layer, int64_t begin, int64_t end,
                    absl::FunctionRef<void(const View&)> use) const;

  const MetadataLayout& layout() const { return *layout_; }
  int64_t token_capacity() const { return token_capacity_; }

 private:
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
  };
  struct Layer {
    mutable base::Mutex mutex;
    std::vector<std::byte> units ABSL_GUARDED_BY(mutex);
    std::vector<std::byte> header ABSL_GUARDED_BY(mutex);
    std::vector<Range> here ABSL_GUARDED_BY(mutex);  // disjoint, not adjacent, ascending
  };

  absl::Status CheckRange(int layer, int64_t begin, int64_t end) const;
  static int64_t MissingFrom(const Layer& state, int64_t begin, int64_t end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mutex);
  static void Add(Layer& state, Range range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mutex);
  absl::Status CheckHere(const Layer& state, int layer, int64_t begin, int64_t end) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mutex);
  void Grow(int layer, Layer& state, int64_t units) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mutex);

  const MetadataLayout* layout_;
  int64_t token_capacity_;
  std::deque<Layer> layers_;  // a mutex does not move
};

}  // namespace smartgen::selector
