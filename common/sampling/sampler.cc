#include "common/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "common/sampling/kernels.h"
#include "common/sampling/philox.h"

namespace smartgen::sampling {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Below it the second best token has no chance worth the name, and 1 / temperature gets out of
// hand.
constexpr float kGreedyBelow = 1e-5f;
constexpr size_t kSortAtMost = 512;

// The order of truncation: ties go to the lower id.
constexpr auto Better = [](const auto& a, const auto& b) {
  return a.value != b.value ? a.value > b.value : a.id < b.id;
};

absl::Status CheckScan(const ScanResult& scan, int64_t position) {
  if (scan.has_nan) return base::Internal("logits of position {}: NaN", position);
  if (!std::isfinite(scan.max)) {
    return base::Internal("logits of position {}: the largest is {}, want a finite number",
                          position, scan.max);
  }
  return absl::OkStatus();
}

}  // namespace

double UniformAt(uint64_t seed, int64_t position) {
  const auto counter = static_cast<uint64_t>(position);
  const auto words =
      Philox4x32({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = static_cast<uint64_t>(words[0]) << 32 | words[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

Sampler::Sampler(SamplingParams params, std::span<const TokenId> prompt,
                 std::span<const TokenId> generated)
    : params_(std::move(params)) {
  if (params_.repetition_penalty != 1.0f) {
    prompt_ids_.assign(prompt.begin(), prompt.end());
    std::sort(prompt_ids_.begin(), prompt_ids_.end());
    prompt_ids_.erase(std::unique(prompt_ids_.begin(), prompt_ids_.end()), prompt_ids_.end());
  }
  for (const TokenId id : generated) Accept(id);
}

bool Sampler::Forces() const {
  return num_generated_ < static_cast<int64_t>(params_.forced_ids.size());
}

bool Sampler::UsesPenalties() const {
  return params_.repetition_penalty != 1.0f || params_.presence_penalty != 0.0f ||
         params_.frequency_penalty != 0.0f;
}

void Sampler::Accept(TokenId id) {
  ++num_generated_;
  if (!UsesPenalties()) return;
  const auto at =
      std::lower_bound(generated_counts_.begin(), generated_counts_.end(), id,
                       [](const auto& entry, TokenId want) { return entry.first < want; });
  if (at != generated_counts_.end() && at->first == id) {
    ++at->second;
  } else {
    generated_counts_.insert(at, {id, 1});
  }
}

bool Sampler::IsEos(TokenId id) const {
  return !params_.ignore_eos &&
         std::find(params_.eos_ids.begin(), params_.eos_ids.end(), id) != params_.eos_ids.end();
}

void Sampler::ApplyPenalties(std::span<float> logits) const {
  const auto in_range = [&](TokenId id) {
    return id >= 0 && static_cast<size_t>(id) < logits.size();
  };
  const auto repeated = [&](float logit) {
    const float penalty = params_.repetition_penalty;
    return logit > 0 ? logit / penalty : logit * penalty;
  };
  for (const auto& [id, count] : generated_counts_) {
    if (!in_range(id)) continue;
    logits[id] = repeated(logits[id]) - params_.presence_penalty -
                 params_.frequency_penalty * static_cast<float>(count);
  }
  // Both lists are sorted: one walk finds the prompt's tokens that were not generated as well.
  auto generated = generated_counts_.begin();
  for (const TokenId id : prompt_ids_) {
    while (generated != generated_counts_.end() && generated->first < id) ++generated;
    const bool done = generated != generated_counts_.end() && generated->first == id;
    if (!done && in_range(id)) logits[id] = repeated(logits[id]);
  }
}

bool Sampler::Adjust(std::span<float> logits) const {
  const bool hold_eos = num_generated_ < params_.min_tokens && !params_.ignore_eos;
  if (!UsesPenalties() && params_.logit_bias.empty() && !hold_eos) return false;
  if (UsesPenalties()) ApplyPenalties(logits);
  for (const auto& [id, bias] : params_.logit_bias) {
    if (id >= 0 && static_cast<size_t>(id) < logits.size()) logits[id] += bias;
  }
  if (!hold_eos) return true;
  for (const TokenId id : params_.eos_ids) {
    if (id >= 0 && static_cast<size_t>(id) < logits.size()) logits[id] = -kInfinity;
  }
  return true;
}

absl::StatusOr<SampledToken> Sampler::Sample(std::span<float> logits, int64_t position) {
  if (logits.empty()) return base::Internal("logits of position {}: none", position);
  ScanResult scan = Scan(logits, block_max_);
  RETURN_IF_ERROR(CheckScan(scan, position));
  SampledToken out;
  const bool want_logprobs = params_.logprobs >= 0;
  double log_normaliser = 0;
  if (want_logprobs) {
    raw_logits_.assign(logits.begin(), logits.end());
    log_normaliser = scan.max + std::log(SumExp(logits, scan.max));
    AddTopLogprobs(logits, log_normaliser, out);
  }
  if (Forces()) {
    out.id = params_.forced_ids[static_cast<size_t>(num_generated_)];
    if (out.id < 0 || static_cast<size_t>(out.id) >= logits.size()) {
      return base::Internal("forced_ids[{}]: {} is no token of {}", num_generated_, out.id,
                            logits.size());
    }
    if (want_logprobs) out.logprob = static_cast<float>(raw_logits_[out.id] - log_normaliser);
    return out;
  }
  if (Adjust(logits)) {
    scan = Scan(logits, block_max_);
    RETURN_IF_ERROR(CheckScan(scan, position));
  }
  if (params_.temperature < kGreedyBelow) {
    out.id = static_cast<TokenId>(FirstMax(logits, block_max_, scan.max));
  } else {
    const double uniform = UniformAt(params_.seed, position);
    out.id = Truncates(logits.size()) ? DrawTruncated(logits, scan.max, uniform)
                                      : DrawFromAll(logits, scan.max, uniform);
  }
  if (want_logprobs) out.logprob = static_cast<float>(raw_logits_[out.id] - log_normaliser);
  return out;
}

bool Sampler::Truncates(size_t vocabulary) const {
  const bool top_k = params_.top_k > 0 && static_cast<size_t>(params_.top_k) < vocabulary;
  return top_k || params_.top_p < 1.0f || params_.min_p > 0.0f;
}

void Sampler::AddTopLogprobs(std::span<const float> logits, double log_normaliser,
                             SampledToken& out) {
  if (params_.logprobs == 0) return;
  CollectBest(logits, static_cast<size_t>(params_.logprobs));
  std::sort(candidates_.begin(), candidates_.end(), Better);
  for (const Candidate& c : candidates_) {
    out.top.push_back({c.id, static_cast<float>(c.value - log_normaliser)});
  }
}

TokenId Sampler::DrawFromAll(std::span<float> logits, float max, double uniform) {
  const double total = ExpInPlace(logits, max, 1.0f / params_.temperature, block_sum_);
  double left = uniform * total;
  size_t block = 0;
  for (; block + 1 < block_sum_.size() && left >= block_sum_[block]; ++block) {
    left -= block_sum_[block];
  }
  const size_t end = std::min(logits.size(), (block + 1) * kBlock);
  for (size_t i = block * kBlock; i < end; ++i) {
    left -= logits[i];
    if (left < 0) return static_cast<TokenId>(i);
  }
  // The sums were rounded differently, by parts in 1e7: the last token that has any weight.
  size_t last = end - 1;
  while (last > 0 && logits[last] == 0) --last;
  return static_cast<TokenId>(last);
}

void Sampler::CollectBest(std::span<const float> logits, size_t count) {
  candidates_.clear();
  // Each of the `count` largest blocks has an element as large as the smallest of their maxima:
  // what lies below that cannot be among the best.
  float bound = -kInfinity;
  if (count <= block_max_.size()) {
    sorted_block_max_ = block_max_;
    const auto nth = sorted_block_max_.begin() + static_cast<int64_t>(count) - 1;
    std::nth_element(sorted_block_max_.begin(), nth, sorted_block_max_.end(), std::greater<>());
    bound = *nth;
  }
  for (size_t block = 0; block < block_max_.size(); ++block) {
    if (block_max_[block] < bound) continue;
    const size_t end = std::min(logits.size(), (block + 1) * kBlock);
    for (size_t i = block * kBlock; i < end; ++i) {
      if (logits[i] < bound || logits[i] == -kInfinity) continue;
      candidates_.push_back({static_cast<TokenId>(i), logits[i]});
    }
  }
  if (candidates_.size() <= count) return;
  std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<int64_t>(count),
                   candidates_.end(), Better);
  candidates_.resize(count);
}

double Sampler::CollectAbove(std::span<const float> weights, float threshold) {
  candidates_.clear();
  double sum = 0;
  for (size_t block = 0; block < block_sum_.size(); ++block) {
    if (block_sum_[block] < threshold) continue;
    const size_t end = std::min(weights.size(), (block + 1) * kBlock);
    for (size_t i = block * kBlock; i < end; ++i) {
      if (weights[i] < threshold || weights[i] == 0) continue;
      candidates_.push_back({static_cast<TokenId>(i), weights[i]});
      sum += weights[i];
    }
  }
  return sum;
}

void Sampler::CutToMass(double mass) {
  // Quickselect by weight: each round settles half of what is undecided.
  const auto begin = candidates_.begin();
  int64_t low = 0;
  auto high = static_cast<int64_t>(candidates_.size());
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    std::nth_element(begin + low, begin + middle, begin + high, Better);
    double upper = 0;
    for (int64_t i = low; i < middle; ++i) upper += candidates_[i].value;
    if (upper >= mass) {
      high = middle;
    } else {
      mass -= upper;
      low = middle;
    }
  }
  candidates_.resize(static_cast<size_t>(high));
}

TokenId Sampler::DrawTruncated(std::span<float> logits, float max, double uniform) {
  const float scale = 1.0f / params_.temperature;
  bool sorted = false;  // by id
  // Rounding must not add a token where the best ones sum to top_p exactly.
  const double top_p = params_.top_p * (1 - 1e-6);
  if (params_.top_k > 0 && static_cast<size_t>(params_.top_k) < logits.size()) {
    CollectBest(logits, static_cast<size_t>(params_.top_k));
    double sum = 0;
    for (Candidate& c : candidates_) sum += c.value = ExpOf(c.value, max, scale);
    if (params_.top_p < 1.0f) CutToMass(sum * top_p);
  } else {
    const double total = ExpInPlace(logits, max, scale, block_sum_);
    if (params_.top_p < 1.0f) {
      // Most often few tokens hold the mass; reach further down only as far as needed.
      float threshold = std::max(params_.min_p, 1.0f / 64);
      double sum = CollectAbove(logits, threshold);
      while (sum < total * top_p && threshold > params_.min_p && threshold > 0) {
        threshold = threshold > 1e-9f ? std::max(threshold / 64, params_.min_p) : params_.min_p;
        sum = CollectAbove(logits, threshold);
      }
      CutToMass(total * top_p);
      if (candidates_.size() > kSortAtMost) {
        // The weights are still there in order: a pass over them is cheaper than to sort.
        const Candidate worst = *std::max_element(candidates_.begin(), candidates_.end(), Better);
        CollectAbove(logits, worst.value);
        std::erase_if(candidates_, [&](const Candidate& c) { return Better(worst, c); });
        sorted = true;
      }
    } else {
      CollectAbove(logits, params_.min_p);
      sorted = true;
    }
  }
  std::erase_if(candidates_,
                [&](const Candidate& c) { return c.value < params_.min_p || c.value == 0; });
  // By id, not by weight: where a recomputed step differs in the last bits, two tokens of nearly
  // equal weight do not change places.
  if (!sorted) {
    std::sort(candidates_.begin(), candidates_.end(),
              [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  }
  double kept = 0;
  for (const Candidate& c : candidates_) kept += c.value;
  double left = uniform * kept;
  for (const Candidate& c : candidates_) {
    left -= c.value;
    if (left < 0) return c.id;
  }
  return candidates_.back().id;
}

}  // namespace smartgen::sampling
