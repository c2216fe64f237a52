#include "common/transfer/nonnegative_fit.h"

#include <cmath>
#include <optional>
#include <utility>

namespace smartgen::transfer {
namespace {

using Matrix = std::vector<std::vector<double>>;

// A pivot below this share of its diagonal: the features depend on each other.
constexpr double kSingular = 1e-12;

absl::Status Check(std::span<const FitRow> rows) {
  if (rows.empty()) return base::InvalidArgument("fit: want at least one measurement, got none");
  const size_t width = rows[0].features.size();
  if (width == 0 || width > kMaxFitFeatures) {
    return base::InvalidArgument("fit: want 1 to {} features, got {}", kMaxFitFeatures, width);
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].features.size() != width) {
      return base::InvalidArgument("fit: measurement {} has {} features, the first has {}", i,
                                   rows[i].features.size(), width);
    }
    if (!std::isfinite(rows[i].value) || rows[i].value <= 0) {
      return base::InvalidArgument("fit: measurement {}: want a value > 0, got {}", i,
                                   rows[i].value);
    }
    for (const double feature : rows[i].features) {
      if (!std::isfinite(feature) || feature < 0) {
        return base::InvalidArgument("fit: measurement {}: want features >= 0, got {}", i, feature);
      }
    }
  }
  return absl::OkStatus();
}

// The rows over their values, so that each wants the sum 1, and columns of length 1, so that
// seconds and squares of tokens can stand side by side. `scale` gets the columns' lengths.
Matrix Normalise(std::span<const FitRow> rows, std::vector<double>* scale) {
  Matrix matrix;
  scale->assign(rows[0].features.size(), 0);
  for (const FitRow& row : rows) {
    std::vector<double>& out = matrix.emplace_back(row.features);
    for (size_t j = 0; j < out.size(); ++j) {
      out[j] /= row.value;
      (*scale)[j] += out[j] * out[j];
    }
  }
  for (double& length : *scale) length = std::sqrt(length);
  for (std::vector<double>& row : matrix) {
    for (size_t j = 0; j < row.size(); ++j) {
      if ((*scale)[j] > 0) row[j] /= (*scale)[j];
    }
  }
  return matrix;
}

// Solves the symmetric positive definite system by Gaussian elimination; none if it is singular.
std::optional<std::vector<double>> Solve(Matrix a, std::vector<double> b) {
  const size_t n = b.size();
  for (size_t i = 0; i < n; ++i) {
    if (!(a[i][i] > kSingular)) return std::nullopt;
    for (size_t k = i + 1; k < n; ++k) {
      const double factor = a[k][i] / a[i][i];
      for (size_t j = i; j < n; ++j) a[k][j] -= factor * a[i][j];
      b[k] -= factor * b[i];
    }
  }
  for (size_t i = n; i-- > 0;) {
    for (size_t j = i + 1; j < n; ++j) b[i] -= a[i][j] * b[j];
    b[i] /= a[i][i];
  }
  return b;
}

// The unconstrained optimum of these columns alone; none if it has a negative coefficient.
std::optional<Fit> FitColumns(const Matrix& matrix, const std::vector<size_t>& columns) {
  Matrix normal(columns.size(), std::vector<double>(columns.size(), 0));
  std::vector<double> right(columns.size(), 0);
  for (const std::vector<double>& row : matrix) {
    for (size_t i = 0; i < columns.size(); ++i) {
      for (size_t j = 0; j < columns.size(); ++j) {
        normal[i][j] += row[columns[i]] * row[columns[j]];
      }
      right[i] += row[columns[i]];
    }
  }
  const auto solution = Solve(std::move(normal), std::move(right));
  if (!solution) return std::nullopt;
  Fit fit;
  fit.coefficients.assign(matrix[0].size(), 0);
  for (size_t i = 0; i < columns.size(); ++i) {
    if (!((*solution)[i] >= 0)) return std::nullopt;
    fit.coefficients[columns[i]] = (*solution)[i];
  }
  for (const std::vector<double>& row : matrix) {
    double error = -1;
    for (size_t j = 0; j < row.size(); ++j) error += fit.coefficients[j] * row[j];
    fit.squared_error += error * error;
  }
  return fit;
}

}  // namespace

absl::StatusOr<Fit> FitNonNegative(std::span<const FitRow> rows) {
  RETURN_IF_ERROR(Check(rows));
  std::vector<double> scale;
  const Matrix matrix = Normalise(rows, &scale);
  std::optional<Fit> best;
  for (unsigned subset = 1; subset < 1u << scale.size(); ++subset) {
    std::vector<size_t> columns;
    for (size_t j = 0; j < scale.size(); ++j) {
      if ((subset >> j & 1) != 0) columns.push_back(j);
    }
    auto fit = FitColumns(matrix, columns);
    if (fit && (!best || fit->squared_error < best->squared_error)) best = std::move(fit);
  }
  if (!best) return base::FailedPrecondition("fit: all features of all measurements are 0");
  for (size_t j = 0; j < scale.size(); ++j) {
    if (scale[j] > 0) best->coefficients[j] /= scale[j];
  }
  return *std::move(best);
}

}  // namespace smartgen::transfer
