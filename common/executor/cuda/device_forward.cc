#include "common/executor/cuda/device_forward.h"

namespace smartgen::executor::cuda {
namespace {

template <class Size>
int64_t Largest(const model::ModelConfig& config, Size size) {
  int64_t largest = 0;
  for (const model::LayerConfig& l : config.layers) largest = std::max<int64_t>(largest, size(l));
  return largest;
}
int64_t FfnColumns(const model::LayerConfig& l) { return l.ffn_dim; }

}  // namespace

uint64_t DeviceForward::ActivationBytes(const model::ModelConfig& config, int64_t rows) {
  const int64_t columns = 2 * config.hidden_dim + Largest(config, QkvColumns) +
                          Largest(config, QColumns) + 3 * Largest(config, FfnColumns) +
                          static_cast<int64_t>(2 * config.RopeInverseFrequencies().size());
  return static_cast<uint64_t>(rows * columns) * sizeof(float);
}

absl::Status DeviceForward::Reserve(int64_t rows, DeviceActivations& a) const {
  const int64_t ffn = Largest(config_, FfnColumns);
  RETURN_IF_ERROR(a.hidden.Reserve(context_, rows * config_.hidden_dim));
  RETURN_IF_ERROR(a.normed.Reserve(context_, rows * config_.hidden_dim));
  RETURN_IF_ERROR(a.qkv.Reserve(context_, rows * Largest(config_, QkvColumns)));
  RETURN_IF_ERROR(a.attended.Reserve(context_, rows * Largest(config_, QColumns)));
  RETURN_IF_ERROR(a.gate_up.Reserve(context_, rows * 2 * ffn));
  RETURN_IF_ERROR(a.ffn.Reserve(context_, rows * ffn));
  RETURN_IF_ERROR(a.cosines.Reserve(context_, rows * weights_.frequencies.columns));
  return a.sines.Reserve(context_, rows * weights_.frequencies.columns);
}

absl::Status DeviceForward::Embed(const int32_t* tokens, int64_t rows, float* out) {
  return Launched(cuda::Embed({.table = weights_.embedding.data(),
                               .element = weights_.embedding.element,
                               .vocabulary = weights_.embedding.rows,
                               .dim = config_.hidden_dim,
                               .tokens = tokens,
                               .rows = rows,
                               .out = out,
                               .out_stride = config_.hidden_dim},
                              context_.stream()),
                  "embedding");
}

absl::Status DeviceForward::FillRope(const int32_t* positions, int64_t rows, DeviceActivations& a) {
  return Launched(RopeAngles({.positions = positions,
                              .rows = rows,
                              .frequencies = static_cast<const float*>(weights_.frequencies.data()),
                              .angles = static_cast<int>(weights_.frequencies.columns),
                              .cosines = a.cosines.data(),
                              .sines = a.sines.data()},
                             context_.stream()),
                  "RoPE angles");
}

absl::Status DeviceForward::Norm(const DeviceMatrix& weight, const float* x, int64_t rows,
                                 float* out) {
  // The kernel changes x only where there is something to add.
  return Launched(RmsNorm({.x = const_cast<float*>(x),
                           .x_stride = config_.hidden_dim,
                           .weight = weight.data(),
                           .weight_element = weight.element,
                           .eps = config_.norm_eps,
                           .out = out,
                           .out_stride = config_.hidden_dim,
                           .rows = rows,
                           .dim = config_.hidden_dim},
                          context_.stream()),
                  "norm");
}

absl::Status DeviceForward::Multiply(const DeviceMatrix& w, const float* x, int64_t rows, float* y,
                                     GemmArgs::Then then) {
  return gemm_.Run({.x = x,
                    .x_element = Element::kF32,
                    .ldx = w.columns,
                    .w = w.data(),
                    .w_element = w.element,
                    .ldw = w.columns,
                    .y = y,
                    .ldy = w.rows,
                    .m = rows,
                    .n = w.rows,
                    .k = w.columns,
                    .then = then},
                   context_.stream());
}

absl::Status DeviceForward::AddBias(const DeviceMatrix& bias, int64_t columns, int64_t rows,
                                    float* x, int64_t stride) {
  if (bias.data() == nullptr) return absl::OkStatus();
  return Launched(AddRows({.x = x,
                           .x_stride = stride,
                           .y = bias.data(),
                           .y_element = bias.element,
                           .y_stride = 0,
                           .rows = rows,
                           .dim = static_cast<int>(columns)},
                          context_.stream()),
                  "bias");
}

absl::Status DeviceForward::ProjectQkv(int layer, int64_t rows, DeviceActivations& a) {
  const DeviceLayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  RETURN_IF_ERROR(Norm(w.attn_norm, a.hidden.data(), rows, a.normed.data()));
  RETURN_IF_ERROR(Multiply(w.qkv, a.normed.data(), rows, a.qkv.data()));
  return AddBias(w.qkv_bias, w.qkv.rows, rows, a.qkv.data(), w.qkv.rows);
}

absl::Status DeviceForward::PredictQueries(int layer, int64_t rows, DeviceActivations& a,
                                           float* out) {
  const DeviceLayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const model::LayerConfig& l = config_.layers[static_cast<size_t>(layer)];
  const int64_t columns = QColumns(l);
  RETURN_IF_ERROR(Norm(w.attn_norm, a.hidden.data(), rows, a.normed.data()));
  RETURN_IF_ERROR(gemm_.Run({.x = a.normed.data(),
                             .x_element = Element::kF32,
                             .ldx = w.qkv.columns,
                             .w = w.qkv.data(),
                             .w_element = w.qkv.element,
                             .ldw = w.qkv.columns,
                             .y = out,
                             .ldy = columns,
                             .m = rows,
                             .n = columns,
                             .k = w.qkv.columns},
                            context_.stream()));
  RETURN_IF_ERROR(AddBias(w.qkv_bias, columns, rows, out, columns));
  return Launched(cuda::Rope({.x = out,
                              .stride = columns,
                              .rows = rows,
                              .query_heads = l.num_heads,
                              .head_dim = l.head_dim,
                              .cosines = a.cosines.data(),
                              .sines = a.sines.data()},
                             context_.stream()),
                  "RoPE of predicted queries");
}

absl::Status DeviceForward::FinishLayer(int layer, int64_t row_begin, int64_t row_end,
                                        DeviceActivations& a) {
  const DeviceLayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const model::LayerConfig& l = config_.layers[static_cast<size_t>(layer)];
  const int64_t rows = row_end - row_begin;
  float* const residual = a.hidden.data() + row_begin * config_.hidden_dim;
  RETURN_IF_ERROR(Multiply(w.o, a.attended.data() + row_begin * QColumns(l), rows, residual,
                           GemmArgs::Then::kAdd));
  RETURN_IF_ERROR(Norm(w.ffn_norm, residual, rows, a.normed.data()));
  RETURN_IF_ERROR(Multiply(w.gate_up, a.normed.data(), rows, a.gate_up.data()));
  RETURN_IF_ERROR(Launched(SwiGlu({.gate = a.gate_up.data(),
                                   .up = a.gate_up.data() + l.ffn_dim,
                                   .stride = 2 * static_cast<int64_t>(l.ffn_dim),
                                   .out = a.ffn.data(),
                                   .out_stride = l.ffn_dim,
                                   .rows = rows,
                                   .dim = l.ffn_dim},
                                  context_.stream()),
                           "SwiGLU"));
  return Multiply(w.down, a.ffn.data(), rows, residual, GemmArgs::Then::kAdd);
}

absl::Status DeviceForward::Logits(int64_t row_begin, int64_t row_end, float* out,
                                   DeviceActivations& a) {
  const int64_t rows = row_end - row_begin;
  RETURN_IF_ERROR(Norm(weights_.output_norm, a.hidden.data() + row_begin * config_.hidden_dim, rows,
                       a.normed.data()));
  return Multiply(weights_.output(), a.normed.data(), rows, out);
}

absl::Status DeviceForward::CopyRow(const float* from, float* to, int64_t values) {
  return Launched(RoundRows({.x = from,
                             .x_stride = values,
                             .out = to,
                             .out_element = Element::kF32,
                             .out_stride = values,
                             .rows = 1,
                             .dim = static_cast<int>(values)},
                            context_.stream()),
                  "copy of a row");
}

}  // namespace smartgen::executor::cuda
