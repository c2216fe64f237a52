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
// Full, piece by piece (a layer of a chunk): of n pieces of equal work and size, piece i is ready
// after (i + 1) / n of the prefill. The link is either busy from the first piece on, or waits for
// the last one:
//   max(T_p / n + T_t, T_p + T_t / n) + step
double PredictFull(double prefill_seconds, double transfer_seconds, int pieces,
                   double step_seconds);
// Where the second token does not wait for KV (no transfer, or an exact handover): T_p + step.
double PredictUnhindered(double prefill_seconds, double step_seconds);

// The payload bytes per second above which a full transfer from a prefill side with T_p is sooner
// than prefilling here in `local_seconds` (PredictFull <= PredictUnhindered). None: no bandwidth
// is enough, because the prefill side itself is no faster.
std::optional<double> CrossoverRate(int64_t kv_bytes, double prefill_seconds, double local_seconds,
                                    int pieces);

}  // namespace smartgen::tools::bench
