// Prometheus text, read back.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace smartgen::tools::bench {

// What only grows, by name and labels as served (`smartgen_transfer_bytes_total{path="full",...}`):
// counters (_total) and histograms' _sum and _count.
using Counters = std::map<std::string, double>;

Counters ParseCounters(std::string_view text);
// How much each has grown; what has not is left out.
Counters Growth(const Counters& before, const Counters& after);
void AddTo(Counters& sum, const Counters& more);
// The values of metric `name` (without labels), by the value of `label`; values of other labels are
// added up. `where`: only those that contain this text ("direction=\"sent\"").
std::map<std::string, double> ByLabel(const Counters& counters, std::string_view name,
                                      std::string_view label, std::string_view where = "");

// GET `url`/metrics.
absl::StatusOr<Counters> FetchCounters(const std::string& url);

}  // namespace smartgen::tools::bench
