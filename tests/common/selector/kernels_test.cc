#include "common/selector/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "hwy/targets.h"
#include "tests/common/selector/selector_test_util.h"

namespace smartgen::selector {
namespace {

constexpr int kShapes = 1000;
constexpr kv::DType kTypes[] = {kv::DType::kF32, kv::DType::kBF16, kv::DType::kF16};

// Runs a test once for every instruction set that this machine has.
class KernelTest : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { Use(GetParam()); }
  void TearDown() override { Use(0); }
  static void Use(int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

int Between(Random& random, int low, int high) {
  return low + static_cast<int>(random.Below(static_cast<uint32_t>(high - low + 1)));
}

std::vector<std::byte> Elements(Random& random, int64_t count, kv::DType dtype) {
  std::vector<std::byte> bytes(static_cast<size_t>(count * kv::DTypeBytes(dtype)));
  for (int64_t i = 0; i < count; ++i) {
    StoreElement(random.Normal(), dtype, bytes.data() + i * kv::DTypeBytes(dtype));
  }
  return bytes;
}

TEST_P(KernelTest, QuestScoresEqualTheFormulaBitForBit) {
  Random random(1);
  for (int shape = 0; shape < kShapes; ++shape) {
    const kv::DType dtype = kTypes[random.Below(3)];
    const int dim = Between(random, 1, 160);
    const int pages = Between(random, 0, 9);
    const int heads = Between(random, 1, 3);
    const int64_t stride = 2LL * dim * heads;
    const auto units = Elements(random, stride * pages, dtype);
    const int padded = (dim + 15) / 16 * 16;
    auto positive = Normals(random, padded);
    auto negative = Normals(random, padded);
    for (int c = dim; c < padded; ++c) positive[c] = negative[c] = 0;
    std::vector<float> scores(pages);
    const int bytes = kv::DTypeBytes(dtype);
    QuestScores(units.data(), stride * bytes, pages, dtype, dim, positive.data(), negative.data(),
                scores.data());
    for (int p = 0; p < pages; ++p) {
      float above[16] = {}, below[16] = {}, lanes[16];
      for (int c = 0; c < dim; ++c) {
        const std::byte* unit = units.data() + p * stride * bytes;
        const float up = Product(positive[c], LoadElement(unit + (dim + c) * bytes, dtype));
        const float down = Product(negative[c], LoadElement(unit + c * bytes, dtype));
        above[c % 16] += up;
        below[c % 16] += down;
      }
      for (int i = 0; i < 16; ++i) lanes[i] = above[i] + below[i];
      ASSERT_EQ(scores[p], SumLanes(lanes)) << "shape " << shape << " dim " << dim;
    }
  }
}

TEST_P(KernelTest, PartialScoresEqualTheFormulaBitForBit) {
  Random random(2);
  for (int shape = 0; shape < kShapes; ++shape) {
    const kv::DType dtype = kTypes[random.Below(3)];
    const int channels = Between(random, 1, 70);
    const int pages = Between(random, 0, 9);
    const int64_t stride = 16LL * channels * Between(random, 1, 3);
    const auto units = Elements(random, stride * pages, dtype);
    const auto query = Normals(random, channels);
    std::vector<float> scores(16 * pages);
    const int bytes = kv::DTypeBytes(dtype);
    PartialScores(units.data(), stride * bytes, pages, dtype, channels, query.data(),
                  scores.data());
    for (int i = 0; i < 16 * pages; ++i) {
      float sum = 0;
      for (int c = 0; c < channels; ++c) {
        sum +=
            Product(query[c],
                    LoadElement(units.data() + (i / 16 * stride + 16 * c + i % 16) * bytes, dtype));
      }
      ASSERT_EQ(scores[i], sum) << "shape " << shape;
    }
  }
}

TEST_P(KernelTest, HammingDistancesEqualCountingBits) {
  Random random(3);
  for (int shape = 0; shape < kShapes; ++shape) {
    const int bytes = shape % 2 == 0 ? 16 : 8 * Between(random, 1, 8);
    const int pages = Between(random, 0, 9);
    const int queries = shape % 50 == 0 ? kMaxQueryCodes : Between(random, 1, 8);
    const int64_t stride = 16LL * bytes * Between(random, 1, 3);
    std::vector<std::byte> units(stride * pages), codes(queries * bytes);
    for (auto* buffer : {&units, &codes}) {
      for (std::byte& b : *buffer) b = static_cast<std::byte>(random.Next());
    }
    std::vector<uint16_t> distances(16 * pages);
    HammingDistances(units.data(), stride, pages, bytes, codes.data(), queries, distances.data());
    for (int i = 0; i < 16 * pages; ++i) {
      int sum = 0;
      for (int q = 0; q < queries; ++q) {
        for (int b = 0; b < bytes; ++b) {
          const auto x = units[i / 16 * stride + i % 16 * bytes + b] ^ codes[q * bytes + b];
          sum += std::popcount(static_cast<uint8_t>(x));
        }
      }
      ASSERT_EQ(distances[i], sum) << "shape " << shape;
    }
  }
}

TEST_P(KernelTest, ProjectEqualsTheFormulaBitForBit) {
  Random random(4);
  for (int shape = 0; shape < kShapes; ++shape) {
    const int rows = Between(random, 0, 17);
    const int inner = Between(random, 1, 40);
    const int columns = 16 * Between(random, 1, 4);
    const auto x = Normals(random, rows * inner);
    const auto matrix = Normals(random, inner * columns);
    std::vector<float> out(rows * columns);
    Project(x.data(), rows, inner, matrix.data(), columns, out.data());
    for (int i = 0; i < rows * columns; ++i) {
      float sum = 0;
      for (int c = 0; c < inner; ++c) {
        sum += Product(x[i / columns * inner + c], matrix[c * columns + i % columns]);
      }
      ASSERT_EQ(out[i], sum) << "shape " << shape;
    }
  }
}

TEST_P(KernelTest, CountAboveAndGreatestEqualALoopEvenWithNan) {
  Random random(5);
  for (int shape = 0; shape < kShapes; ++shape) {
    auto scores = Normals(random, Between(random, 0, 100));
    for (float& x : scores) {
      if (random.Below(20) == 0) x = std::numeric_limits<float>::quiet_NaN();
    }
    const float threshold = random.Normal();
    int64_t count = 0;
    float greatest = -std::numeric_limits<float>::infinity();
    for (const float x : scores) {
      count += x > threshold ? 1 : 0;
      greatest = x > greatest ? x : greatest;
    }
    ASSERT_EQ(CountAbove(scores, threshold), count);
    ASSERT_EQ(Greatest(scores), greatest);
  }
}

INSTANTIATE_TEST_SUITE_P(EveryInstructionSet, KernelTest, testing::ValuesIn([] {
                           std::vector<int64_t> targets;
                           for (int64_t left = hwy::SupportedTargets() &
                                               (HWY_SSE4 | HWY_AVX2 | HWY_AVX3 | HWY_NEON);
                                left != 0; left &= left - 1) {
                             targets.push_back(left & -left);
                           }
                           return targets;
                         }()));

TEST(DtypeTest, EveryHalfComesBackFromFloat) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = HalfToFloat(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(value))));
    } else {
      ASSERT_EQ(FloatToHalf(value), bits) << value;
    }
  }
}

TEST(DtypeTest, HalfRoundsToNearestAndTiesToEven) {
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const float low = HalfToFloat(static_cast<uint16_t>(bits));
    const float high = HalfToFloat(static_cast<uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;
    ASSERT_EQ(FloatToHalf(middle), bits + bits % 2) << middle;
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, 0.0f)), bits) << middle;
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, 1e9f)), bits + 1) << middle;
  }
  EXPECT_EQ(FloatToHalf(-65520.0f), 0xfc00);
  EXPECT_EQ(FloatToHalf(65519.0f), 0x7bff);
}

TEST(DtypeTest, Bf16RoundsToNearestAndTiesToEven) {
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x7f800001u)), 0x7fc0);
}

}  // namespace
}  // namespace smartgen::selector
