#include "common/executor/input_checks.h"

#include <algorithm>

namespace smartgen::executor {

absl::Status InputChecks::Token(TokenId token) const {
  if (token >= 0 && token < tokens_) return absl::OkStatus();
  return base::InvalidArgument("token id {}: want 0 to {}", token, tokens_ - 1);
}

absl::Status InputChecks::Sequence(const kv::KvSequence* sequence, int64_t start,
                                   int64_t end) const {
  if (sequence == nullptr) return base::InvalidArgument("no sequence given");
  RETURN_IF_ERROR(base::Annotate(
      LayoutOf(config_, dtype_, sequence->layout().token_capacity).CheckEqual(sequence->layout()),
      "the sequence's layout is not the executor's"));
  if (start < 0 || end > sequence->capacity()) {
    return base::InvalidArgument("positions [{}, {}): the sequence has room for [0, {})", start,
                                 end, sequence->capacity());
  }
  return absl::OkStatus();
}

absl::Status InputChecks::Local(const Row& row, int layer_begin, int layer_end,
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

absl::Status InputChecks::Chunk(const PrefillChunk& chunk) const {
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
  for (TokenId token : chunk.tokens) RETURN_IF_ERROR(Token(token));
  RETURN_IF_ERROR(Sequence(chunk.sequence, chunk.start, chunk.start + count));
  return Local({chunk.sequence, chunk.start}, 0, config_.num_layers());
}

absl::Status InputChecks::Slot(const DecodeSlot& slot) const {
  RETURN_IF_ERROR(Token(slot.token));
  RETURN_IF_ERROR(Sequence(slot.sequence, slot.position, slot.position + 1));
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
  if (slot.read == nullptr) return Local(row, slot.layer_begin, end);
  RETURN_IF_ERROR(Read(slot, end));
  if (slot.read->remote == nullptr) return Local(row, slot.layer_begin, end);
  // What is fetched is looked for layer by layer; what is shipped leaves the newer tokens.
  if (slot.read->ship_end == 0) return absl::OkStatus();
  return Local(row, slot.layer_begin, end, slot.read->ship_end);
}

absl::Status InputChecks::Read(const DecodeSlot& slot, int layer_end) const {
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
  if (layout.num_layers() != config_.num_layers() || layout.dtype != dtype_) {
    return base::InvalidArgument("read.selector: want one of {} layers and {} KV, got {} and {}",
                                 config_.num_layers(), kv::DTypeName(dtype_), layout.num_layers(),
                                 kv::DTypeName(layout.dtype));
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

absl::Status InputChecks::Batch(std::span<const DecodeSlot> batch) const {
  if (batch.empty() || static_cast<int64_t>(batch.size()) > options_.max_decode_batch) {
    return base::InvalidArgument("decode batch: want 1 to {} sequences, got {}",
                                 options_.max_decode_batch, batch.size());
  }
  for (size_t i = 0; i < batch.size(); ++i) {
    RETURN_IF_ERROR(base::Annotate(Slot(batch[i]), fmt::format("decode slot {}", i)));
    for (size_t j = 0; j < i; ++j) {
      if (batch[i].sequence == batch[j].sequence) {
        return base::InvalidArgument("decode batch: slots {} and {} are of one sequence", j, i);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status InputChecks::Job(const AttendJob& job) const {
  if (job.layer < 0 || job.layer >= config_.num_layers()) {
    return base::InvalidArgument("layer: want 0 to {}, got {}", config_.num_layers() - 1,
                                 job.layer);
  }
  if (job.begin < 0 || job.begin > job.end) {
    return base::InvalidArgument("begin, end: want an ascending range, got [{}, {})", job.begin,
                                 job.end);
  }
  RETURN_IF_ERROR(Sequence(job.sequence, job.begin, job.end));
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

absl::Status InputChecks::WholeBatch(std::span<const DecodeSlot> batch) const {
  for (size_t i = 0; i < batch.size(); ++i) {
    if (batch[i].read == nullptr) continue;
    return base::InvalidArgument("decode slot {}: read: want none (StartStep takes it)", i);
  }
  return Batch(batch);
}

absl::Status InputChecks::Jobs(std::span<const AttendJob> jobs) const {
  for (size_t i = 0; i < jobs.size(); ++i) {
    RETURN_IF_ERROR(base::Annotate(Job(jobs[i]), fmt::format("attend job {}", i)));
  }
  return absl::OkStatus();
}

}  // namespace smartgen::executor
