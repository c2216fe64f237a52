#include "common/executor/cpu/step.h"

#include <algorithm>

namespace smartgen::executor::cpu {

std::unique_ptr<StepBuffers> StepBufferPool::Take() {
  if (spare_.empty()) return std::make_unique<StepBuffers>();
  std::unique_ptr<StepBuffers> buffers = std::move(spare_.back());
  spare_.pop_back();
  return buffers;
}

Step::Step(const model::ModelConfig* config, Forward* forward, Attention* attention,
           StepBufferPool* pool, std::span<const DecodeSlot> batch)
    : config_(*config),
      forward_(*forward),
      attention_(*attention),
      pool_(*pool),
      buffers_(pool->Take()),
      slots_(batch.begin(), batch.end()) {}

Step::~Step() { pool_.Give(std::move(buffers_)); }

absl::StatusOr<StepRun::State> Step::Advance() {
  if (layer_ < 0) Begin();
  for (; layer_ < config_.num_layers(); ++layer_) {
    Activate(layer_);
    if (!active_.empty()) RunLayer();
  }
  if (layer_ == config_.num_layers()) {
    Finish();
    ++layer_;
  }
  return State::kDone;
}

void Step::Begin() {
  const auto count = static_cast<int64_t>(slots_.size());
  forward_.Reserve(count, buffers_->activations);
  buffers_->rows.Resize(count * config_.hidden_dim);
  layer_ = config_.num_layers();
  for (int s = 0; s < count; ++s) {
    const DecodeSlot& slot = slots_[s];
    layer_ = std::min(layer_, slot.layer_begin);
    if (slot.layer_begin == 0) {
      forward_.EmbedRow(slot.token, RowOf(s));
    } else {
      std::copy(slot.hidden.begin(), slot.hidden.end(), RowOf(s));
    }
  }
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
  forward_.FillRope(rows_, buffers_->activations);
}

void Step::RunLayer() {
  const model::LayerConfig& l = config_.layers[layer_];
  Activations& a = buffers_->activations;
  const auto count = static_cast<int64_t>(rows_.size());
  forward_.ProjectQkv(layer_, rows_, false, a);
  std::vector<Attention::Job> jobs(rows_.size());
  for (int64_t i = 0; i < count; ++i) {
    rows_[i].sequence->MarkLocal(layer_, rows_[i].position, rows_[i].position + 1);
    jobs[i] = {.sequence = rows_[i].sequence,
               .position = rows_[i].position,
               .rows = 1,
               .q = a.qkv.data() + i * QkvColumns(l),
               .ldq = QkvColumns(l),
               .out = a.attended.data() + i * QColumns(l),
               .ldo = QColumns(l)};
  }
  attention_.Run(layer_, l.num_heads, jobs);
  forward_.FinishLayer(layer_, 0, count, false, a);
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
  if (count == 1) return forward_.Logits(0, 1, slots_[wanted[0]].logits.data(), a);
  const int64_t vocab = config_.vocab_size;
  buffers_->logits.Resize(count * vocab);
  forward_.Logits(0, count, buffers_->logits.data(), a);
  for (int64_t i = 0; i < count; ++i) {
    std::copy_n(buffers_->logits.data() + i * vocab, vocab, slots_[wanted[i]].logits.data());
  }
}

}  // namespace smartgen::executor::cpu
