// Which KV entries a decode step needs (smartgen.md calls for Quest, HATA, InfiniGen and dense).
//
// A selector is made once per model and shared by all sequences. What it must know of a sequence's
// keys is in that sequence's MetadataStore:
//
//   ASSIGN_OR_RETURN(auto selector, KvSelector::Create(options, layout, query_heads));
//   MetadataStore store(&selector->metadata(), token_capacity);
//   selector->ChooseChannels(layer, prompt_queries, store);   // InfiniGen; nothing for the others
//   selector->Extend(layer, sequence, begin, end, store);     // when keys of [begin, end) are
//   final selector->Select(layer, store, queries, length, selection);
//
// The side that computes the prompt sends what Encode (or MetadataStore::Export) gives and the
// other side hands it to MetadataStore::Put; both select the same tokens from it, bit for bit.
//
// Immutable after construction; all methods may be called concurrently.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/kv/sequence.h"
#include "common/selector/matrix_file.h"
#include "common/selector/metadata.h"

namespace smartgen::selector {

struct Options {
  Kind kind = Kind::kInfiniGen;
  // At most this share of the visible tokens is selected (in (0, 1]; 1 is dense).
  double budget_share = 0.2;
  // With at most this many visible tokens a layer is dense: selecting costs more than it saves.
  int64_t dense_tokens = 512;
  // These first layers are dense, whatever the length, and have no metadata.
  int dense_layers = 2;
  // HATA and InfiniGen: so many of the newest tokens are always selected, within the budget (at
  // most half of it). Quest always takes the page of the newest token.
  int64_t recent_tokens = 16;

  // HATA: length of a hash code, a multiple of 64 up to 512.
  int hash_bits = 128;
  // HATA: for the random weights, when no trained ones are given. Both sides need the same.
  uint64_t hash_seed = 0x5147;

  // InfiniGen: keeps tokens whose score is within alpha of the greatest...
  float alpha = 4.0f;
  // ...where a score is q * k times this. 0: 1 / sqrt(head dim).
  float attention_scale = 0.0f;
  // InfiniGen: share of the key channels that scores are made from (in (0, 1]).
  double channel_share = 0.25;
};

// Per KV head and layer, made offline for one model; empty where there is none.
struct Parameters {
  HeadMatrices skew;          // InfiniGen; without it A is the identity (channels as they are)
  HeadMatrices hash_weights;  // HATA; without them W is random (locality-sensitive hashing)
};

// The answer for one layer of one sequence.
struct Selection {
  // All visible tokens [first, length) are attended to; `index` is empty.
  bool dense = false;
  int64_t first = 0;
  int64_t length = 0;
  int kv_heads = 0;
  int64_t k = 0;  // tokens a head
  // [kv_heads][k] token positions, ascending in each row.
  std::vector<int32_t> index;
  std::span<const int32_t> Row(int head) const {
    return std::span<const int32_t>(index).subspan(static_cast<size_t>(head * k),
                                                   static_cast<size_t>(k));
  }

  // Kept to save allocations from call to call.
  struct Scratch {
    std::vector<float> scores;
    std::vector<uint16_t> distances;
    std::vector<float> queries;
    std::vector<std::byte> codes;
    std::vector<int32_t> pages;
  } scratch;
};

// What Select decides from the lengths alone.
struct Extent {
  bool dense = false;
  int64_t first = 0;   // the first visible token: length - window, or 0
  int64_t length = 0;  // one past the newest
  int64_t budget = 0;  // tokens a head
  // Tokens [first, scored_end) compete by score, for which metadata is needed; the rest is always
  // selected.
  int64_t scored_end = 0;
  int64_t visible() const { return length - first; }
};

class KvSelector {
 public:
  // `query_heads`: per layer, a multiple of the layer's KV heads. InvalidArgument naming the option
  // or parameter that makes no sense for the layout. Whether the parameters belong to the model is
  // the caller's check (HeadMatrices::CheckModel).
  static absl::StatusOr<std::unique_ptr<KvSelector>> Create(const Options& options,
                                                            const kv::KvLayout& layout,
                                                            std::vector<int> query_heads,
                                                            const Parameters& parameters = {});
  virtual ~KvSelector() = default;
  KvSelector(const KvSelector&) = delete;
  KvSelector& operator=(const KvSelector&) = delete;

  const Options& options() const { return options_; }
  const MetadataLayout& metadata() const { return metadata_; }
  // A layer's selection is made from queries that its predecessor's input predicts (its own only
  // where there is no predecessor), so it is known a layer ahead.
  bool predicts() const { return options_.kind == Kind::kInfiniGen; }
  // Values of one token's queries in a layer: query heads times head dim.
  int64_t query_values(int layer) const {
    return static_cast<int64_t>(shapes_[layer].query_heads) * shapes_[layer].head_dim;
  }
  // Equal on both sides or metadata of one means nothing to the other: kind, options that shape
  // metadata or selection, and the parameters' values.
  uint64_t fingerprint() const { return fingerprint_; }

  // InfiniGen: chooses the layer's channels by the sums of |q A| over the prompt's queries
  // ([tokens][query heads][head dim], after RoPE; a sample or the first chunk will do) and puts
  // them into the store as its header. Once per layer and sequence, before the first Extend.
  // Nothing for the other kinds and for dense layers.
  virtual absl::Status ChooseChannels(int layer, std::span<const float> queries,
                                      MetadataStore& store) const;

  // Appends the metadata of tokens [begin, end), whose keys are final in the sequence, in the wire
  // format. `header` is the store's (MetadataStore::Header); FailedPrecondition without one where
  // the kind has one.
  absl::Status Encode(int layer, kv::KvSequence& sequence, int64_t begin, int64_t end,
                      std::span<const std::byte> header, std::vector<std::byte>& out) const;
  // Encode and Put.
  absl::Status Extend(int layer, kv::KvSequence& sequence, int64_t begin, int64_t end,
                      MetadataStore& store) const;

  // For a sequence of `length` tokens, the newest (the one whose queries these are) included. Both
  // sides of a transfer plan with it.
  Extent ExtentOf(int layer, int64_t length) const;
  // Whether Select will find the metadata that it needs (always where it will be dense).
  bool Ready(int layer, const MetadataStore& store, int64_t length) const;

  // The tokens that a step attends to. `queries` is [query heads][head dim]. Scores are summed over
  // the query heads of a group; every KV head gets the same number of tokens. Sliding windows:
  // nothing outside of the window is scored or selected.
  //   Quest: whole pages, max(3, budget / 16) of them: that of the newest token (and the page that
  //   a
  //     window cuts) always, then those with the greatest sum over channels of max(q*min, q*max).
  //   HATA: the newest tokens and those with the smallest Hamming distances.
  //   InfiniGen: the newest tokens and those with the greatest scores; how many is the mean over KV
  //     heads of how many are above max - alpha (scores averaged over the group), capped by the
  //     budget.
  // Ties go to the lower position. The newest tokens (from ExtentOf().scored_end on) need no
  // metadata. So queries may as well be a prediction made before the newest token's keys are known
  // (InfiniGen's, of this layer from the input of the one before): the row holds that token too.
  // FailedPrecondition if metadata is missing, InvalidArgument for sizes that do not fit.
  absl::Status Select(int layer, const MetadataStore& store, std::span<const float> queries,
                      int64_t length, Selection& out) const;

 protected:
  struct LayerShape {
    int kv_heads = 0;
    int query_heads = 0;
    int head_dim = 0;
    int window = 0;
    int group() const { return query_heads / kv_heads; }
  };

  KvSelector(const Options& options, const kv::KvLayout& layout, std::vector<int> query_heads);

  const LayerShape& shape(int layer) const { return shapes_[layer]; }
  kv::DType dtype() const { return metadata_.dtype; }
  void MixIntoFingerprint(uint64_t value);

  // Tokens [from, to) of a page, `keys` as stored (head h's rows begin at h * head_stride bytes,
  // token `from` first): writes the range's part of the unit to `out`.
  virtual void EncodePage(int layer, const std::byte* keys, int64_t head_stride, int tokens,
                          std::span<const std::byte> header, std::byte* out) const = 0;
  // Fills out.k and out.index; what it reads is here and `extent` is not dense.
  virtual void Choose(int layer, const MetadataStore::View& view, std::span<const float> queries,
                      const Extent& extent, Selection& out) const = 0;

  MetadataLayout metadata_;

 private:
  absl::Status CheckRange(int layer, const kv::KvSequence& sequence, int64_t begin,
                          int64_t end) const;

  Options options_;
  std::vector<LayerShape> shapes_;
  uint64_t fingerprint_ = 0;
};

}  // namespace smartgen::selector
