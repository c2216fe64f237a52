// Least squares with few coefficients, none of them negative, on relative error.
#pragma once

#include <span>
#include <vector>

#include "common/base/status.h"

namespace smartgen::transfer {

// One measurement: value is about the sum of coefficients[j] * features[j].
struct FitRow {
  std::vector<double> features;
  double value = 0;  // > 0
};

struct Fit {
  std::vector<double> coefficients;  // one a feature, >= 0
  double squared_error = 0;          // sum over the rows of (predicted / value - 1)^2
};

// At most so many features: all their subsets are tried, which finds the optimum without a search
// that could end elsewhere (the optimum is the unconstrained one of the features that are not 0).
inline constexpr int kMaxFitFeatures = 8;

// The coefficients >= 0 that minimise squared_error. InvalidArgument for no rows, values that are
// not finite or not positive, features that are not finite or negative, or rows of different
// lengths; FailedPrecondition if all features of all rows are 0.
absl::StatusOr<Fit> FitNonNegative(std::span<const FitRow> rows);

}  // namespace smartgen::transfer
