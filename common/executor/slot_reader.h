// How one slot of a step reads a layer: what it attends to, what of that must be asked for, and
// whether that has come.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/executor/executor.h"
#include "common/selector/split.h"

namespace smartgen::executor {

// Attention of one slot's queries to given tokens.
struct ReadJob {
  kv::KvSequence* sequence = nullptr;
  int layer = 0;
  int num_heads = 0;         // query heads
  const float* q = nullptr;  // [num_heads][dim]
  float* out = nullptr;      // the same shape; 0 where there are no tokens
  float* lse = nullptr;      // [num_heads], natural log; -infinity without tokens. Null: not wanted
  // Tokens [begin, end).
  int64_t begin = 0;
  int64_t end = 0;
  // Or, for each KV head, a row of k > 0 tokens.
  std::span<const int32_t> index;
  int64_t k = 0;
  // Some may not be here: each entry's residency is asked for before it is read.
  bool remote = false;
};

// Of a slot with `read`, which has been checked (InputChecks::Slot). Layers in ascending
// order; for each Begin, then Arrived until it is true, then Merge.
class SlotReader {
 public:
  // All must outlive it.
  SlotReader(const model::ModelConfig* config, const DecodeSlot* slot);

  // Whether the layer's selection is made from predicted queries.
  bool PredictsFrom(int layer) const;
  // What can be known of a layer before it begins: with predicted queries ([query heads][head dim])
  // its selection, which Begin will use, without (empty) whether it is dense; and with prefetch its
  // remote part is asked for.
  absl::Status Predict(int layer, std::span<const float> queries);

  // The token's KV in the layer is written and marked. q and out are [query heads][head dim]. True:
  // all visible tokens are read and here; the caller attends to them. False: what there is to do
  // was added to `jobs`.
  absl::StatusOr<bool> Begin(int layer, std::span<const float> q, float* out,
                             std::vector<ReadJob>& jobs);
  // True when nothing of the layer is on its way any more.
  absl::StatusOr<bool> Arrived();
  // When all jobs are done: puts the other side's part into `out`.
  void Merge();

 private:
  enum class Waiting { kNothing, kEntries, kAnswer };

  int64_t length() const { return slot_.position + 1; }
  // All tokens that the layer's window shows.
  void SelectAll(int layer, selector::Selection& out) const;
  absl::Status Choose(int layer, std::span<const float> q);
  // Entries of the selection that are not here; those of `slot_.position` count as here.
  void SplitAhead(int layer, const selector::Selection& selection);
  absl::Status FetchSplit(int layer);
  absl::StatusOr<bool> BeginShipped(int layer, std::span<const float> q,
                                    std::vector<ReadJob>& jobs);

  const model::ModelConfig& config_;
  const DecodeSlot& slot_;
  SlotRead& read_;
  const int layer_end_;
  int layer_ = -1;
  float* out_ = nullptr;
  Waiting waiting_ = Waiting::kNothing;
  selector::Selection selection_;
  selector::Selection ahead_;  // of layer ahead_layer_
  int ahead_layer_ = -1;
  selector::Split split_;
  std::vector<kv::HeadRange> ranges_;
  // Query shipping: natural log-sum-exps of what is here before the other side's part, of that part
  // and of what is here after it; the latter two's outputs.
  bool shipped_ = false;
  std::vector<float> lse_before_, lse_theirs_, lse_after_, theirs_, after_;
};

}  // namespace smartgen::executor
