#include "common/executor/bench.h"

#include <algorithm>

#include "common/base/clock.h"

namespace smartgen::executor {
namespace {

struct OneRun {
  double prefill;
  double decode;
};

TokenId Greedy(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double PerSecond(int64_t count, base::TimePoint since) {
  return static_cast<double>(count) / base::ToSeconds(base::Clock::Real()->Now() - since);
}

absl::StatusOr<OneRun> RunOnce(Executor& executor, kv::KvPool& pool,
                               std::span<const TokenId> prompt, const ModelBenchOptions& options) {
  const int64_t count = static_cast<int64_t>(prompt.size());
  kv::KvSequence sequence(&pool);
  RETURN_IF_ERROR(sequence.Reserve(count + options.decode_tokens));
  std::vector<float> logits(executor.config().vocab_size);
  OneRun result{};
  base::TimePoint start = base::Clock::Real()->Now();
  for (int64_t at = 0; at < count; at += options.max_prefill_tokens) {
    const int64_t end = std::min<int64_t>(count, at + options.max_prefill_tokens);
    PrefillChunk chunk{.sequence = &sequence, .start = at, .tokens = prompt.subspan(at, end - at)};
    if (end == count) chunk.last_logits = logits;
    RETURN_IF_ERROR(executor.Prefill(chunk));
  }
  result.prefill = PerSecond(count, start);
  TokenId token = Greedy(logits);
  start = base::Clock::Real()->Now();
  for (int step = 0; step < options.decode_tokens; ++step) {
    const DecodeSlot slot{
        .sequence = &sequence, .position = count + step, .token = token, .logits = logits};
    RETURN_IF_ERROR(executor.Decode({&slot, 1}));
    token = Greedy(logits);
  }
  result.decode = PerSecond(options.decode_tokens, start);
  return result;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

absl::StatusOr<ModelBenchResult> BenchModel(Executor& executor, kv::KvPool& pool,
                                            std::span<const TokenId> text,
                                            const ModelBenchOptions& options) {
  if (text.empty() || options.decode_tokens < 1 || options.runs < 1 ||
      options.max_prefill_tokens < 1) {
    return base::InvalidArgument(
        "model benchmark: want a text, and at least 1 decode token, run and token a chunk; got {} "
        "tokens, {}, {} and {}",
        text.size(), options.decode_tokens, options.runs, options.max_prefill_tokens);
  }
  ModelBenchResult result{.compute = executor.compute(),
                          .threads = executor.threads(),
                          .decode_tokens = options.decode_tokens};
  for (int length : options.prompt_lengths) {
    if (length < 1) return base::InvalidArgument("prompt length: want at least 1, got {}", length);
    std::vector<TokenId> prompt(length);
    for (int i = 0; i < length; ++i) prompt[i] = text[i % text.size()];
    ModelBenchRow row{.prompt_tokens = length};
    for (int run = 0; run < options.runs; ++run) {
      ASSIGN_OR_RETURN(const OneRun one, RunOnce(executor, pool, prompt, options));
      row.prefill_all.push_back(one.prefill);
      row.decode_all.push_back(one.decode);
    }
    row.prefill_tokens_per_second = Median(row.prefill_all);
    row.decode_tokens_per_second = Median(row.decode_all);
    result.rows.push_back(std::move(row));
  }
  return result;
}

}  // namespace smartgen::executor
