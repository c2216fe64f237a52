// Measurements of quality as tables, as JSON and as plots.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tools/bench/quality.h"

namespace smartgen::tools::bench {

// How the measurements were made, for every output.
struct QualitySetting {
  std::string command;  // as typed
  std::string date;
  std::vector<std::string> texts;  // names
  int continuation_tokens = 0;
  uint64_t seed = 0;
  bool prefix_cache = true;         // of the prefill side
  std::string selector_parameters;  // as given; empty: none
  bool has_skew = false;            // what stands in there
  bool has_hash_weights = false;
  int prefill_threads = 1;
  int decode_threads = 1;
  std::vector<std::string> overrides;
};

// In words, for every output: what trained parameters the selectors had.
std::string DescribeParameters(const QualitySetting& setting);

std::string RenderQuality(const QualitySetting& setting, const QualityMeasurements& measurements);
nlohmann::ordered_json QualityJson(const QualitySetting& setting,
                                   const QualityMeasurements& measurements);
// File name (no folder) and SVG text: NLL against dense by budget, and needles found by budget.
std::vector<std::pair<std::string, std::string>> QualityPlots(
    const QualitySetting& setting, const QualityMeasurements& measurements);

}  // namespace smartgen::tools::bench
