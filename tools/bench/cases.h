// What a benchmark compares: a list of named ways to serve the same prompt.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "tools/bench/generation.h"

namespace smartgen::tools::bench {

struct Case {
  std::string name;  // unique in a list: "smartgen", "smartgen speculative_ratio=0.05"
  std::string mode;
  RequestOptions options;
  int batch = 1;          // requests at once, each with its own prompt
  double prefix_hit = 0;  // share of the prompt that the prefill side has cached
  friend bool operator==(const Case&, const Case&) = default;
};

struct CasePlan {
  std::vector<std::string> modes;
  RequestOptions options;  // for every mode that transfers KV
  std::string sweep;       // empty: none
  int batch = 1;
};

// The sweeps' names.
std::vector<std::string> KnownSweeps();

// Without a sweep one case a mode. A sweep over an option (speculative, budget, selector: of
// smartgen; handover: of exact) varies that mode and keeps the others as they are; prefix and batch
// vary every mode; ablation adds the method's parts to "partial" one by one, as the paper does.
// InvalidArgument: unknown sweep, mode or option.
absl::StatusOr<std::vector<Case>> MakeCases(const CasePlan& plan);

// "a=1", "b=x" to a map. InvalidArgument: no "=", or a name given twice.
absl::StatusOr<RequestOptions> ParseOptions(const std::vector<std::string>& texts);

}  // namespace smartgen::tools::bench
