// The layers' arithmetic on the device but for attention: what prefill, decode and steps that wait
// are made of.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "common/executor/cuda/context.h"
#include "common/executor/cuda/device_weights.h"
#include "common/executor/cuda/gemm.h"
#include "common/executor/cuda/layer_kernels.h"
#include "common/executor/shapes.h"

namespace smartgen::executor::cuda {

// Activations of so many rows, f32, rows x size each, without gaps. Whoever runs layers has its
// own, so that a decode step may run between the layers of a prefill.
struct DeviceActivations {
  DeviceArray<float> hidden, normed, qkv, attended, gate_up, ffn, cosines, sines;
};

// Queues and does not wait. One call at a time.
class DeviceForward {
 public:
  // All must outlive it.
  DeviceForward(const model::ModelConfig* config, const DeviceWeights* weights, Context* context,
                Gemm* gemm)
      : config_(*config), weights_(*weights), context_(*context), gemm_(*gemm) {}

  static uint64_t ActivationBytes(const model::ModelConfig& config, int64_t rows);
  absl::Status Reserve(int64_t rows, DeviceActivations& a) const;
  // Rows of hidden, or of another place, = embeddings of tokens [rows], on the device.
  absl::Status Embed(const int32_t* tokens, int64_t rows, float* out);
  absl::Status FillRope(const int32_t* positions, int64_t rows, DeviceActivations& a);
  // qkv = q, k, v of all rows before RoPE.
  absl::Status ProjectQkv(int layer, int64_t rows, DeviceActivations& a);
  // After RoPE as if hidden were the layer's input, [rows][QColumns]. Overwrites normed.
  absl::Status PredictQueries(int layer, int64_t rows, DeviceActivations& a, float* out);
  // The layer from attention's output on, for rows [row_begin, row_end) of attended and hidden.
  absl::Status FinishLayer(int layer, int64_t row_begin, int64_t row_end, DeviceActivations& a);
  // Logits of rows [row_begin, row_end) of hidden into `out` ([rows][vocab]).
  absl::Status Logits(int64_t row_begin, int64_t row_end, float* out, DeviceActivations& a);
  // to = from, f32 values.
  absl::Status CopyRow(const float* from, float* to, int64_t values);

 private:
  absl::Status Norm(const DeviceMatrix& weight, const float* x, int64_t rows, float* out);
  // y[rows][w.rows] = x[rows][w.columns] * w^T.
  absl::Status Multiply(const DeviceMatrix& w, const float* x, int64_t rows, float* y,
                        GemmArgs::Then then = GemmArgs::Then::kStore);
  absl::Status AddBias(const DeviceMatrix& bias, int64_t columns, int64_t rows, float* x,
                       int64_t stride);

  const model::ModelConfig& config_;
  const DeviceWeights& weights_;
  Context& context_;
  Gemm& gemm_;
};

}  // namespace smartgen::executor::cuda
