// One decode step of a batch, layer by layer, in a form that can be left and taken up again.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/executor/cpu/attention.h"
#include "common/executor/cpu/forward.h"
#include "common/executor/cpu/memory.h"
#include "common/executor/executor.h"

namespace smartgen::executor::cpu {

// One past the last layer that a slot runs.
inline int LayerEnd(const DecodeSlot& slot, int layers) {
  return slot.layer_end < 0 ? layers : slot.layer_end;
}

// The memory of a step.
struct StepBuffers {
  Activations activations;  // of the layer's active slots, one row each, without gaps
  FloatBuffer rows;         // hidden states of all slots, batch x hidden
  FloatBuffer logits;
};

// Keeps the buffers of finished steps for later ones. Not thread-safe.
class StepBufferPool {
 public:
  std::unique_ptr<StepBuffers> Take();
  void Give(std::unique_ptr<StepBuffers> buffers) { spare_.push_back(std::move(buffers)); }

 private:
  std::vector<std::unique_ptr<StepBuffers>> spare_;
};

// The batch has been checked (CpuExecutor::CheckBatch). All pointers must outlive the step.
class Step final : public StepRun {
 public:
  Step(const model::ModelConfig* config, Forward* forward, Attention* attention,
       StepBufferPool* pool, std::span<const DecodeSlot> batch);
  ~Step() override;
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  absl::StatusOr<State> Advance() override;

 private:
  void Begin();
  // Makes `activations` hold the slots whose range has the layer.
  void Activate(int layer);
  void RunLayer();
  void Finish();
  float* RowOf(int slot) { return buffers_->rows.data() + slot * config_.hidden_dim; }

  const model::ModelConfig& config_;
  Forward& forward_;
  Attention& attention_;
  StepBufferPool& pool_;
  std::unique_ptr<StepBuffers> buffers_;
  const std::vector<DecodeSlot> slots_;
  int layer_ = -1;           // the next to run; -1: not begun
  std::vector<int> active_;  // slots in activations, ascending
  std::vector<Row> rows_;    // of the active slots
};

}  // namespace smartgen::executor::cpu
