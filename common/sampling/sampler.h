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
  // Tokens that end the generation, and how many others must come before one may (min_tokens).
  // ignore_eos: they are tokens like any other.
  std::vector<TokenId> eos_ids;
  int min_tokens = 0;
  bool ignore_eos = false;
  // The first generated tokens are these, whatever the logits say (teacher forcing); sampling
  // begins behind them. Their log-probabilities are given like those of any token.
  std::vector<TokenId> forced_ids;

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

  // Order: penalties (repetition, then frequency and presence), logit_bias, min_tokens,
  // temperature, top_k, top_p (of what top_k left), min_p.
  //
  // The token for absolute position `position` (= index of the token in prompt + generated).
  // `logits` is scratch: it is overwritten. Log-probabilities are of the model's own distribution
  // (before temperature, penalties and truncation), as OpenAI gives them. Ties go to the lower id.
  // While fewer tokens were accepted than are forced, the next forced one is the token.
  // NaN or infinite logits (or none above -infinity) are Internal, never a token.
  absl::StatusOr<SampledToken> Sample(std::span<float> logits, int64_t position);
  // Records a token for min_tokens and the penalties; called with what Sample returned.
  void Accept(TokenId id);
  bool IsEos(TokenId id) const;
  const SamplingParams& params() const { return params_; }

 private:
  struct Candidate {
    TokenId id;
    float value;  // a logit, then exp of it
  };

  bool Forces() const;
  bool UsesPenalties() const;
  bool Truncates(size_t vocabulary) const;
  void ApplyPenalties(std::span<float> logits) const;
  // Penalties, bias and min_tokens. False if there is nothing to adjust.
  bool Adjust(std::span<float> logits) const;
  // The `count` best into candidates_, in no order.
  void CollectBest(std::span<const float> logits, size_t count);
  // Those of at least `threshold` into candidates_, ascending by id; returns their sum. block_sum_
  // is of `weights`.
  double CollectAbove(std::span<const float> weights, float threshold);
  // Leaves the smallest set of best candidates whose sum is at least `mass`.
  void CutToMass(double mass);
  void AddTopLogprobs(std::span<const float> logits, double log_normaliser, SampledToken& out);
  TokenId DrawFromAll(std::span<float> logits, float max, double uniform);
  TokenId DrawTruncated(std::span<float> logits, float max, double uniform);

  SamplingParams params_;
  int64_t num_generated_ = 0;
  std::vector<std::pair<TokenId, int>> generated_counts_;  // sorted by id; only for penalties
  std::vector<TokenId> prompt_ids_;                        // sorted, unique; only for penalties
  // Scratch, kept so that a token costs no allocation.
  std::vector<float> raw_logits_;
  std::vector<float> block_max_;
  std::vector<float> sorted_block_max_;
  std::vector<double> block_sum_;
  std::vector<Candidate> candidates_;
};

// Uniform in [0, 1) from a counter-based generator.
double UniformAt(uint64_t seed, int64_t position);

}  // namespace smartgen::sampling
