// Logits to a token. Deterministic: the random number of a position is a function of (seed,
// position) alone, so a stream that is resumed or recomputed anywhere goes on identically.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace smartgen::sampling {

using TokenId = int32_t;

struct SamplingParams {
  float temperature = 1.0f;         // 0: greedy. [0, 2]
  float top_p = 1.0f;               // (0, 1]
  int top_k = 0;                    // 0: off; larger than the vocabulary is clamped
  float min_p = 0.0f;               // [0, 1]: drops tokens below min_p * the best one's probability
  float presence_penalty = 0.0f;    // [-2, 2], on generated tokens (OpenAI)
  float frequency_penalty = 0.0f;   // [-2, 2], on generated tokens (OpenAI)
  float repetition_penalty = 1.0f;  // > 0, on prompt and generated tokens (CTRL paper)
  uint64_t seed = 0;
  std::vector<std::pair<TokenId, float>> logit_bias;  // [-100, 100]
  // > 0: log-probabilities of the chosen and the N best tokens come with each token. At most 20; -1
  // off
  int logprobs = -1;
  // Tokens that end the generation, and how many must come before one may (min_tokens).
  std::vector<TokenId> eos_ids;
  int min_tokens = 0;
  bool ignore_eos = false;

  // InvalidArgument names the field, its range and what came.
  absl::Status Check(int vocab_size) const;
};

struct TokenLogprob {
  TokenId id;
  float logprob;
};

struct SampledToken {
  TokenId id = 0;
  float logprob = 0;              // of id; only if asked for
  std::vector<TokenLogprob> top;  // descending; only if asked for
};

// One per sequence. Not thread-safe.
class Sampler {
 public:
  // `prompt` counts for repetition_penalty. `generated` are tokens already sent (a resumed stream).
  Sampler(SamplingParams params, std::span<const TokenId> prompt,
          std::span<const TokenId> generated = {});

  // The token for absolute position `position` (= index of the token in prompt + generated).
  // `logits` is scratch: it is overwritten. Log-probabilities are of the model's own distribution
  // (before temperature, penalties and truncation), as OpenAI gives them. Ties go to the lower id.
  // NaN logits are Internal, never a token.
  absl::StatusOr<SampledToken> Sample(std::span<float> logits, int64_t position);
  // Records a token for the penalties; called with what Sample returned.
  void Accept(TokenId id);
  bool IsEos(TokenId id) const;
  const SamplingParams& params() const { return params_; }

 private:
  SamplingParams params_;
  int64_t num_generated_ = 0;
  std::vector<std::pair<TokenId, int>> generated_counts_;  // sorted by id
  std::vector<TokenId> prompt_ids_;                        // sorted, unique
};

// Uniform in [0, 1) from a counter-based generator.
double UniformAt(uint64_t seed, int64_t position);

}  // namespace smartgen::sampling
