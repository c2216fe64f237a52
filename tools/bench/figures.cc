#include "tools/bench/figures.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace smartgen::tools::bench {

int64_t KvBytes(const kv::KvLayout& layout, int64_t tokens) {
  int64_t bytes = 0;
  for (int layer = 0; layer < layout.num_layers(); ++layer) {
    const int64_t window = layout.layers[static_cast<size_t>(layer)].window;
    bytes += layout.TokenBytes(layer) * (window > 0 ? std::min(window, tokens) : tokens);
  }
  return bytes;
}

double RateForRatio(int64_t kv_bytes, double prefill_seconds, double ratio) {
  return static_cast<double>(kv_bytes) / (ratio * prefill_seconds);
}

double Percentile(std::vector<double> values, double fraction) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double rank = std::clamp(fraction, 0.0, 1.0) * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(std::floor(rank));
  const size_t above = std::min(below + 1, values.size() - 1);
  return std::lerp(values[below], values[above], rank - static_cast<double>(below));
}

double Mean(std::span<const double> values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::optional<Spread> SpreadOf(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  const auto [min, max] = std::minmax_element(values.begin(), values.end());
  return Spread{Percentile(values, 0.5), *min, *max};
}

TokenTimes TimesOf(std::span<const double> token_seconds) {
  TokenTimes times;
  if (token_seconds.empty()) return times;
  times.ttft = token_seconds[0];
  for (size_t i = 1; i < token_seconds.size(); ++i) {
    times.steps.push_back(token_seconds[i] - token_seconds[i - 1]);
    if (i > 1) times.between.push_back(times.steps.back());
  }
  if (token_seconds.size() > 1) {
    times.gap = times.steps[0];
    times.e2e = token_seconds[1];
  }
  return times;
}

int64_t FirstDifference(std::span<const int32_t> a, std::span<const int32_t> b) {
  const auto end = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  if (end.first == a.end() && end.second == b.end()) return -1;
  return end.first - a.begin();
}

double PredictFull(double prefill_seconds, double transfer_seconds, int pieces,
                   double step_seconds) {
  const double n = pieces;
  return std::max(prefill_seconds / n + transfer_seconds, prefill_seconds + transfer_seconds / n) +
         step_seconds;
}

double PredictUnhindered(double prefill_seconds, double step_seconds) {
  return prefill_seconds + step_seconds;
}

std::optional<double> CrossoverRate(int64_t kv_bytes, double prefill_seconds, double local_seconds,
                                    int pieces) {
  const double n = pieces;
  // Both sides of PredictFull's maximum must stay within local_seconds.
  const double longest_transfer =
      std::min(local_seconds - prefill_seconds / n, n * (local_seconds - prefill_seconds));
  if (longest_transfer <= 0) return std::nullopt;
  return static_cast<double>(kv_bytes) / longest_transfer;
}

}  // namespace smartgen::tools::bench
