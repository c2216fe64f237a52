// The layers' arithmetic but for attention: what prefill, decode and steps that wait are made of.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/thread_pool.h"
#include "common/executor/cpu/matrix.h"
#include "common/executor/cpu/memory.h"
#include "common/executor/cpu/weights.h"
#include "common/executor/shapes.h"
#include "common/kv/sequence.h"
#include "common/model/model_config.h"

namespace smartgen::executor::cpu {

// Activations of so many rows, rows x size each. Whoever runs layers has its own, so that a decode
// step may run between the layers of a prefill.
struct Activations {
  FloatBuffer hidden, normed, qkv, attended, ffn, cosines, sines;
};

// One call at a time.
class Forward {
 public:
  // All must outlive it.
  Forward(const model::ModelConfig* config, const Weights* weights, base::ThreadPool* pool);

  // Room for so many rows; contents are lost if it grows.
  void Reserve(int64_t rows, Activations& a) const;
  // hidden = embeddings of the tokens.
  void Embed(std::span<const int32_t> tokens, Activations& a);
  // Of one token, hidden_dim values.
  void EmbedRow(int32_t token, float* out) const { weights_.embedding.DecodeRow(token, out); }
  // cosines, sines = those of the rows' positions.
  void FillRope(std::span<const Row> rows, Activations& a);
  // qkv = q, k, v of all rows after RoPE; K and V go to their pages (nothing is marked).
  void ProjectQkv(int layer, std::span<const Row> rows, bool prefill, Activations& a);
  // Row j of `out` (leading dimension QColumns) = the layer's queries after RoPE as if hidden row
  // rows[j] were its input: with the input of the layer before a prediction of them (InfiniGen).
  // Overwrites normed.
  void PredictQueries(int layer, std::span<const int> rows, Activations& a, float* out);
  // The layer from attention's output on, for rows [row_begin, row_end) of attended and hidden.
  void FinishLayer(int layer, int64_t row_begin, int64_t row_end, bool prefill, Activations& a);
  // Logits of rows [row_begin, row_end) of hidden into `out` (leading dimension vocab).
  void Logits(int64_t row_begin, int64_t row_end, float* out, Activations& a);

 private:
  void Norm(const std::vector<float>& weight, int64_t row_begin, int64_t row_end, Activations& a);
  void WriteKv(int layer, const Row& row, const float* k, const float* v);
  // Prefill goes through oneDNN where the weights have it; its decision is the same for every
  // chunk.
  void Multiply(const Matrix& matrix, const MatMul::Args& args, bool prefill);

  const model::ModelConfig& config_;
  const Weights& weights_;
  base::ThreadPool& pool_;
  const std::vector<float> inverse_frequencies_;
  MatMul matmul_;
};

}  // namespace smartgen::executor::cpu
