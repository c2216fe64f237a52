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
      options_(options),
      compute_(compute),
      pool_(std::move(pool)),
      weights_(std::move(weights)),
      forward_(&config_, weights_.get(), pool_.get()),
      attention_(pool_.get()),
      step_parts_{
          .config = &config_, .pool = pool_.get(), .forward = &forward_, .attention = &attention_},
      partial_(pool_.get(), attention_.scratch()) {}

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

absl::Status CpuExecutor::CheckLocal(const Row& row, int layer_begin, int layer_end,
                                     int64_t from) const {
  for (int layer = layer_begin; layer < layer_end; ++layer) {
    const int window = config_.layers[layer].window;
    const int64_t visible = window > 0 ? std::max<int64_t>(0, row.position + 1 - window) : 0;
    const int64_t first = std::max(visible, from);
    const int64_t missing = row.sequence->FirstNotLocal(layer, first, row.position);
    if (missing == row.position) continue;
    return base::FailedPrecondition(
        "layer {}: KV of token {} is not local, but the work begins at {}", layer, missing,
        row.position);
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
  return CheckLocal({chunk.sequence, chunk.start}, 0, config_.num_layers());
}

absl::Status CpuExecutor::CheckSlot(const DecodeSlot& slot) const {
  RETURN_IF_ERROR(CheckToken(slot.token));
  RETURN_IF_ERROR(CheckSequence(slot.sequence, slot.position, slot.position + 1));
  const int layers = config_.num_layers();
  if (slot.layer_begin < 0 || slot.layer_begin > layers) {
    return base::InvalidArgument("layer_begin: want 0 to {}, got {}", layers, slot.layer_begin);
  }
  const int least = std::min(slot.layer_begin + 1, layers);
  if (slot.layer_end != -1 && (slot.layer_end < least || slot.layer_end > layers)) {
    return base::InvalidArgument("layer_end: want {} to {} or -1 after layer_begin {}, got {}",
                                 least, layers, slot.layer_begin, slot.layer_end);
  }
  const int end = LayerEnd(slot, layers);
  const auto hidden = static_cast<int64_t>(slot.hidden.size());
  const bool needed = slot.layer_begin > 0 || end < layers;
  if (hidden != config_.hidden_dim && (needed || hidden != 0)) {
    return base::InvalidArgument("hidden: want {} values for layers [{}, {}) of {}, got {}",
                                 config_.hidden_dim, slot.layer_begin, end, layers, hidden);
  }
  // The hidden state may be all that is wanted, unless it is what came in.
  const bool optional = end < layers || (hidden != 0 && slot.layer_begin < layers);
  const auto logits = static_cast<int64_t>(slot.logits.size());
  if (logits != config_.vocab_size && (!optional || logits != 0)) {
    return base::InvalidArgument("logits: want {} values, got {}", config_.vocab_size, logits);
  }
  const Row row{slot.sequence, slot.position};
  if (slot.read == nullptr) return CheckLocal(row, slot.layer_begin, end);
  RETURN_IF_ERROR(CheckRead(slot, end));
  if (slot.read->remote == nullptr) return CheckLocal(row, slot.layer_begin, end);
  // What is fetched is looked for layer by layer; what is shipped leaves the newer tokens.
  if (slot.read->ship_end == 0) return absl::OkStatus();
  return CheckLocal(row, slot.layer_begin, end, slot.read->ship_end);
}

absl::Status CpuExecutor::CheckRead(const DecodeSlot& slot, int layer_end) const {
  const SlotRead& read = *slot.read;
  if (read.ship_end < 0 || read.ship_end > slot.position) {
    return base::InvalidArgument("read.ship_end: want 0 to the position {}, got {}", slot.position,
                                 read.ship_end);
  }
  if (read.ship_end > 0 && (read.remote == nullptr || read.selector != nullptr)) {
    return base::InvalidArgument("read.ship_end: {}: query shipping wants a remote and no selector",
                                 read.ship_end);
  }
  if (read.selector == nullptr) return absl::OkStatus();
  if (read.metadata == nullptr) {
    return base::InvalidArgument("read.metadata: a selector wants some, got none");
  }
  const selector::MetadataLayout& layout = read.selector->metadata();
  if (&read.metadata->layout() != &layout) {
    return base::InvalidArgument("read.metadata: was made for another selector");
  }
  if (layout.num_layers() != config_.num_layers() || layout.dtype != kv_dtype()) {
    return base::InvalidArgument("read.selector: want one of {} layers and {} KV, got {} and {}",
                                 config_.num_layers(), kv::DTypeName(kv_dtype()),
                                 layout.num_layers(), kv::DTypeName(layout.dtype));
  }
  if (read.metadata->token_capacity() <= slot.position) {
    return base::InvalidArgument("read.metadata: want room for {} tokens, got {}",
                                 slot.position + 1, read.metadata->token_capacity());
  }
  for (int layer = slot.layer_begin; layer < layer_end; ++layer) {
    // An empty range is complete when the header is there, which the token's own metadata needs.
    if (read.metadata->Complete(layer, 0, 0) &&
        read.selector->Ready(layer, *read.metadata, slot.position + 1)) {
      continue;
    }
    return base::FailedPrecondition(
        "read.metadata: layer {}: the metadata of {} tokens is not complete", layer, slot.position);
  }
  return absl::OkStatus();
}

absl::Status CpuExecutor::CheckBatch(std::span<const DecodeSlot> batch) const {
  if (batch.empty() || static_cast<int64_t>(batch.size()) > options_.max_decode_batch) {
    return base::InvalidArgument("decode batch: want 1 to {} sequences, got {}",
                                 options_.max_decode_batch, batch.size());
  }
  for (size_t i = 0; i < batch.size(); ++i) {
    RETURN_IF_ERROR(base::Annotate(CheckSlot(batch[i]), fmt::format("decode slot {}", i)));
    for (size_t j = 0; j < i; ++j) {
      if (batch[i].sequence == batch[j].sequence) {
        return base::InvalidArgument("decode batch: slots {} and {} are of one sequence", j, i);
      }
    }
  }
  return absl::OkStatus();
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
  RETURN_IF_ERROR(CheckChunk(chunk));
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
  RETURN_IF_ERROR(CheckBatch(batch));
  return std::make_unique<Step>(&step_parts_, batch);
}

absl::Status CpuExecutor::Decode(std::span<const DecodeSlot> batch) {
  for (size_t i = 0; i < batch.size(); ++i) {
    if (batch[i].read == nullptr) continue;
    return base::InvalidArgument("decode slot {}: read: want none (StartStep takes it)", i);
  }
  RETURN_IF_ERROR(CheckBatch(batch));
  Step step(&step_parts_, batch);
  ASSIGN_OR_RETURN(const StepRun::State state, step.Advance());
  if (state == StepRun::State::kDone) return absl::OkStatus();
  return base::Internal("decode: a step without remote KV waits");
}

absl::Status CpuExecutor::CheckJob(const AttendJob& job) const {
  if (job.layer < 0 || job.layer >= config_.num_layers()) {
    return base::InvalidArgument("layer: want 0 to {}, got {}", config_.num_layers() - 1,
                                 job.layer);
  }
  if (job.begin < 0 || job.begin > job.end) {
    return base::InvalidArgument("begin, end: want an ascending range, got [{}, {})", job.begin,
                                 job.end);
  }
  RETURN_IF_ERROR(CheckSequence(job.sequence, job.begin, job.end));
  const model::LayerConfig& l = config_.layers[job.layer];
  const auto columns = static_cast<size_t>(QColumns(l));
  if (job.queries.size() != columns || job.out.size() != columns) {
    return base::InvalidArgument("queries, out: want {} values, got {} and {}", columns,
                                 job.queries.size(), job.out.size());
  }
  if (static_cast<int>(job.lse.size()) != l.num_heads) {
    return base::InvalidArgument("lse: want {} values, got {}", l.num_heads, job.lse.size());
  }
  const int64_t missing = job.sequence->FirstNotLocal(job.layer, job.begin, job.end);
  if (missing == job.end) return absl::OkStatus();
  return base::FailedPrecondition("layer {}: KV of token {} of [{}, {}) is not local", job.layer,
                                  missing, job.begin, job.end);
}

absl::Status CpuExecutor::Attend(std::span<const AttendJob> jobs) {
  std::vector<SelectedAttention::Job> parts;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const AttendJob& job = jobs[i];
    RETURN_IF_ERROR(base::Annotate(CheckJob(job), fmt::format("attend job {}", i)));
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
