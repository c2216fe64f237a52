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
#include "common/executor/cpu/matrix.h"
#include "common/executor/cpu/memory.h"
#include "common/executor/cpu/weights.h"
#include "common/executor/executor.h"

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

 private:
  // Where a row of activations stands.
  struct Row {
    kv::KvSequence* sequence;
    int64_t position;
  };

  absl::Status CheckChunk(const PrefillChunk& chunk) const;
  absl::Status CheckBatch(std::span<const DecodeSlot> batch) const;
  absl::Status CheckToken(TokenId token) const;
  absl::Status CheckSequence(const kv::KvSequence* sequence, int64_t start, int64_t end) const;
  absl::Status CheckLocal(std::span<const Row> next) const;

  void Reserve(int64_t rows);
  void Embed(std::span<const TokenId> tokens);
  void FillRope(std::span<const Row> rows);
  void Norm(const std::vector<float>& weight, int64_t row_begin, int64_t row_end);
  // q, k, v of all rows; K and V go to their pages.
  void ProjectQkv(int layer, std::span<const Row> rows, bool prefill);
  void WriteKv(int layer, const Row& row, const float* k, const float* v);
  // The layer from attention's output on, for rows [row_begin, row_end).
  void FinishLayer(int layer, int64_t row_begin, int64_t row_end, bool prefill);
  // Prefill goes through oneDNN where the weights have it; its decision is the same for every
  // chunk.
  void Multiply(const Matrix& matrix, const MatMul::Args& args, bool prefill);
  // Logits of rows [row_begin, row_end) into `out` (leading dimension vocab).
  void Logits(int64_t row_begin, int64_t row_end, float* out);
  void ReportLogits(const PrefillChunk& chunk);

  const model::ModelConfig config_;
  const ExecutorOptions options_;
  const ComputeType compute_;
  const std::vector<float> inverse_frequencies_;
  std::unique_ptr<base::ThreadPool> pool_;
  std::unique_ptr<Weights> weights_;
  MatMul matmul_;
  Attention attention_;
  // Activations, rows x size.
  FloatBuffer hidden_, normed_, qkv_, attended_, ffn_, cosines_, sines_, logits_;
};

}  // namespace smartgen::executor::cpu
