// When the second token comes by local, full and exact, for prompt lengths and bandwidths, from
// calibrations: no daemon runs.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/transfer/calibration.h"
#include "common/transfer/crossover.h"

namespace smartgen::tools::bench {

struct ForecastInput {
  transfer::Calibration decode;   // of the machine that decodes
  transfer::Calibration prefill;  // of the one that prefills
  std::vector<int64_t> lengths;
  std::vector<double> bytes_per_second;  // ascending
  double round_trip_seconds = 0;
  double queue_seconds = 0;   // on the prefill machine
  int64_t other_streams = 0;  // on the decode machine
};

struct Forecast {
  struct Row {
    int64_t tokens = 0;
    double bytes_per_second = 0;
    transfer::TtstInput times;
    transfer::Ttst ttst;
    bool local_wins = false;  // what decoded would do in mode auto
    // "local", "full" or "exact": the soonest. Where exact needs no handover it is full.
    std::string soonest() const;
  };
  std::vector<Row> rows;  // by length, then bandwidth
};

// InvalidArgument where the calibrations are not of the same model and compute type, or lack
// prompts or steps.
absl::StatusOr<Forecast> MakeForecast(const ForecastInput& input);

std::string ForecastTable(const ForecastInput& input, const Forecast& forecast);
nlohmann::ordered_json ForecastJson(const ForecastInput& input, const Forecast& forecast);
// File name and SVG text, one for each bandwidth.
std::vector<std::pair<std::string, std::string>> ForecastPlots(const ForecastInput& input,
                                                               const Forecast& forecast);

}  // namespace smartgen::tools::bench
