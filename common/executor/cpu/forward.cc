#include "common/executor/cpu/forward.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "common/executor/cpu/kernels.h"

namespace smartgen::executor::cpu {
namespace {

constexpr int64_t kRowsPerTask = 16;

template <class Size>
int64_t Largest(const model::ModelConfig& config, Size size) {
  int64_t largest = 0;
  for (const model::LayerConfig& l : config.layers) largest = std::max<int64_t>(largest, size(l));
  return largest;
}

void ForRows(base::ThreadPool& pool, int64_t begin, int64_t end,
             const std::function<void(int64_t row)>& fn) {
  const int64_t tasks = (end - begin + kRowsPerTask - 1) / kRowsPerTask;
  pool.ParallelFor(tasks, [&](int64_t task, int) {
    const int64_t first = begin + task * kRowsPerTask;
    const int64_t stop = std::min(end, first + kRowsPerTask);
    for (int64_t row = first; row < stop; ++row) fn(row);
  });
}

}  // namespace

Forward::Forward(const model::ModelConfig* config, const Weights* weights, base::ThreadPool* pool)
    : config_(*config),
      weights_(*weights),
      pool_(*pool),
      inverse_frequencies_(config_.RopeInverseFrequencies()),
      matmul_(pool) {}

void Forward::Reserve(int64_t rows, Activations& a) const {
  a.hidden.Resize(rows * config_.hidden_dim);
  a.normed.Resize(rows * config_.hidden_dim);
  a.qkv.Resize(rows * Largest(config_, QkvColumns));
  a.attended.Resize(rows * Largest(config_, QColumns));
  a.ffn.Resize(rows * Largest(config_, [](const model::LayerConfig& l) { return l.ffn_dim; }));
  const int64_t angles = static_cast<int64_t>(inverse_frequencies_.size());
  a.cosines.Resize(rows * angles);
  a.sines.Resize(rows * angles);
}

void Forward::Embed(std::span<const int32_t> tokens, Activations& a) {
  ForRows(pool_, 0, static_cast<int64_t>(tokens.size()),
          [&](int64_t row) { EmbedRow(tokens[row], a.hidden.data() + row * config_.hidden_dim); });
}

void Forward::FillRope(std::span<const Row> rows, Activations& a) {
  const int64_t angles = static_cast<int64_t>(inverse_frequencies_.size());
  ForRows(pool_, 0, static_cast<int64_t>(rows.size()), [&](int64_t row) {
    for (int64_t i = 0; i < angles; ++i) {
      // The angle is rounded to float, as reference implementations do; it matters at large
      // positions.
      const float angle = static_cast<float>(rows[row].position) * inverse_frequencies_[i];
      a.cosines.data()[row * angles + i] = static_cast<float>(std::cos(double{angle}));
      a.sines.data()[row * angles + i] = static_cast<float>(std::sin(double{angle}));
    }
  });
}

void Forward::Norm(const std::vector<float>& weight, int64_t row_begin, int64_t row_end,
                   Activations& a) {
  const int64_t size = config_.hidden_dim;
  ForRows(pool_, row_begin, row_end, [&](int64_t row) {
    RmsNorm(a.hidden.data() + row * size, weight.data(), config_.norm_eps, size,
            a.normed.data() + row * size);
  });
}

void Forward::WriteKv(int layer, const Row& row, const float* k, const float* v) {
  const kv::KvLayout& layout = row.sequence->layout();
  const int dim = layout.layers[layer].head_dim;
  std::byte* page = row.sequence->Page(layer, row.position / kv::kPageTokens);
  const int token = static_cast<int>(row.position % kv::kPageTokens);
  for (int h = 0; h < layout.layers[layer].kv_heads; ++h) {
    StoreKv(k + h * dim, dim, layout.dtype, page + layout.KOffset(layer, h, token));
    StoreKv(v + h * dim, dim, layout.dtype, page + layout.VOffset(layer, h, token));
  }
}

void Forward::Multiply(const Matrix& matrix, const MatMul::Args& args, bool prefill) {
  if (prefill) {
    matmul_.RunFast(matrix, args);
  } else {
    matmul_.Run(matrix, args);
  }
}

void Forward::ProjectQkv(int layer, std::span<const Row> rows, bool prefill, Activations& a) {
  const LayerWeights& w = weights_.layers[layer];
  const model::LayerConfig& l = config_.layers[layer];
  const int64_t count = static_cast<int64_t>(rows.size());
  const int64_t columns = QkvColumns(l);
  Norm(w.attn_norm, 0, count, a);
  Multiply(w.qkv,
           {.x = a.normed.data(),
            .ldx = config_.hidden_dim,
            .rows = count,
            .y = a.qkv.data(),
            .ldy = columns,
            .bias = w.qkv_bias.empty() ? nullptr : w.qkv_bias.data()},
           prefill);
  const int64_t angles = static_cast<int64_t>(inverse_frequencies_.size());
  ForRows(pool_, 0, count, [&](int64_t row) {
    float* q = a.qkv.data() + row * columns;
    for (int h = 0; h < l.num_heads + l.num_kv_heads; ++h) {
      Rope(a.cosines.data() + row * angles, a.sines.data() + row * angles, l.head_dim,
           q + static_cast<int64_t>(h) * l.head_dim);
    }
    const float* k = q + QColumns(l);
    WriteKv(layer, rows[row], k, k + KvColumns(l));
  });
}

void Forward::PredictQueries(int layer, std::span<const int> rows, Activations& a, float* out) {
  const LayerWeights& w = weights_.layers[layer];
  const model::LayerConfig& l = config_.layers[layer];
  const int64_t count = static_cast<int64_t>(rows.size());
  const int64_t size = config_.hidden_dim;
  ForRows(pool_, 0, count, [&](int64_t j) {
    RmsNorm(a.hidden.data() + rows[j] * size, w.attn_norm.data(), config_.norm_eps, size,
            a.normed.data() + j * size);
  });
  matmul_.Run(w.qkv, {.x = a.normed.data(),
                      .ldx = size,
                      .rows = count,
                      .y = out,
                      .ldy = QColumns(l),
                      .bias = w.qkv_bias.empty() ? nullptr : w.qkv_bias.data(),
                      .columns = QColumns(l)});
  const int64_t angles = static_cast<int64_t>(inverse_frequencies_.size());
  ForRows(pool_, 0, count, [&](int64_t j) {
    for (int h = 0; h < l.num_heads; ++h) {
      Rope(a.cosines.data() + rows[j] * angles, a.sines.data() + rows[j] * angles, l.head_dim,
           out + j * QColumns(l) + static_cast<int64_t>(h) * l.head_dim);
    }
  });
}

void Forward::FinishLayer(int layer, int64_t row_begin, int64_t row_end, bool prefill,
                          Activations& a) {
  const LayerWeights& w = weights_.layers[layer];
  const model::LayerConfig& l = config_.layers[layer];
  const int64_t hidden = config_.hidden_dim;
  const int64_t rows = row_end - row_begin;
  float* residual = a.hidden.data() + row_begin * hidden;
  Multiply(w.o,
           {.x = a.attended.data() + row_begin * QColumns(l),
            .ldx = QColumns(l),
            .rows = rows,
            .y = residual,
            .ldy = hidden,
            .then = MatMul::Then::kAdd},
           prefill);
  Norm(w.ffn_norm, row_begin, row_end, a);
  Multiply(w.gate_up,
           {.x = a.normed.data() + row_begin * hidden,
            .ldx = hidden,
            .rows = rows,
            .y = a.ffn.data(),
            .ldy = l.ffn_dim,
            .then = MatMul::Then::kSwiGlu},
           prefill);
  Multiply(w.down,
           {.x = a.ffn.data(),
            .ldx = l.ffn_dim,
            .rows = rows,
            .y = residual,
            .ldy = hidden,
            .then = MatMul::Then::kAdd},
           prefill);
}

void Forward::Logits(int64_t row_begin, int64_t row_end, float* out, Activations& a) {
  Norm(weights_.output_norm, row_begin, row_end, a);
  matmul_.Run(weights_.output(), {.x = a.normed.data() + row_begin * config_.hidden_dim,
                                  .ldx = config_.hidden_dim,
                                  .rows = row_end - row_begin,
                                  .y = out,
                                  .ldy = config_.vocab_size});
}

}  // namespace smartgen::executor::cpu
