#include "common/executor/slot_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/selector/merge.h"

namespace smartgen::executor {

SlotReader::SlotReader(const model::ModelConfig* config, const DecodeSlot* slot)
    : config_(*config),
      slot_(*slot),
      read_(*slot->read),
      layer_end_(slot->layer_end < 0 ? config->num_layers() : slot->layer_end) {}

bool SlotReader::PredictsFrom(int layer) const {
  return read_.selector != nullptr && read_.selector->predicts() && layer < layer_end_ &&
         !read_.selector->ExtentOf(layer, length()).dense;
}

void SlotReader::SelectAll(int layer, selector::Selection& out) const {
  const model::LayerConfig& l = config_.layers[layer];
  out.dense = true;
  out.first = l.window > 0 ? std::max<int64_t>(0, length() - l.window) : 0;
  out.length = length();
  out.kv_heads = l.num_kv_heads;
  out.k = out.length - out.first;
  out.index.clear();
}

absl::Status SlotReader::Predict(int layer, std::span<const float> queries) {
  if (layer >= layer_end_) return absl::OkStatus();
  const bool predicted = !queries.empty();
  if (predicted) {
    RETURN_IF_ERROR(read_.selector->Select(layer, *read_.metadata, queries, length(), ahead_));
    ahead_layer_ = layer;
  }
  if (!read_.prefetch || read_.remote == nullptr || read_.ship_end > 0) return absl::OkStatus();
  if (!predicted) {
    // Where all is read, queries need not be known.
    const bool all = read_.selector == nullptr || read_.selector->ExtentOf(layer, length()).dense;
    if (!all) return absl::OkStatus();
    SelectAll(layer, ahead_);
  }
  SplitAhead(layer, ahead_);
  return FetchSplit(layer);
}

void SlotReader::SplitAhead(int layer, const selector::Selection& selection) {
  selector::SplitByMask(
      selection,
      [&](int head, int64_t token) {
        // The newest token's KV is made in this step.
        return token == slot_.position || slot_.sequence->HeadLocal(layer, head, token);
      },
      split_);
}

absl::Status SlotReader::FetchSplit(int layer) {
  if (split_.remote_entries == 0) return absl::OkStatus();
  ranges_.clear();
  for (int head = 0; head < split_.kv_heads; ++head) {
    for (const selector::TokenRange& range : split_.RemoteRanges(head)) {
      ranges_.push_back({.head = head, .begin = range.begin, .end = range.end});
    }
  }
  return read_.remote->Fetch(layer, ranges_);
}

absl::Status SlotReader::Choose(int layer, std::span<const float> q) {
  if (read_.selector == nullptr) {
    SelectAll(layer, selection_);
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(
      read_.selector->Extend(layer, *slot_.sequence, slot_.position, length(), *read_.metadata));
  if (ahead_layer_ == layer) {
    std::swap(selection_, ahead_);
  } else {
    RETURN_IF_ERROR(read_.selector->Select(layer, *read_.metadata, q, length(), selection_));
  }
  if (read_.on_selection) read_.on_selection(layer, selection_);
  return absl::OkStatus();
}

absl::StatusOr<bool> SlotReader::Begin(int layer, std::span<const float> q, float* out,
                                       std::vector<ReadJob>& jobs) {
  layer_ = layer;
  out_ = out;
  waiting_ = Waiting::kNothing;
  shipped_ = false;
  RETURN_IF_ERROR(Choose(layer, q));
  read_.selected_entries += selection_.k * selection_.kv_heads;
  if (read_.ship_end > 0) return BeginShipped(layer, q, jobs);
  bool missing = false;
  if (read_.remote != nullptr) {
    RETURN_IF_ERROR(selector::SplitByMask(selection_, layer, *slot_.sequence, split_));
    read_.remote_entries += split_.remote_entries;
    missing = split_.remote_entries > 0;
    if (missing) {
      RETURN_IF_ERROR(FetchSplit(layer));
      waiting_ = Waiting::kEntries;
    }
  }
  if (selection_.dense && !missing) return true;
  ReadJob job{.sequence = slot_.sequence,
              .layer = layer,
              .num_heads = config_.layers[layer].num_heads,
              .q = q.data(),
              .out = out,
              .remote = missing};
  if (selection_.dense) {
    job.begin = selection_.first;
    job.end = selection_.length;
  } else {
    job.index = selection_.index;
    job.k = selection_.k;
  }
  jobs.push_back(job);
  return false;
}

absl::StatusOr<bool> SlotReader::BeginShipped(int layer, std::span<const float> q,
                                              std::vector<ReadJob>& jobs) {
  const int64_t first = selection_.first;
  const int64_t end = std::max(first, read_.ship_end);
  const int64_t w = slot_.sequence->FirstNotLocal(layer, first, end);
  if (w == end) return true;
  read_.remote_entries += (end - w) * selection_.kv_heads;
  RETURN_IF_ERROR(read_.remote->Attend(layer, w, end, q));
  waiting_ = Waiting::kAnswer;
  shipped_ = true;
  const model::LayerConfig& l = config_.layers[layer];
  for (auto* lse : {&lse_before_, &lse_theirs_, &lse_after_}) lse->assign(l.num_heads, 0.0f);
  for (auto* values : {&theirs_, &after_}) values->assign(q.size(), 0.0f);
  ReadJob job{.sequence = slot_.sequence,
              .layer = layer,
              .num_heads = l.num_heads,
              .q = q.data(),
              .out = out_,
              .lse = lse_before_.data(),
              .begin = first,
              .end = w};
  jobs.push_back(job);
  job.out = after_.data();
  job.lse = lse_after_.data();
  job.begin = end;
  job.end = length();
  jobs.push_back(job);
  return false;
}

absl::StatusOr<bool> SlotReader::Arrived() {
  if (waiting_ == Waiting::kNothing) return true;
  if (waiting_ == Waiting::kEntries) {
    ASSIGN_OR_RETURN(const bool here, read_.remote->Fetched(layer_));
    if (here) waiting_ = Waiting::kNothing;
    return here;
  }
  ASSIGN_OR_RETURN(const bool here, read_.remote->Attended(layer_, theirs_, lse_theirs_));
  if (!here) return false;
  waiting_ = Waiting::kNothing;
  for (size_t h = 0; h < lse_theirs_.size(); ++h) {
    // They have tokens, so there is a sum; one number that is none would spoil the whole stream.
    if (std::isfinite(lse_theirs_[h])) continue;
    return base::DataLoss(
        "layer {}: answer to a shipped query: want finite log-sum-exps, got {} for query head {}",
        layer_, lse_theirs_[h], h);
  }
  return true;
}

void SlotReader::Merge() {
  if (!shipped_) return;
  const auto dim = static_cast<size_t>(config_.layers[layer_].head_dim);
  for (size_t h = 0; h < lse_before_.size(); ++h) {
    const std::span<float> out(out_ + h * dim, dim);
    const auto part = [&](const std::vector<float>& values) {
      return std::span<const float>(values).subspan(h * dim, dim);
    };
    selector::MergePartial(out, lse_before_[h], part(theirs_), lse_theirs_[h]);
    selector::MergePartial(out, lse_before_[h], part(after_), lse_after_[h]);
  }
}

}  // namespace smartgen::executor
