// The benchmarks' arithmetic. Seconds, bytes, bytes per second.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/kv/layout.h"

namespace smartgen::tools::bench {

// KV of a prompt; tokens outside a sliding window never travel.
int64_t KvBytes(const kv::KvLayout& layout, int64_t tokens);

// The link rate at which KV of `kv_bytes` takes `ratio` (R) times as long as the prefill:
// T_t = kv_bytes / rate = R * T_p.
double RateForRatio(int64_t kv_bytes, double prefill_seconds, double ratio);

// By linear interpolation between the closest ranks; `fraction` in [0, 1]. 0 for no values.
double Percentile(std::vector<double> values, double fraction);
double Mean(std::span<const double> values);

struct Spread {
  double median = 0;
  double min = 0;
  double max = 0;
};
// None for no values.
std::optional<Spread> SpreadOf(const std::vector<double>& values);

// Of a request whose tokens came at `token_seconds` after its arrival.
struct TokenTimes {
  double ttft = 0;              // t1
  std::optional<double> gap;    // t2 - t1
  std::optional<double> e2e;    // t2
  std::vector<double> steps;    // t(n+1) - t(n), n from 1 on: steps[0] is `gap`
  std::vector<double> between;  // steps from the third token on: TBT without the TTST
};
TokenTimes TimesOf(std::span<const double> token_seconds);

// The first index at which two streams differ; -1: they are equal.
int64_t FirstDifference(std::span<const int32_t> a, std::span<const int32_t> b);

// When the second token may be expected.
//
// Full, layer by layer: layer l's KV is there after (l + 1) / L of the prefill, the link is busy
// from then on; the last layer's KV cannot go before the prefill has ended:
//   max(T_p / L + T_t, T_p + T_t / L) + step
double PredictFull(double prefill_seconds, double transfer_seconds, int layers,
                   double step_seconds);
// Without a transfer: T_p + step.
double PredictLocal(double prefill_seconds, double step_seconds);

}  // namespace smartgen::tools::bench
