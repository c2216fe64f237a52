#include "common/transfer/nonnegative_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace smartgen::transfer {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(NonNegativeFitTest, FindsTheCoefficientsOfExactSums) {
  std::vector<FitRow> rows;
  for (const double x : {1.0, 2.0, 5.0, 100.0, 4000.0}) {
    rows.push_back({{1, x, x * x}, 0.5 + 0.25 * x + 3e-4 * x * x});
  }
  const auto fit = FitNonNegative(rows);
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_THAT(fit->coefficients,
              ElementsAre(DoubleNear(0.5, 1e-8), DoubleNear(0.25, 1e-8), DoubleNear(3e-4, 1e-11)));
  EXPECT_NEAR(fit->squared_error, 0, 1e-12);
}

// y = 3x - 1 at 1 and 2 wants the constant -1. With it held at 0: minimise (x1*c/2 - 1)^2 +
// (2c/5 - 1)^2, whose derivative is 0 at c = (1/2 + 2/5) / (1/4 + 4/25) = 90/41.
TEST(NonNegativeFitTest, AFeatureThatWantsANegativeCoefficientGetsNone) {
  const std::vector<FitRow> rows = {{{1, 1}, 2}, {{1, 2}, 5}};
  const auto fit = FitNonNegative(rows);
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_THAT(fit->coefficients, ElementsAre(0, DoubleNear(90.0 / 41, 1e-12)));
}

// A constant through 1 and 100: by relative error the small one counts as much as the large one.
// (c - 1)^2 + (c/100 - 1)^2 is least at c = 1.01 / 1.0001.
TEST(NonNegativeFitTest, MinimisesTheRelativeError) {
  const std::vector<FitRow> rows = {{{1}, 1}, {{1}, 100}};
  const auto fit = FitNonNegative(rows);
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_THAT(fit->coefficients, ElementsAre(DoubleNear(1.01 / 1.0001, 1e-12)));
}

TEST(NonNegativeFitTest, FeaturesThatSayTheSameDoNoHarm) {
  const std::vector<FitRow> rows = {{{1, 2, 0}, 4}, {{2, 4, 0}, 8}, {{3, 6, 0}, 12}};
  const auto fit = FitNonNegative(rows);
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_NEAR(fit->coefficients[0] + 2 * fit->coefficients[1], 4, 1e-9);
  EXPECT_EQ(fit->coefficients[2], 0);
}

TEST(NonNegativeFitTest, GarbageIsRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<std::pair<std::vector<FitRow>, const char*>> cases = {
      {{}, "got none"},
      {{{{}, 1}}, "want 1 to 8 features, got 0"},
      {{{std::vector<double>(9, 1.0), 1}}, "got 9"},
      {{{{1}, 1}, {{1, 2}, 1}}, "measurement 1 has 2 features, the first has 1"},
      {{{{1}, 0}}, "want a value > 0, got 0"},
      {{{{1}, -2}}, "got -2"},
      {{{{1}, nan}}, "got nan"},
      {{{{1}, inf}}, "got inf"},
      {{{{-1}, 1}}, "want features >= 0, got -1"},
      {{{{nan}, 1}}, "want features >= 0, got nan"},
      {{{{0}, 1}}, "all features of all measurements are 0"},
  };
  for (const auto& [rows, message] : cases) {
    const auto fit = FitNonNegative(rows);
    ASSERT_FALSE(fit.ok()) << message;
    EXPECT_THAT(std::string(base::MessageOf(fit.status())), HasSubstr(message));
  }
}

}  // namespace
}  // namespace smartgen::transfer
