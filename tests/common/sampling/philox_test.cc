#include "common/sampling/philox.h"

#include <gtest/gtest.h>

#include "common/sampling/sampler.h"

namespace smartgen::sampling {
namespace {

// The known answers for philox4x32-10 that its authors publish with Random123 (kat_vectors).
TEST(Philox, GivesTheKnownAnswers) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(UniformAt, IsTheTop53BitsOfTheFirstTwoWords) {
  EXPECT_EQ(UniformAt(0, 0), static_cast<double>(0x6627e8d5e169c58dU >> 11) / 9007199254740992.0);
}

TEST(UniformAt, DiffersBySeedAndByPosition) {
  EXPECT_EQ(UniformAt(5, 9), UniformAt(5, 9));
  EXPECT_NE(UniformAt(5, 9), UniformAt(5, 10));
  EXPECT_NE(UniformAt(5, 9), UniformAt(6, 9));
  EXPECT_NE(UniformAt(5, 9), UniformAt(5 | uint64_t{1} << 40, 9));
  EXPECT_NE(UniformAt(5, 9), UniformAt(5, 9 | int64_t{1} << 40));
}

TEST(UniformAt, IsUniform) {
  constexpr int kDraws = 100000, kBins = 100;
  std::array<int, kBins> bins{};
  for (int i = 0; i < kDraws; ++i) {
    const double u = UniformAt(42, i);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    ++bins[static_cast<size_t>(u * kBins)];
  }
  double chi_square = 0;
  for (const int n : bins) chi_square += (n - 1000.0) * (n - 1000.0) / 1000.0;
  EXPECT_LT(chi_square, 148.2);  // 99 degrees of freedom, p = 0.001
}

}  // namespace
}  // namespace smartgen::sampling
