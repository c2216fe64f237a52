// How fast a model runs: prefill and decode tokens/s at given prompt lengths.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/executor/executor.h"
#include "common/kv/pool.h"

namespace smartgen::executor {

struct ModelBenchRow {
  int prompt_tokens = 0;
  // Medians over the runs.
  double prefill_tokens_per_second = 0;
  double decode_tokens_per_second = 0;  // at a context of prompt_tokens and on
  std::vector<double> prefill_all;      // each run, in order
  std::vector<double> decode_all;
};

struct ModelBenchResult {
  ComputeType compute = ComputeType::kF32;
  int threads = 0;
  int decode_tokens = 0;
  std::vector<ModelBenchRow> rows;  // one a prompt length, in the order asked
};

struct ModelBenchOptions {
  std::vector<int> prompt_lengths = {512, 2048};
  int decode_tokens = 24;
  int runs = 3;
  int max_prefill_tokens = 2048;  // as the executor was made with
};

// For each length n, `runs` times: prefill the first n tokens of `text` (repeated as often as
// needed) in one go or in chunks of `max_prefill_tokens`, then `decode_tokens` greedy steps.
// InvalidArgument for an empty text or numbers below 1; ResourceExhausted if the pool lacks room.
absl::StatusOr<ModelBenchResult> BenchModel(Executor& executor, kv::KvPool& pool,
                                            std::span<const TokenId> text,
                                            const ModelBenchOptions& options);

}  // namespace smartgen::executor
