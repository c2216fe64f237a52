#include "common/selector/merge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "common/selector/random.h"

namespace smartgen::selector {
namespace {

constexpr float kEmpty = -std::numeric_limits<float>::infinity();

struct Partial {
  std::vector<float> v;
  float s = kEmpty;
};

// Attention of scores over values, in double.
Partial Attend(const std::vector<double>& scores, const std::vector<std::vector<double>>& values,
               size_t begin, size_t end, int dim) {
  Partial p{.v = std::vector<float>(dim)};
  if (begin == end) return p;
  double max = scores[begin];
  for (size_t i = begin; i < end; ++i) max = std::max(max, scores[i]);
  double sum = 0;
  std::vector<double> v(dim);
  for (size_t i = begin; i < end; ++i) {
    const double w = std::exp(scores[i] - max);
    sum += w;
    for (int c = 0; c < dim; ++c) v[c] += w * values[i][c];
  }
  for (int c = 0; c < dim; ++c) p.v[c] = static_cast<float>(v[c] / sum);
  p.s = static_cast<float>(max + std::log(sum));
  return p;
}

TEST(MergeTest, PartsOverDisjointKeysMergeToTheWhole) {
  Random random(1);
  for (int round = 0; round < 1000; ++round) {
    const int dim = 1 + static_cast<int>(random.Below(20));
    const size_t keys = 1 + random.Below(50);
    std::vector<double> scores(keys);
    std::vector<std::vector<double>> values(keys, std::vector<double>(dim));
    for (auto& s : scores) s = random.Normal() * 20;  // far apart too
    for (auto& row : values) {
      for (auto& x : row) x = random.Normal();
    }
    const size_t cut = random.Below(static_cast<uint32_t>(keys + 1));
    Partial a = Attend(scores, values, 0, cut, dim);
    const Partial b = Attend(scores, values, cut, keys, dim);
    const Partial whole = Attend(scores, values, 0, keys, dim);
    MergePartial(a.v, a.s, b.v, b.s);
    EXPECT_NEAR(a.s, whole.s, 1e-5 * std::max(1.0f, std::fabs(whole.s)));
    for (int c = 0; c < dim; ++c) EXPECT_NEAR(a.v[c], whole.v[c], 2e-5);
  }
}

TEST(MergeTest, AnEmptySideChangesNothingWhateverItsValues) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> v = {1, 2};
  float s = 3;
  MergePartial(v, s, std::vector<float>{nan, nan}, kEmpty);
  EXPECT_EQ(v, (std::vector<float>{1, 2}));
  EXPECT_EQ(s, 3);
  std::vector<float> empty = {nan, nan};
  float none = kEmpty;
  MergePartial(empty, none, v, s);
  EXPECT_EQ(empty, v);
  EXPECT_EQ(none, 3);
}

TEST(MergeTest, TwoEmptySidesGiveZeros) {
  std::vector<float> v = {5, 6};
  float s = kEmpty;
  MergePartial(v, s, std::vector<float>{7, 8}, kEmpty);
  EXPECT_EQ(v, (std::vector<float>{0, 0}));
  EXPECT_EQ(s, kEmpty);
}

}  // namespace
}  // namespace smartgen::selector
