#include "common/selector/top_k.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "common/selector/random.h"

namespace smartgen::selector {
namespace {

// A stable sort, best first: what "ties to the lower position" means.
template <typename T, typename Better>
std::vector<int32_t> BySorting(const std::vector<T>& values, int32_t base, size_t k,
                               Better better) {
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return better(values[a], values[b]); });
  order.resize(k);
  std::sort(order.begin(), order.end());
  for (int32_t& position : order) position += base;
  return order;
}

TEST(TopKTest, LargestEqualsAStableSortOnRandomScoresWithTies) {
  Random random(1);
  for (int round = 0; round < 3000; ++round) {
    std::vector<float> scores(1 + random.Below(300));
    const int kind = static_cast<int>(random.Below(3));
    for (float& x : scores) {
      // Many ties; all kinds of magnitudes; nearly equal values, that differ in the last bits
      // alone.
      if (kind == 0) x = static_cast<float>(random.Below(5)) - 2;
      if (kind == 1)
        x = random.Normal() * std::ldexp(1.0f, static_cast<int>(random.Below(60)) - 30);
      if (kind == 2) x = 1.0f + static_cast<float>(random.Below(40)) * 0x1p-23f;
    }
    const size_t k = random.Below(static_cast<uint32_t>(scores.size()) + 1);
    std::vector<int32_t> found(k);
    LargestK(scores, 7, found);
    ASSERT_EQ(found, BySorting(scores, 7, k, std::greater<float>())) << "round " << round;
  }
}

TEST(TopKTest, LargestTakesNanLastAndMinusZeroAsZero) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> scores = {nan, -infinity, 0.0f, -0.0f, 0.0f, nan};
  std::vector<int32_t> found(2);
  LargestK(scores, 0, found);
  EXPECT_EQ(found, (std::vector<int32_t>{2, 3}));
  found.resize(5);
  LargestK(scores, 0, found);
  EXPECT_EQ(found, (std::vector<int32_t>{0, 1, 2, 3, 4}));
}

TEST(TopKTest, SmallestEqualsAStableSortOnRandomDistances) {
  Random random(2);
  for (int round = 0; round < 3000; ++round) {
    std::vector<uint16_t> distances(1 + random.Below(300));
    const uint32_t range = round % 100 == 0 ? 65536 : 1 + random.Below(400);
    for (uint16_t& d : distances) d = static_cast<uint16_t>(random.Below(range));
    const size_t k = random.Below(static_cast<uint32_t>(distances.size()) + 1);
    std::vector<int32_t> found(k);
    SmallestK(distances, 3, found);
    ASSERT_EQ(found, BySorting(distances, 3, k, std::less<uint16_t>())) << "round " << round;
  }
}

}  // namespace
}  // namespace smartgen::selector
