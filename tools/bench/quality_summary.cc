#include "tools/bench/quality_summary.h"

#include <algorithm>
#include <cmath>

namespace smartgen::tools::bench {
namespace {

struct Pair {
  const Score* score = nullptr;
  const Score* dense = nullptr;
};

NllSummary SummarizeNll(const std::vector<Pair>& pairs) {
  NllSummary summary;
  std::vector<double> nlls, differences;
  int64_t tokens = 0;
  int64_t same = 0;
  for (const auto& [score, dense] : pairs) {
    nlls.push_back(*NllOf(*score));
    differences.push_back(nlls.back() - *NllOf(*dense));
    for (size_t i = 0; i < score->likeliest.size() && i < dense->likeliest.size(); ++i) {
      ++tokens;
      same += score->likeliest[i] == dense->likeliest[i] ? 1 : 0;
    }
  }
  summary.items = static_cast<int>(pairs.size());
  if (pairs.empty()) return summary;
  const auto n = static_cast<double>(pairs.size());
  summary.nll = Mean(nlls);
  summary.difference = Mean(differences);
  summary.worst = *std::max_element(differences.begin(), differences.end());
  double squares = 0;
  for (const double difference : differences) {
    summary.largest = std::max(summary.largest, std::abs(difference));
    squares += (difference - summary.difference) * (difference - summary.difference);
  }
  if (pairs.size() > 1) summary.standard_error = std::sqrt(squares / (n - 1) / n);
  if (tokens > 0) summary.same_first = static_cast<double>(same) / static_cast<double>(tokens);
  return summary;
}

}  // namespace

std::optional<double> NllOf(const Score& score) {
  if (!score.status.ok() || score.logprobs.empty()) return std::nullopt;
  return -Mean(score.logprobs);
}

QualitySummary SummarizeQuality(const QualityMeasurements& measurements, size_t variant,
                                int length) {
  QualitySummary summary;
  summary.length = length;
  summary.variant = measurements.variants[variant];
  std::vector<Pair> texts, needles;
  for (const QualityResult& result : measurements.results) {
    if (length != 0 && result.item.length != length) continue;
    const Score& score = result.scores[variant];
    const Score& dense = result.scores[0];
    if (!NllOf(score) || !NllOf(dense)) {
      ++summary.failed;
      continue;
    }
    if (!result.item.needle) {
      texts.push_back({&score, &dense});
      continue;
    }
    needles.push_back({&score, &dense});
    const bool found = Answers(*result.item.needle, score.answer);
    const bool dense_found = Answers(*result.item.needle, dense.answer);
    summary.found += found ? 1 : 0;
    summary.dense_found += dense_found ? 1 : 0;
    summary.found_of_dense_found += found && dense_found ? 1 : 0;
    summary.same_answer += score.answer == dense.answer ? 1 : 0;
  }
  summary.texts = SummarizeNll(texts);
  summary.needles = SummarizeNll(needles);
  return summary;
}

std::vector<int> LengthsOf(const QualityMeasurements& measurements) {
  std::vector<int> lengths;
  for (const QualityResult& result : measurements.results) {
    const int length = result.item.length;
    if (std::find(lengths.begin(), lengths.end(), length) == lengths.end()) {
      lengths.push_back(length);
    }
  }
  return lengths;
}

std::optional<double> IdentityError(const QualityMeasurements& measurements) {
  std::optional<double> error;
  for (size_t v = 1; v < measurements.variants.size(); ++v) {
    if (measurements.variants[v].budget < 1) continue;
    const QualitySummary summary = SummarizeQuality(measurements, v, 0);
    if (summary.texts.items + summary.needles.items == 0) continue;
    error = std::max({error.value_or(0), summary.texts.largest, summary.needles.largest});
  }
  return error;
}

}  // namespace smartgen::tools::bench
