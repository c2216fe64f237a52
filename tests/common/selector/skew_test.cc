#include "common/selector/skew.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "tests/common/selector/selector_test_util.h"

namespace smartgen::selector {
namespace {

std::vector<double> RandomMatrix(Random& random, int rows, int columns, int rank) {
  std::vector<double> left(static_cast<size_t>(rows) * rank),
      right(static_cast<size_t>(rank) * columns);
  for (double& x : left) x = random.Normal();
  for (double& x : right) x = random.Normal();
  std::vector<double> a(static_cast<size_t>(rows) * columns);
  for (int r = 0; r < rows; ++r) {
    for (int k = 0; k < rank; ++k) {
      for (int c = 0; c < columns; ++c) {
        a[static_cast<size_t>(r) * columns + c] += left[r * rank + k] * right[k * columns + c];
      }
    }
  }
  return a;
}

// The greatest deviation of the first `count` columns from orthonormal ones.
template <typename T>
double Crookedness(const std::vector<T>& a, int rows, int columns, int count) {
  double worst = 0;
  for (int i = 0; i < count; ++i) {
    for (int j = i; j < count; ++j) {
      double dot = 0;
      for (int r = 0; r < rows; ++r) {
        dot += static_cast<double>(a[static_cast<size_t>(r) * columns + i]) *
               a[static_cast<size_t>(r) * columns + j];
      }
      worst = std::max(worst, std::fabs(dot - (i == j ? 1 : 0)));
    }
  }
  return worst;
}

TEST(SvdTest, ReconstructsAndIsOrthogonalAlsoForLowRank) {
  Random random(1);
  for (const auto& [rows, columns, rank] : {std::array{1, 1, 1},
                                            {5, 5, 5},
                                            {40, 7, 7},
                                            {64, 64, 64},
                                            {64, 64, 3},
                                            {200, 33, 10},
                                            {128, 128, 128}}) {
    const auto a = RandomMatrix(random, rows, columns, rank);
    const auto svd = Svd(a, rows, columns);
    ASSERT_TRUE(svd.ok()) << svd.status();
    EXPECT_TRUE(std::is_sorted(svd->s.rbegin(), svd->s.rend()));
    EXPECT_LT(Crookedness(svd->v, columns, columns, columns), 1e-11);
    EXPECT_LT(Crookedness(svd->u, rows, columns, rank), 1e-11);
    for (int i = rank; i < columns; ++i) EXPECT_LT(svd->s[i], 1e-10 * svd->s[0]);
    double worst = 0;
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < columns; ++c) {
        double sum = 0;
        for (int k = 0; k < columns; ++k) {
          sum += svd->u[r * columns + k] * svd->s[k] * svd->v[c * columns + k];
        }
        worst = std::max(worst, std::fabs(sum - a[static_cast<size_t>(r) * columns + c]));
      }
    }
    EXPECT_LT(worst, 1e-11 * svd->s[0]) << rows << " x " << columns << " of rank " << rank;
  }
}

TEST(SvdTest, KnowsTheSingularValuesOfAKnownMatrix) {
  // diag(3, 2) turned by 45 degrees on both sides.
  const auto svd = Svd(std::vector<double>{2.5, 0.5, 0.5, 2.5}, 2, 2);
  ASSERT_TRUE(svd.ok());
  EXPECT_NEAR(svd->s[0], 3, 1e-14);
  EXPECT_NEAR(svd->s[1], 2, 1e-14);
}

TEST(SvdTest, RefusesOtherShapesAndValues) {
  EXPECT_FALSE(Svd(std::vector<double>(6), 2, 3).ok());
  EXPECT_FALSE(Svd(std::vector<double>(5), 3, 2).ok());
  EXPECT_FALSE(Svd(std::vector<double>{std::nan("")}, 1, 1).ok());
  EXPECT_TRUE(Svd(std::vector<double>(4), 2, 2).ok());  // all zero
}

TEST(SkewTest, IsOrthogonalAndPutsTheEnergyFirst) {
  Random random(2);
  for (const int dim : {4, 64, 256}) {
    // Energy in 1/8 of the directions, which mix all channels.
    const int strong = std::max(1, dim / 8);
    const auto basis = Normals(random, static_cast<int64_t>(strong) * dim);
    const auto rows = [&](int count) {
      std::vector<float> x = Normals(random, static_cast<int64_t>(count) * dim);
      for (int r = 0; r < count; ++r) {
        for (int s = 0; s < strong; ++s) {
          const float weight = random.Normal() * 3;
          for (int c = 0; c < dim; ++c)
            x[r * dim + c] = 0.95f * x[r * dim + c] + weight * basis[s * dim + c];
        }
      }
      return x;
    };
    const auto queries = rows(300);
    const auto keys = rows(200);
    const auto skew = ComputeSkew(queries, keys, dim);
    ASSERT_TRUE(skew.ok()) << skew.status();
    EXPECT_LT(Crookedness(*skew, dim, dim, dim), 1e-5);
    // q k^T is kept: (q A)(k A)^T; and a quarter of the channels has nearly all of it.
    double all = 0, error = 0, scale = 0, rest = 0;
    for (int r = 0; r < 50; ++r) {
      double exact = 0, skewed = 0, quarter = 0;
      for (int c = 0; c < dim; ++c)
        exact += static_cast<double>(queries[r * dim + c]) * keys[r * dim + c];
      for (int c = 0; c < dim; ++c) {
        double q = 0, k = 0;
        for (int i = 0; i < dim; ++i) {
          q += static_cast<double>(queries[r * dim + i]) * (*skew)[i * dim + c];
          k += static_cast<double>(keys[r * dim + i]) * (*skew)[i * dim + c];
        }
        skewed += q * k;
        if (c < std::max(1, dim / 4)) quarter += q * k;
      }
      error = std::max(error, std::fabs(exact - skewed));
      scale = std::max(scale, std::fabs(exact));
      rest += (exact - quarter) * (exact - quarter);
      all += exact * exact;
    }
    EXPECT_LT(error, 1e-5 * scale);
    EXPECT_LT(std::sqrt(rest / all), 0.2) << dim;
  }
}

TEST(SkewTest, RefusesWhatIsNotRows) {
  const std::vector<float> rows(16, 1.0f);
  EXPECT_FALSE(ComputeSkew(rows, rows, 5).ok());
  EXPECT_FALSE(ComputeSkew({}, rows, 4).ok());
  EXPECT_FALSE(
      ComputeSkew(std::vector<float>(4, std::numeric_limits<float>::infinity()), rows, 4).ok());
  EXPECT_TRUE(ComputeSkew(std::vector<float>(4), rows, 4).ok());
}

}  // namespace
}  // namespace smartgen::selector
