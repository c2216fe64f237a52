#include "common/executor/cpu/cpu_executor.h"

#include <algorithm>

namespace smartgen::executor::cpu {
namespace {

constexpr int64_t kLogitRows = 64;  // rows of logits at a time where a caller wants all

}  // namespace

CpuExecutor::CpuExecutor(const model::ModelConfig& config, const ExecutorOptions& options,
                         ComputeType compute, std::unique_ptr<base::ThreadPool> pool,
                         std::unique_ptr<Weights> weights)
    : config_(config),
      compute_(compute),
      pool_(std::move(pool)),
      weights_(std::move(weights)),
      checks_(&config_, options, kv_dtype(), weights_->embedding.columns()),
      forward_(&config_, weights_.get(), pool_.get()),
      attention_(pool_.get()),
      step_parts_{
          .config = &config_, .pool = pool_.get(), .forward = &forward_, .attention = &attention_},
      partial_(pool_.get(), attention_.scratch()) {}

kv::DType CpuExecutor::kv_dtype() const {
  return compute_ == ComputeType::kF32 ? kv::DType::kF32 : kv::DType::kBF16;
}

kv::KvLayout CpuExecutor::Layout(int64_t token_capacity) const {
  return LayoutOf(config_, kv_dtype(), token_capacity);
}

void CpuExecutor::ReportLogits(const PrefillChunk& chunk) {
  const int64_t count = static_cast<int64_t>(chunk.tokens.size());
  if (!chunk.on_logits) {
    if (!chunk.last_logits.empty())
      forward_.Logits(count - 1, count, chunk.last_logits.data(), activations_);
    return;
  }
  const int64_t vocab = config_.vocab_size;
  logits_.Resize(std::min(count, kLogitRows) * vocab);
  for (int64_t begin = 0; begin < count; begin += kLogitRows) {
    const int64_t end = std::min(count, begin + kLogitRows);
    forward_.Logits(begin, end, logits_.data(), activations_);
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
  RETURN_IF_ERROR(checks_.Chunk(chunk));
  const int64_t count = static_cast<int64_t>(chunk.tokens.size());
  std::vector<Row> rows;
  for (int64_t i = 0; i < count; ++i) rows.push_back({chunk.sequence, chunk.start + i});
  Activations& a = activations_;
  forward_.Reserve(count, a);
  forward_.Embed(chunk.tokens, a);
  forward_.FillRope(rows, a);
  // Of the last layer only those rows go on whose logits somebody wants.
  const int64_t wanted = chunk.on_logits ? 0 : (chunk.last_logits.empty() ? count : count - 1);
  for (int layer = 0; layer < config_.num_layers(); ++layer) {
    if (chunk.cancelled && chunk.cancelled()) {
      return base::Cancelled("prefill of [{}, {}) cancelled before layer {}", chunk.start,
                             chunk.start + count, layer);
    }
    const model::LayerConfig& l = config_.layers[layer];
    forward_.ProjectQkv(layer, rows, true, a);
    chunk.sequence->MarkLocal(layer, chunk.start, chunk.start + count);
    if (chunk.on_queries) {
      chunk.on_queries(layer, {a.qkv.data(), static_cast<size_t>(count * QkvColumns(l))},
                       QkvColumns(l));
    }
    // Before the layer's own attention: its KV can travel while that runs.
    if (chunk.on_layer) chunk.on_layer(layer, chunk.start, chunk.start + count);
    const int64_t begin = layer + 1 == config_.num_layers() ? wanted : 0;
    if (begin == count) continue;
    const Attention::Job job{.sequence = chunk.sequence,
                             .position = chunk.start + begin,
                             .rows = count - begin,
                             .q = a.qkv.data() + begin * QkvColumns(l),
                             .ldq = QkvColumns(l),
                             .out = a.attended.data() + begin * QColumns(l),
                             .ldo = QColumns(l)};
    attention_.Run(layer, l.num_heads, {&job, 1});
    forward_.FinishLayer(layer, begin, count, true, a);
  }
  ReportLogits(chunk);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<StepRun>> CpuExecutor::StartStep(std::span<const DecodeSlot> batch) {
  RETURN_IF_ERROR(checks_.Batch(batch));
  return std::make_unique<Step>(&step_parts_, batch);
}

absl::Status CpuExecutor::Decode(std::span<const DecodeSlot> batch) {
  RETURN_IF_ERROR(checks_.WholeBatch(batch));
  Step step(&step_parts_, batch);
  ASSIGN_OR_RETURN(const StepRun::State state, step.Advance());
  if (state == StepRun::State::kDone) return absl::OkStatus();
  return base::Internal("decode: a step without remote KV waits");
}

absl::Status CpuExecutor::Attend(std::span<const AttendJob> jobs) {
  RETURN_IF_ERROR(checks_.Jobs(jobs));
  std::vector<SelectedAttention::Job> parts;
  for (const AttendJob& job : jobs) {
    parts.push_back({.sequence = job.sequence,
                     .layer = job.layer,
                     .num_heads = config_.layers[job.layer].num_heads,
                     .q = job.queries.data(),
                     .out = job.out.data(),
                     .lse = job.lse.data(),
                     .begin = job.begin,
                     .end = job.end});
  }
  partial_.Start(parts);
  if (partial_.Run()) return absl::OkStatus();
  return base::Internal("attend: local jobs wait");
}

}  // namespace smartgen::executor::cpu
