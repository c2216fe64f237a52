#include "common/selector/skew.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace smartgen::selector {
namespace {

constexpr int kMaxSweeps = 60;
constexpr double kOrthogonal = 1e-13;  // well above the rounding of a sum of 1024 products
constexpr int kMaxDim = 1024;

double Dot(const double* a, const double* b, int64_t n) {
  double lanes[4] = {};
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (int j = 0; j < 4; ++j) lanes[j] += a[i + j] * b[i + j];
  }
  for (; i < n; ++i) lanes[0] += a[i] * b[i];
  return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

void Rotate(double* a, double* b, int64_t n, double cosine, double sine) {
  for (int64_t i = 0; i < n; ++i) {
    const double x = a[i];
    a[i] = cosine * x - sine * b[i];
    b[i] = sine * x + cosine * b[i];
  }
}

// One pass over all pairs of columns (stored one after the other); whether any was rotated.
bool Sweep(std::vector<double>& columns, std::vector<double>& v, int rows, int count) {
  bool rotated = false;
  for (int i = 0; i + 1 < count; ++i) {
    for (int j = i + 1; j < count; ++j) {
      double* a = columns.data() + static_cast<int64_t>(i) * rows;
      double* b = columns.data() + static_cast<int64_t>(j) * rows;
      const double aa = Dot(a, a, rows);
      const double bb = Dot(b, b, rows);
      const double ab = Dot(a, b, rows);
      if (std::fabs(ab) <= kOrthogonal * std::sqrt(aa * bb)) continue;
      rotated = true;
      const double zeta = (bb - aa) / (2 * ab);
      const double tangent = std::copysign(1.0, zeta) / (std::fabs(zeta) + std::hypot(1.0, zeta));
      const double cosine = 1 / std::hypot(1.0, tangent);
      const double sine = cosine * tangent;
      Rotate(a, b, rows, cosine, sine);
      Rotate(v.data() + static_cast<int64_t>(i) * count, v.data() + static_cast<int64_t>(j) * count,
             count, cosine, sine);
    }
  }
  return rotated;
}

// Folds `row` into the upper triangular `r` (n x n) by Givens rotations: r^T r grows by row^T row.
void FoldRow(std::vector<double>& r, std::vector<double>& row, int n) {
  for (int i = 0; i < n; ++i) {
    if (row[i] == 0) continue;
    double* pivot = r.data() + static_cast<int64_t>(i) * n;
    const double norm = std::hypot(pivot[i], row[i]);
    const double cosine = pivot[i] / norm;
    const double sine = row[i] / norm;
    for (int c = i; c < n; ++c) {
      const double x = pivot[c];
      pivot[c] = cosine * x + sine * row[c];
      row[c] = cosine * row[c] - sine * x;
    }
  }
}

absl::StatusOr<double> Norm(std::span<const float> values, const char* what) {
  double sum = 0;
  for (const float x : values) sum += static_cast<double>(x) * x;
  if (!std::isfinite(sum)) return base::InvalidArgument("skew: not all {} are finite", what);
  return std::sqrt(sum);
}

}  // namespace

absl::StatusOr<SingularValues> Svd(std::span<const double> a, int rows, int columns) {
  if (columns < 1 || columns > kMaxDim || rows < columns ||
      a.size() != static_cast<size_t>(rows) * columns) {
    return base::InvalidArgument(
        "SVD: want rows >= columns, 1 to {} columns, got {} x {} in {} values", kMaxDim, rows,
        columns, a.size());
  }
  if (!std::all_of(a.begin(), a.end(), [](double x) { return std::isfinite(x); })) {
    return base::InvalidArgument("SVD: not all values are finite");
  }
  std::vector<double> work(a.size());  // column by column
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) {
      work[static_cast<size_t>(c) * rows + r] = a[static_cast<size_t>(r) * columns + c];
    }
  }
  std::vector<double> v(static_cast<size_t>(columns) * columns);  // column by column too
  for (int c = 0; c < columns; ++c) v[static_cast<size_t>(c) * columns + c] = 1;
  int sweeps = 0;
  while (Sweep(work, v, rows, columns)) {
    if (++sweeps == kMaxSweeps) return base::Internal("SVD: no end after {} sweeps", kMaxSweeps);
  }
  std::vector<double> norms(columns);
  for (int c = 0; c < columns; ++c) {
    const double* column = work.data() + static_cast<int64_t>(c) * rows;
    norms[c] = std::sqrt(Dot(column, column, rows));
  }
  std::vector<int> order(columns);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int x, int y) { return norms[x] > norms[y]; });
  SingularValues result;
  result.u.resize(a.size());
  result.s.resize(columns);
  result.v.resize(v.size());
  for (int c = 0; c < columns; ++c) {
    const int from = order[c];
    result.s[c] = norms[from];
    for (int r = 0; r < rows && norms[from] > 0; ++r) {
      result.u[static_cast<size_t>(r) * columns + c] =
          work[static_cast<size_t>(from) * rows + r] / norms[from];
    }
    for (int r = 0; r < columns; ++r) {
      result.v[static_cast<size_t>(r) * columns + c] = v[static_cast<size_t>(from) * columns + r];
    }
  }
  return result;
}

absl::StatusOr<std::vector<float>> ComputeSkew(std::span<const float> queries,
                                               std::span<const float> keys, int head_dim) {
  if (head_dim < 1 || head_dim > kMaxDim || queries.empty() || keys.empty() ||
      queries.size() % head_dim != 0 || keys.size() % head_dim != 0) {
    return base::InvalidArgument(
        "skew: want rows of {} (1 to {}) values, got {} query and {} key values", head_dim, kMaxDim,
        queries.size(), keys.size());
  }
  // The triangular factor has the same right singular vectors and as few rows as columns.
  std::vector<double> r(static_cast<size_t>(head_dim) * head_dim);
  std::vector<double> row(head_dim);
  const auto fold = [&](std::span<const float> values, double norm) {
    for (size_t at = 0; at < values.size() && norm > 0; at += head_dim) {
      for (int c = 0; c < head_dim; ++c) row[c] = values[at + c] / norm;
      FoldRow(r, row, head_dim);
    }
  };
  ASSIGN_OR_RETURN(const double query_norm, Norm(queries, "queries"));
  ASSIGN_OR_RETURN(const double key_norm, Norm(keys, "keys"));
  fold(queries, query_norm);
  fold(keys, key_norm);
  ASSIGN_OR_RETURN(const SingularValues svd, Svd(r, head_dim, head_dim));
  return std::vector<float>(svd.v.begin(), svd.v.end());
}

}  // namespace smartgen::selector
