#include "common/executor/cpu/cpu_executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/executor/cpu/kernels.h"

namespace smartgen::executor::cpu {
namespace {

constexpr int64_t kLogitRows = 64;  // rows of logits at a time where a caller wants all
constexpr int64_t kRowsPerTask = 16;

int64_t QkvColumns(const model::LayerConfig& l) {
  return static_cast<int64_t>(l.num_heads + 2 * l.num_kv_heads) * l.head_dim;
}
int64_t QColumns(const model::LayerConfig& l) {
  return static_cast<int64_t>(l.num_heads) * l.head_dim;
}
int64_t KvColumns(const model::LayerConfig& l) {
  return static_cast<int64_t>(l.num_kv_heads) * l.head_dim;
}

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

CpuExecutor::CpuExecutor(const model::ModelConfig& config, const ExecutorOptions& options,
                         ComputeType compute, std::unique_ptr<base::ThreadPool> pool,
                         std::unique_ptr<Weights> weights)
    : config_(config),
      options_(options),
      compute_(compute),
      inverse_frequencies_(config.RopeInverseFrequencies()),
      pool_(std::move(pool)),
      weights_(std::move(weights)),
      matmul_(pool_.get()),
      attention_(pool_.get()) {}

kv::DType CpuExecutor::kv_dtype() const {
  return compute_ == ComputeType::kF32 ? kv::DType::kF32 : kv::DType::kBF16;
}

kv::KvLayout CpuExecutor::Layout(int64_t token_capacity) const {
  kv::KvLayout layout{.dtype = kv_dtype(), .token_capacity = token_capacity};
  for (const model::LayerConfig& l : config_.layers) {
    layout.layers.push_back(
        {.kv_heads = l.num_kv_heads, .head_dim = l.head_dim, .window = l.window});
  }
  return layout;
}

absl::Status CpuExecutor::CheckToken(TokenId token) const {
  const int64_t vocab = std::min<int64_t>(config_.vocab_size, weights_->embedding.columns());
  if (token >= 0 && token < vocab) return absl::OkStatus();
  return base::InvalidArgument("token id {}: want 0 to {}", token, vocab - 1);
}

absl::Status CpuExecutor::CheckSequence(const kv::KvSequence* sequence, int64_t start,
                                        int64_t end) const {
  if (sequence == nullptr) return base::InvalidArgument("no sequence given");
  RETURN_IF_ERROR(
      base::Annotate(Layout(sequence->layout().token_capacity).CheckEqual(sequence->layout()),
                     "the sequence's layout is not the executor's"));
  if (start < 0 || end > sequence->capacity()) {
    return base::InvalidArgument("positions [{}, {}): the sequence has room for [0, {})", start,
                                 end, sequence->capacity());
  }
  return absl::OkStatus();
}

absl::Status CpuExecutor::CheckLocal(std::span<const Row> next) const {
  for (const Row& row : next) {
    for (int layer = 0; layer < config_.num_layers(); ++layer) {
      const int64_t missing = row.sequence->FirstNotLocal(layer, 0, row.position);
      if (missing == row.position) continue;
      return base::FailedPrecondition(
          "layer {}: KV of token {} is not local, but the work begins at {}", layer, missing,
          row.position);
    }
  }
  return absl::OkStatus();
}

absl::Status CpuExecutor::CheckChunk(const PrefillChunk& chunk) const {
  const int64_t count = static_cast<int64_t>(chunk.tokens.size());
  if (count < 1 || count > options_.max_prefill_tokens) {
    return base::InvalidArgument("prefill chunk: want 1 to {} tokens, got {}",
                                 options_.max_prefill_tokens, count);
  }
  if (!chunk.last_logits.empty() &&
      static_cast<int64_t>(chunk.last_logits.size()) != config_.vocab_size) {
    return base::InvalidArgument("last_logits: want {} values, got {}", config_.vocab_size,
                                 chunk.last_logits.size());
  }
  for (TokenId token : chunk.tokens) RETURN_IF_ERROR(CheckToken(token));
  RETURN_IF_ERROR(CheckSequence(chunk.sequence, chunk.start, chunk.start + count));
  const Row next{chunk.sequence, chunk.start};
  return CheckLocal({&next, 1});
}

absl::Status CpuExecutor::CheckBatch(std::span<const DecodeSlot> batch) const {
  if (batch.empty() || static_cast<int64_t>(batch.size()) > options_.max_decode_batch) {
    return base::InvalidArgument("decode batch: want 1 to {} sequences, got {}",
                                 options_.max_decode_batch, batch.size());
  }
  std::vector<const kv::KvSequence*> seen;
  for (const DecodeSlot& slot : batch) {
    RETURN_IF_ERROR(CheckToken(slot.token));
    RETURN_IF_ERROR(CheckSequence(slot.sequence, slot.position, slot.position + 1));
    if (static_cast<int64_t>(slot.logits.size()) != config_.vocab_size) {
      return base::InvalidArgument("logits: want {} values, got {}", config_.vocab_size,
                                   slot.logits.size());
    }
    if (std::find(seen.begin(), seen.end(), slot.sequence) != seen.end()) {
      return base::InvalidArgument("decode batch: a sequence stands in it twice");
    }
    seen.push_back(slot.sequence);
    const Row next{slot.sequence, slot.position};
    RETURN_IF_ERROR(CheckLocal({&next, 1}));
  }
  return absl::OkStatus();
}

void CpuExecutor::Reserve(int64_t rows) {
  hidden_.Resize(rows * config_.hidden_dim);
  normed_.Resize(rows * config_.hidden_dim);
  qkv_.Resize(rows * Largest(config_, QkvColumns));
  attended_.Resize(rows * Largest(config_, QColumns));
  ffn_.Resize(rows * Largest(config_, [](const model::LayerConfig& l) { return l.ffn_dim; }));
  const int64_t angles = static_cast<int64_t>(inverse_frequencies_.size());
  cosines_.Resize(rows * angles);
  sines_.Resize(rows * angles);
}

void CpuExecutor::Embed(std::span<const TokenId> tokens) {
  ForRows(*pool_, 0, static_cast<int64_t>(tokens.size()), [&](int64_t row) {
    weights_->embedding.DecodeRow(tokens[row], hidden_.data() + row * config_.hidden_dim);
  });
}

void CpuExecutor::FillRope(std::span<const Row> rows) {
  const int64_t angles = static_cast<int64_t>(inverse_frequencies_.size());
  ForRows(*pool_, 0, static_cast<int64_t>(rows.size()), [&](int64_t row) {
    for (int64_t i = 0; i < angles; ++i) {
      // The angle is rounded to float, as reference implementations do; it matters at large
      // positions.
      const float angle = static_cast<float>(rows[row].position) * inverse_frequencies_[i];
      cosines_.data()[row * angles + i] = static_cast<float>(std::cos(double{angle}));
      sines_.data()[row * angles + i] = static_cast<float>(std::sin(double{angle}));
    }
  });
}

void CpuExecutor::Norm(const std::vector<float>& weight, int64_t row_begin, int64_t row_end) {
  const int64_t size = config_.hidden_dim;
  ForRows(*pool_, row_begin, row_end, [&](int64_t row) {
    RmsNorm(hidden_.data() + row * size, weight.data(), config_.norm_eps, size,
            normed_.data() + row * size);
  });
}

void CpuExecutor::WriteKv(int layer, const Row& row, const float* k, const float* v) {
  const kv::KvLayout& layout = row.sequence->layout();
  const int dim = layout.layers[layer].head_dim;
  std::byte* page = row.sequence->Page(layer, row.position / kv::kPageTokens);
  const int token = static_cast<int>(row.position % kv::kPageTokens);
  for (int h = 0; h < layout.layers[layer].kv_heads; ++h) {
    StoreKv(k + h * dim, dim, layout.dtype, page + layout.KOffset(layer, h, token));
    StoreKv(v + h * dim, dim, layout.dtype, page + layout.VOffset(layer, h, token));
  }
}

void CpuExecutor::Multiply(const Matrix& matrix, const MatMul::Args& args, bool prefill) {
  if (prefill) {
    matmul_.RunFast(matrix, args);
  } else {
    matmul_.Run(matrix, args);
  }
}

void CpuExecutor::ProjectQkv(int layer, std::span<const Row> rows, bool prefill) {
  const LayerWeights& w = weights_->layers[layer];
  const model::LayerConfig& l = config_.layers[layer];
  const int64_t count = static_cast<int64_t>(rows.size());
  const int64_t columns = QkvColumns(l);
  Norm(w.attn_norm, 0, count);
  Multiply(w.qkv,
           {.x = normed_.data(),
            .ldx = config_.hidden_dim,
            .rows = count,
            .y = qkv_.data(),
            .ldy = columns,
            .bias = w.qkv_bias.empty() ? nullptr : w.qkv_bias.data()},
           prefill);
  const int64_t angles = static_cast<int64_t>(inverse_frequencies_.size());
  ForRows(*pool_, 0, count, [&](int64_t row) {
    float* q = qkv_.data() + row * columns;
    for (int h = 0; h < l.num_heads + l.num_kv_heads; ++h) {
      Rope(cosines_.data() + row * angles, sines_.data() + row * angles, l.head_dim,
           q + static_cast<int64_t>(h) * l.head_dim);
    }
    const float* k = q + QColumns(l);
    WriteKv(layer, rows[row], k, k + KvColumns(l));
  });
}

void CpuExecutor::FinishLayer(int layer, int64_t row_begin, int64_t row_end, bool prefill) {
  const LayerWeights& w = weights_->layers[layer];
  const model::LayerConfig& l = config_.layers[layer];
  const int64_t hidden = config_.hidden_dim;
  const int64_t rows = row_end - row_begin;
  float* residual = hidden_.data() + row_begin * hidden;
  Multiply(w.o,
           {.x = attended_.data() + row_begin * QColumns(l),
            .ldx = QColumns(l),
            .rows = rows,
            .y = residual,
            .ldy = hidden,
            .then = MatMul::Then::kAdd},
           prefill);
  Norm(w.ffn_norm, row_begin, row_end);
  Multiply(w.gate_up,
           {.x = normed_.data() + row_begin * hidden,
            .ldx = hidden,
            .rows = rows,
            .y = ffn_.data(),
            .ldy = l.ffn_dim,
            .then = MatMul::Then::kSwiGlu},
           prefill);
  Multiply(w.down,
           {.x = ffn_.data(),
            .ldx = l.ffn_dim,
            .rows = rows,
            .y = residual,
            .ldy = hidden,
            .then = MatMul::Then::kAdd},
           prefill);
}

void CpuExecutor::Logits(int64_t row_begin, int64_t row_end, float* out) {
  Norm(weights_->output_norm, row_begin, row_end);
  matmul_.Run(weights_->output(), {.x = normed_.data() + row_begin * config_.hidden_dim,
                                   .ldx = config_.hidden_dim,
                                   .rows = row_end - row_begin,
                                   .y = out,
                                   .ldy = config_.vocab_size});
}

void CpuExecutor::ReportLogits(const PrefillChunk& chunk) {
  const int64_t count = static_cast<int64_t>(chunk.tokens.size());
  if (!chunk.on_logits) {
    if (!chunk.last_logits.empty()) Logits(count - 1, count, chunk.last_logits.data());
    return;
  }
  const int64_t vocab = config_.vocab_size;
  logits_.Resize(std::min(count, kLogitRows) * vocab);
  for (int64_t begin = 0; begin < count; begin += kLogitRows) {
    const int64_t end = std::min(count, begin + kLogitRows);
    Logits(begin, end, logits_.data());
    for (int64_t row = begin; row < end; ++row) {
      const float* from = logits_.data() + (row - begin) * vocab;
      chunk.on_logits(chunk.start + row, {from, static_cast<size_t>(vocab)});
      if (row + 1 == count && !chunk.last_logits.empty()) {
        std::copy(from, from + vocab, chunk.last_logits.begin());
      }
    }
  }
}

absl::Status CpuExecutor::Prefill(const PrefillChunk& chunk) {
  RETURN_IF_ERROR(CheckChunk(chunk));
  const int64_t count = static_cast<int64_t>(chunk.tokens.size());
  std::vector<Row> rows;
  for (int64_t i = 0; i < count; ++i) rows.push_back({chunk.sequence, chunk.start + i});
  Reserve(count);
  Embed(chunk.tokens);
  FillRope(rows);
  // Of the last layer only those rows go on whose logits somebody wants.
  const int64_t wanted = chunk.on_logits ? 0 : (chunk.last_logits.empty() ? count : count - 1);
  for (int layer = 0; layer < config_.num_layers(); ++layer) {
    if (chunk.cancelled && chunk.cancelled()) {
      return base::Cancelled("prefill of [{}, {}) cancelled before layer {}", chunk.start,
                             chunk.start + count, layer);
    }
    ProjectQkv(layer, rows, true);
    chunk.sequence->MarkLocal(layer, chunk.start, chunk.start + count);
    // Before the layer's own attention: its KV can travel while that runs.
    if (chunk.on_layer) chunk.on_layer(layer, chunk.start, chunk.start + count);
    const int64_t begin = layer + 1 == config_.num_layers() ? wanted : 0;
    if (begin == count) continue;
    const model::LayerConfig& l = config_.layers[layer];
    const Attention::Job job{.sequence = chunk.sequence,
                             .position = chunk.start + begin,
                             .rows = count - begin,
                             .q = qkv_.data() + begin * QkvColumns(l),
                             .ldq = QkvColumns(l),
                             .out = attended_.data() + begin * QColumns(l),
                             .ldo = QColumns(l)};
    attention_.Run(layer, l.num_heads, {&job, 1});
    FinishLayer(layer, begin, count, true);
  }
  ReportLogits(chunk);
  return absl::OkStatus();
}

absl::Status CpuExecutor::Decode(std::span<const DecodeSlot> batch) {
  RETURN_IF_ERROR(CheckBatch(batch));
  const int64_t count = static_cast<int64_t>(batch.size());
  std::vector<Row> rows;
  std::vector<TokenId> tokens;
  for (const DecodeSlot& slot : batch) {
    rows.push_back({slot.sequence, slot.position});
    tokens.push_back(slot.token);
  }
  Reserve(count);
  Embed(tokens);
  FillRope(rows);
  std::vector<Attention::Job> jobs(count);
  for (int layer = 0; layer < config_.num_layers(); ++layer) {
    const model::LayerConfig& l = config_.layers[layer];
    ProjectQkv(layer, rows, false);
    for (int64_t i = 0; i < count; ++i) {
      rows[i].sequence->MarkLocal(layer, rows[i].position, rows[i].position + 1);
      jobs[i] = {.sequence = rows[i].sequence,
                 .position = rows[i].position,
                 .rows = 1,
                 .q = qkv_.data() + i * QkvColumns(l),
                 .ldq = QkvColumns(l),
                 .out = attended_.data() + i * QColumns(l),
                 .ldo = QColumns(l)};
    }
    attention_.Run(layer, l.num_heads, jobs);
    FinishLayer(layer, 0, count, false);
  }
  if (count == 1) {
    Logits(0, 1, batch[0].logits.data());
    return absl::OkStatus();
  }
  const int64_t vocab = config_.vocab_size;
  logits_.Resize(count * vocab);
  Logits(0, count, logits_.data());
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(batch[i].logits.data(), logits_.data() + i * vocab, vocab * sizeof(float));
  }
  return absl::OkStatus();
}

}  // namespace smartgen::executor::cpu
