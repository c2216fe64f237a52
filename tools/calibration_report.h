// A calibration for people and for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "common/base/status.h"
#include "common/transfer/calibration.h"

namespace smartgen::tools {

// What was measured beside what the curves predict for it, and the worst error of the points held
// out. Errors as CostModel::Create.
absl::StatusOr<std::string> CalibrationText(const transfer::Calibration& calibration);
absl::StatusOr<nlohmann::ordered_json> CalibrationJson(const transfer::Calibration& calibration);

// How well the points held out are predicted. 0 where none was held out.
struct HeldOutSummary {
  size_t points = 0;
  double worst = 0;  // |predicted / measured - 1|
  double mean = 0;
  std::string worst_what;
};
absl::StatusOr<HeldOutSummary> Summarize(const transfer::CostPoints& points);

// FailedPrecondition, with what to do about it, if a point is missed by more than kMaxHeldOutError.
absl::Status CheckHeldOut(const transfer::CostPoints& points);

// "2.10 s", "3.4 ms", "12 us"; "812 Mbit/s".
std::string SecondsText(double seconds);
std::string RateText(double bytes_per_second);

}  // namespace smartgen::tools
