#include <algorithm>
#include <cmath>
#include <string_view>

#include "common/sampling/sampler.h"

namespace smartgen::sampling {
namespace {

constexpr int kMaxMinTokens = 1 << 24;

// Written so that NaN fails.
absl::Status CheckRange(std::string_view field, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return base::InvalidArgument("{}: want {} to {}, got {}", field, low, high, value);
}

absl::Status CheckId(std::string_view field, TokenId id, int vocab_size) {
  if (id >= 0 && id < vocab_size) return absl::OkStatus();
  return base::InvalidArgument("{}: want token ids from 0 to {}, got {}", field, vocab_size - 1,
                               id);
}

// An end-of-text token would end the generation before what was to be measured.
absl::Status CheckForced(const SamplingParams& params, int vocab_size) {
  for (const TokenId id : params.forced_ids) {
    RETURN_IF_ERROR(CheckId("forced_ids", id, vocab_size));
    const bool ends =
        std::find(params.eos_ids.begin(), params.eos_ids.end(), id) != params.eos_ids.end();
    if (ends && !params.ignore_eos) {
      return base::InvalidArgument(
          "forced_ids: want no end-of-text token without ignore_eos, got {}", id);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SamplingParams::Check(int vocab_size) const {
  RETURN_IF_ERROR(CheckRange("temperature", temperature, 0, 2));
  if (!(top_p > 0 && top_p <= 1)) {
    return base::InvalidArgument("top_p: want above 0 and at most 1, got {}", top_p);
  }
  if (top_k < 0) return base::InvalidArgument("top_k: want 0 (off) or more, got {}", top_k);
  RETURN_IF_ERROR(CheckRange("min_p", min_p, 0, 1));
  RETURN_IF_ERROR(CheckRange("presence_penalty", presence_penalty, -2, 2));
  RETURN_IF_ERROR(CheckRange("frequency_penalty", frequency_penalty, -2, 2));
  if (!(repetition_penalty > 0) || !std::isfinite(repetition_penalty)) {
    return base::InvalidArgument("repetition_penalty: want a number above 0, got {}",
                                 repetition_penalty);
  }
  if (logit_bias.size() > static_cast<size_t>(vocab_size)) {
    return base::InvalidArgument("logit_bias: want at most {} entries, got {}", vocab_size,
                                 logit_bias.size());
  }
  for (const auto& [id, bias] : logit_bias) {
    RETURN_IF_ERROR(CheckId("logit_bias", id, vocab_size));
    RETURN_IF_ERROR(CheckRange("logit_bias", bias, -100, 100));
  }
  RETURN_IF_ERROR(CheckRange("logprobs", logprobs, -1, 20));
  for (const TokenId id : eos_ids) RETURN_IF_ERROR(CheckId("eos_ids", id, vocab_size));
  RETURN_IF_ERROR(CheckForced(*this, vocab_size));
  return CheckRange("min_tokens", min_tokens, 0, kMaxMinTokens);
}

}  // namespace smartgen::sampling
