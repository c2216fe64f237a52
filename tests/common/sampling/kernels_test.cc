#include "common/sampling/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace smartgen::sampling {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> RandomLogits(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 4);
  std::vector<float> logits(size);
  for (float& x : logits) x = normal(random);
  return logits;
}

TEST(Scan, FindsTheFirstMaximumAtEverySize) {
  std::vector<float> block_max;
  for (size_t size = 1; size < 200; ++size) {
    std::vector<float> logits = RandomLogits(size, static_cast<uint32_t>(size));
    for (size_t at = 0; at < size; at += 1 + size / 7) {
      const float before = logits[at];
      logits[at] = 100;
      logits.back() = 100;  // a tie further on
      const ScanResult scan = Scan(logits, block_max);
      EXPECT_FALSE(scan.has_nan);
      EXPECT_EQ(scan.max, 100);
      EXPECT_EQ(FirstMax(logits, block_max, scan.max), static_cast<int64_t>(at));
      logits[at] = before;
    }
  }
}

TEST(Scan, SeesNanAnywhere) {
  std::vector<float> block_max;
  for (const size_t size : {1U, 15U, 64U, 65U, 131U}) {
    for (size_t at = 0; at < size; ++at) {
      std::vector<float> logits(size, -kInf);
      EXPECT_FALSE(Scan(logits, block_max).has_nan);
      logits[at] = kNan;
      EXPECT_TRUE(Scan(logits, block_max).has_nan);
    }
  }
}

TEST(Exp, IsWithin3e7OfTheRealOne) {
  double worst = 0;
  for (int i = 0; i <= 860000; ++i) {
    const float x = -static_cast<float>(i) * 1e-4f;
    const double want = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(ExpOf(x, 0, 1) - want) / want);
  }
  EXPECT_LT(worst, 3e-7);
  EXPECT_EQ(ExpOf(5, 5, 1), 1.0f);
  EXPECT_EQ(ExpOf(-kInf, 5, 1), 0.0f);
  EXPECT_EQ(ExpOf(-1000, 5, 1), 0.0f);
}

TEST(Exp, SumsAgreeWithDoublePrecision) {
  for (const size_t size : {1U, 63U, 64U, 1000U, 49152U}) {
    std::vector<float> logits = RandomLogits(size, 3);
    std::vector<float> block_max;
    const float max = Scan(logits, block_max).max;
    double plain = 0, scaled = 0;
    for (const float x : logits) {
      plain += std::exp(static_cast<double>(x) - max);
      scaled += std::exp((static_cast<double>(x) - max) * 0.5);
    }
    EXPECT_NEAR(SumExp(logits, max) / plain, 1, 1e-6);
    std::vector<double> block_sum;
    EXPECT_NEAR(ExpInPlace(logits, max, 0.5f, block_sum) / scaled, 1, 1e-6);
    double sum = 0;
    for (const double s : block_sum) sum += s;
    EXPECT_NEAR(sum / scaled, 1, 1e-6);
  }
}

}  // namespace
}  // namespace smartgen::sampling
