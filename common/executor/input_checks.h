// What every executor refuses before it computes anything.
#pragma once

#include <cstdint>
#include <span>

#include "common/executor/executor.h"
#include "common/executor/shapes.h"

namespace smartgen::executor {

class InputChecks {
 public:
  // Ids below `tokens` have an embedding. `config` must outlive it.
  InputChecks(const model::ModelConfig* config, const ExecutorOptions& options, kv::DType dtype,
              int64_t tokens)
      : config_(*config),
        options_(options),
        dtype_(dtype),
        tokens_(std::min<int64_t>(config->vocab_size, tokens)) {}

  absl::Status Chunk(const PrefillChunk& chunk) const;
  // For StartStep, and for Decode, which takes no `read`.
  absl::Status Batch(std::span<const DecodeSlot> batch) const;
  absl::Status WholeBatch(std::span<const DecodeSlot> batch) const;
  absl::Status Jobs(std::span<const AttendJob> jobs) const;

 private:
  absl::Status Token(TokenId token) const;
  absl::Status Sequence(const kv::KvSequence* sequence, int64_t start, int64_t end) const;
  // What a query at row.position sees before itself, from token `from` on, is local in layers
  // [layer_begin, layer_end).
  absl::Status Local(const Row& row, int layer_begin, int layer_end, int64_t from = 0) const;
  absl::Status Slot(const DecodeSlot& slot) const;
  absl::Status Read(const DecodeSlot& slot, int layer_end) const;
  absl::Status Job(const AttendJob& job) const;

  const model::ModelConfig& config_;
  const ExecutorOptions options_;
  const kv::DType dtype_;
  const int64_t tokens_;
};

}  // namespace smartgen::executor
