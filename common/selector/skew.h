// InfiniGen's offline step: an orthogonal matrix per KV head after which few channels carry most of
// the scores. For models with rotary embeddings queries and keys are taken after it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/status.h"

namespace smartgen::selector {

// A = U diag(s) V^T of a row-major matrix with rows >= columns: U is rows x columns with
// orthonormal columns (zero columns where s is 0), s descending, V columns x columns orthogonal.
struct SingularValues {
  std::vector<double> u;
  std::vector<double> s;
  std::vector<double> v;
};

// One-sided Jacobi: rotates pairs of columns until all are orthogonal within 1e-13 of their norms.
// Time is columns^2 * rows per sweep, about ten sweeps. InvalidArgument for sizes that do not fit
// or values that are not finite.
absl::StatusOr<SingularValues> Svd(std::span<const double> a, int rows, int columns);

// The skew matrix A (head_dim squared, row-major, orthogonal): the right singular vectors of the
// queries above the keys, each of the two scaled to the same Frobenius norm, so that both shape the
// result alike. q k^T = (q A)(k A)^T, and the first columns hold the most of both. `queries` and
// `keys` are rows of head_dim values (all query heads of the group in any order; at least one row
// each; head_dim at most 1024).
absl::StatusOr<std::vector<float>> ComputeSkew(std::span<const float> queries,
                                               std::span<const float> keys, int head_dim);

}  // namespace smartgen::selector
