// The executor on the CPU. What it promises about its numbers:
//
// - A token's K, V and logits are a function of the tokens up to it and of nothing else, bit for
// bit: not of the
//   chunks that a prefill is cut into, of where a cached prefix ends, of the other sequences in a
//   batch, of the number of threads, or of whether prefill or decode computed it.
// - f32: products and sums in float over the weights' exact values (as model::Dequantize gives
// them), KV in
//   float.
// - bf16: KV in bf16. Where bf16 instructions make oneDNN's bf16 products available, prefill uses
// them (weights and
//   activations rounded to bf16, sums in float); then what decode computes differs from what
//   prefill computes by that rounding, while all other promises hold (OneDnnGemm). Elsewhere
//   products are those of f32.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "common/base/thread_pool.h"
#include "common/executor/cpu/attention.h"
#include "common/executor/cpu/forward.h"
#include "common/executor/cpu/memory.h"
#include "common/executor/cpu/step.h"
#include "common/executor/cpu/weights.h"
#include "common/executor/executor.h"
#include "common/executor/input_checks.h"

namespace smartgen::executor::cpu {

class CpuExecutor final : public Executor {
 public:
  CpuExecutor(const model::ModelConfig& config, const ExecutorOptions& options, ComputeType compute,
              std::unique_ptr<base::ThreadPool> pool, std::unique_ptr<Weights> weights);

  const model::ModelConfig& config() const override { return config_; }
  ComputeType compute() const override { return compute_; }
  kv::DType kv_dtype() const override;
  kv::KvLayout Layout(int64_t token_capacity) const override;
  int threads() const override { return pool_->size(); }
  absl::Status Prefill(const PrefillChunk& chunk) override;
  absl::Status Decode(std::span<const DecodeSlot> batch) override;

  absl::StatusOr<std::unique_ptr<StepRun>> StartStep(std::span<const DecodeSlot> batch) override;
  absl::Status Attend(std::span<const AttendJob> jobs) override;

 private:
  void ReportLogits(const PrefillChunk& chunk);

  const model::ModelConfig config_;
  const ComputeType compute_;
  std::unique_ptr<base::ThreadPool> pool_;
  std::unique_ptr<Weights> weights_;
  const InputChecks checks_;
  Forward forward_;
  Attention attention_;
  StepParts step_parts_;
  SelectedAttention partial_;  // Attend's
  // Prefill's; steps have their own.
  Activations activations_;
  FloatBuffer logits_;
};

}  // namespace smartgen::executor::cpu
