#include "common/executor/cpu/step.h"

#include <algorithm>

namespace smartgen::executor::cpu {
namespace {

std::unique_ptr<StepBuffers> TakeBuffers(StepParts& parts) {
  if (parts.spare.empty()) {
    return std::make_unique<StepBuffers>(parts.pool, parts.attention->scratch());
  }
  std::unique_ptr<StepBuffers> buffers = std::move(parts.spare.back());
  parts.spare.pop_back();
  return buffers;
}

}  // namespace

Step::Step(StepParts* parts, std::span<const DecodeSlot> batch)
    : config_(*parts->config),
      parts_(*parts),
      buffers_(TakeBuffers(*parts)),
      slots_(batch.begin(), batch.end()),
      readers_(slots_.size()) {
  for (size_t s = 0; s < slots_.size(); ++s) {
    if (slots_[s].read == nullptr) continue;
    readers_[s].emplace(&config_, &slots_[s]);
    reads_ = true;
  }
}

Step::~Step() { parts_.spare.push_back(std::move(buffers_)); }

absl::StatusOr<StepRun::State> Step::Advance() {
  RETURN_IF_ERROR(error_);
  absl::StatusOr<State> state = Run();
  error_ = state.status();
  return state;
}

absl::StatusOr<StepRun::State> Step::Run() {
  while (phase_ != Phase::kEnd) {
    switch (phase_) {
      case Phase::kStart:
        RETURN_IF_ERROR(Start());
        phase_ = Phase::kLayer;
        break;
      case Phase::kLayer:
        if (layer_ == config_.num_layers()) {
          Finish();
          phase_ = Phase::kEnd;
          break;
        }
        Activate(layer_);
        if (active_.empty()) {
          ++layer_;
          break;
        }
        RETURN_IF_ERROR(BeginLayer());
        phase_ = Phase::kAttention;
        break;
      case Phase::kAttention: {
        ASSIGN_OR_RETURN(const bool complete, Attend());
        if (!complete) return State::kWaiting;
        parts_.forward->FinishLayer(layer_, 0, static_cast<int64_t>(rows_.size()), false,
                                    buffers_->activations);
        ++layer_;
        phase_ = Phase::kLayer;
        break;
      }
      case Phase::kEnd:
        break;
    }
  }
  return State::kDone;
}

absl::Status Step::Annotated(const absl::Status& status, int slot) const {
  if (status.ok()) return status;
  return base::Annotate(status, fmt::format("decode slot {} layer {}", slot, layer_));
}

absl::Status Step::Start() {
  const auto count = static_cast<int64_t>(slots_.size());
  parts_.forward->Reserve(count, buffers_->activations);
  buffers_->rows.Resize(count * config_.hidden_dim);
  layer_ = config_.num_layers();
  for (int s = 0; s < count; ++s) {
    const DecodeSlot& slot = slots_[s];
    layer_ = std::min(layer_, slot.layer_begin);
    if (slot.layer_begin == 0) {
      parts_.forward->EmbedRow(slot.token, RowOf(s));
    } else {
      std::copy(slot.hidden.begin(), slot.hidden.end(), RowOf(s));
    }
    // Before anything is asked for of the layers that follow.
    if (!readers_[s].has_value()) continue;
    RETURN_IF_ERROR(Annotated(readers_[s]->Predict(slot.layer_begin, {}), s));
  }
  return absl::OkStatus();
}

void Step::Activate(int layer) {
  std::vector<int> next;
  for (int s = 0; s < static_cast<int>(slots_.size()); ++s) {
    const int end = LayerEnd(slots_[s], config_.num_layers());
    if (slots_[s].layer_begin <= layer && layer < end) next.push_back(s);
  }
  if (next == active_) return;
  float* hidden = buffers_->activations.hidden.data();
  const int64_t size = config_.hidden_dim;
  for (size_t i = 0; i < active_.size(); ++i) {
    std::copy_n(hidden + static_cast<int64_t>(i) * size, size, RowOf(active_[i]));
  }
  rows_.clear();
  for (size_t i = 0; i < next.size(); ++i) {
    std::copy_n(RowOf(next[i]), size, hidden + static_cast<int64_t>(i) * size);
    rows_.push_back({slots_[next[i]].sequence, slots_[next[i]].position});
  }
  active_ = std::move(next);
  parts_.forward->FillRope(rows_, buffers_->activations);
}

absl::Status Step::BeginLayer() {
  const model::LayerConfig& l = config_.layers[layer_];
  Activations& a = buffers_->activations;
  if (reads_) RETURN_IF_ERROR(LookAhead());
  parts_.forward->ProjectQkv(layer_, rows_, false, a);
  std::vector<Attention::Job> whole;
  std::vector<SelectedAttention::Job> selected;
  waiting_.clear();
  for (size_t i = 0; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
    row.sequence->MarkLocal(layer_, row.position, row.position + 1);
    const float* q = a.qkv.data() + static_cast<int64_t>(i) * QkvColumns(l);
    float* out = a.attended.data() + static_cast<int64_t>(i) * QColumns(l);
    std::optional<SlotReader>& reader = readers_[active_[i]];
    if (reader.has_value()) {
      const std::span<const float> queries(q, static_cast<size_t>(QColumns(l)));
      const absl::StatusOr<bool> all = reader->Begin(layer_, queries, out, selected);
      RETURN_IF_ERROR(Annotated(all.status(), active_[i]));
      waiting_.push_back(active_[i]);
      if (!*all) continue;
    }
    whole.push_back({.sequence = row.sequence,
                     .position = row.position,
                     .rows = 1,
                     .q = q,
                     .ldq = QkvColumns(l),
                     .out = out,
                     .ldo = QColumns(l)});
  }
  buffers_->selected.Start(selected);
  if (!whole.empty()) parts_.attention->Run(layer_, l.num_heads, whole);
  return absl::OkStatus();
}

absl::Status Step::LookAhead() {
  const int next = layer_ + 1;
  std::vector<int> predicting;  // rows of activations
  for (size_t i = 0; i < active_.size(); ++i) {
    const std::optional<SlotReader>& reader = readers_[active_[i]];
    if (reader.has_value() && reader->PredictsFrom(next)) predicting.push_back(static_cast<int>(i));
  }
  int64_t columns = 0;
  if (!predicting.empty()) {
    columns = QColumns(config_.layers[next]);
    buffers_->predicted.Resize(static_cast<int64_t>(predicting.size()) * columns);
    parts_.forward->PredictQueries(next, predicting, buffers_->activations,
                                   buffers_->predicted.data());
  }
  size_t j = 0;
  for (size_t i = 0; i < active_.size(); ++i) {
    std::optional<SlotReader>& reader = readers_[active_[i]];
    if (!reader.has_value()) continue;
    std::span<const float> queries;
    if (j < predicting.size() && predicting[j] == static_cast<int>(i)) {
      queries = {buffers_->predicted.data() + static_cast<int64_t>(j++) * columns,
                 static_cast<size_t>(columns)};
    }
    RETURN_IF_ERROR(Annotated(reader->Predict(next, queries), active_[i]));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Step::Attend() {
  bool done = buffers_->selected.Run();
  absl::Status failed;
  const auto arrived = [&](int slot) {
    if (!failed.ok()) return false;
    const absl::StatusOr<bool> here = readers_[slot]->Arrived();
    failed = Annotated(here.status(), slot);
    return here.ok() && *here;
  };
  std::erase_if(waiting_, arrived);
  RETURN_IF_ERROR(failed);
  if (!waiting_.empty()) return false;
  if (!done) done = buffers_->selected.Run();
  if (!done) {
    return base::Internal("layer {}: all that was asked for came, but entries are missing", layer_);
  }
  for (const int slot : active_) {
    if (readers_[slot].has_value()) readers_[slot]->Merge();
  }
  return true;
}

void Step::Finish() {
  Activate(config_.num_layers());  // none: all hidden states go back to their rows
  Activations& a = buffers_->activations;
  const int64_t size = config_.hidden_dim;
  std::vector<int> wanted;
  for (int s = 0; s < static_cast<int>(slots_.size()); ++s) {
    const DecodeSlot& slot = slots_[s];
    if (!slot.hidden.empty()) std::copy_n(RowOf(s), size, slot.hidden.data());
    if (slot.logits.empty() || LayerEnd(slot, config_.num_layers()) < config_.num_layers()) {
      continue;
    }
    std::copy_n(RowOf(s), size, a.hidden.data() + static_cast<int64_t>(wanted.size()) * size);
    wanted.push_back(s);
  }
  const auto count = static_cast<int64_t>(wanted.size());
  if (count == 0) return;
  if (count == 1) return parts_.forward->Logits(0, 1, slots_[wanted[0]].logits.data(), a);
  const int64_t vocab = config_.vocab_size;
  buffers_->logits.Resize(count * vocab);
  parts_.forward->Logits(0, count, buffers_->logits.data(), a);
  for (int64_t i = 0; i < count; ++i) {
    std::copy_n(buffers_->logits.data() + i * vocab, vocab, slots_[wanted[i]].logits.data());
  }
}

}  // namespace smartgen::executor::cpu
