// All weights of a model, packed for the CPU.
#pragma once

#include <vector>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/executor/cpu/matrix.h"
#include "common/executor/cpu/memory.h"
#include "common/model/model.h"

namespace smartgen::executor::cpu {

struct LayerWeights {
  std::vector<float> attn_norm;
  Matrix qkv;                   // columns: q heads, k heads, v heads
  std::vector<float> qkv_bias;  // empty: none
  Matrix o;
  std::vector<float> ffn_norm;
  Matrix gate_up;  // pairs
  Matrix down;
};

// Rows of W_q and W_k of models with interleaved RoPE are put in half-split order, so that the
// executor knows only the latter (q . k does not change when both are permuted alike).
struct Weights {
  Arena arena;  // owns the matrices' memory
  Matrix embedding;
  Matrix separate_output;  // unused where tied
  bool tied = false;
  std::vector<float> output_norm;
  std::vector<LayerWeights> layers;

  // Adds oneDNN's copy of every layer's matrices, for prefill in `type`.
  absl::Status AddFast(GemmType type, base::ThreadPool& pool);
  const Matrix& output() const { return tied ? embedding : separate_output; }
  // Reads the model only during the call. Internal names the weight that is missing (Model::Open
  // checks that all are there).
  static absl::StatusOr<std::unique_ptr<Weights>> Load(const model::Model& model,
                                                       base::ThreadPool& pool);
};

}  // namespace smartgen::executor::cpu
