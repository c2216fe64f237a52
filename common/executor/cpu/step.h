// One decode step of a batch, layer by layer, in a form that can be left and taken up again.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/executor/cpu/attention.h"
#include "common/executor/cpu/forward.h"
#include "common/executor/cpu/memory.h"
#include "common/executor/cpu/selected_attention.h"
#include "common/executor/slot_reader.h"

namespace smartgen::executor::cpu {

// The memory of a step.
struct StepBuffers {
  StepBuffers(base::ThreadPool* pool, std::span<TileScratch> scratch) : selected(pool, scratch) {}

  Activations activations;  // of the layer's active slots, one row each, without gaps
  FloatBuffer rows;         // hidden states of all slots, batch x hidden
  FloatBuffer predicted;    // queries of the next layer
  FloatBuffer logits;
  SelectedAttention selected;
};

// What steps share. All must outlive them.
struct StepParts {
  const model::ModelConfig* config;
  base::ThreadPool* pool;
  Forward* forward;
  Attention* attention;
  std::vector<std::unique_ptr<StepBuffers>> spare;  // of finished steps, for later ones
};

// The batch has been checked (CpuExecutor::CheckBatch).
class Step final : public StepRun {
 public:
  Step(StepParts* parts, std::span<const DecodeSlot> batch);
  ~Step() override;
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  absl::StatusOr<State> Advance() override;

 private:
  // kLayer: layer_ is to begin. kAttention: its attention is under way.
  enum class Phase { kStart, kLayer, kAttention, kEnd };

  absl::StatusOr<State> Run();
  absl::Status Start();
  // Makes `activations` hold the slots whose range has the layer.
  void Activate(int layer);
  absl::Status BeginLayer();
  // For slots with `read`: what can be known of the layer after this one.
  absl::Status LookAhead();
  // Attention to all that is here; true when it is complete.
  absl::StatusOr<bool> Attend();
  void Finish();
  float* RowOf(int slot) { return buffers_->rows.data() + slot * config_.hidden_dim; }
  absl::Status Annotated(const absl::Status& status, int slot) const;

  const model::ModelConfig& config_;
  StepParts& parts_;
  std::unique_ptr<StepBuffers> buffers_;
  const std::vector<DecodeSlot> slots_;
  std::vector<std::optional<SlotReader>> readers_;  // of slots with `read`
  bool reads_ = false;                              // there is one
  Phase phase_ = Phase::kStart;
  absl::Status error_;
  int layer_ = 0;
  std::vector<int> active_;   // slots in activations, ascending
  std::vector<Row> rows_;     // of the active slots
  std::vector<int> waiting_;  // slots of this layer whose remote part is on its way
};

}  // namespace smartgen::executor::cpu
