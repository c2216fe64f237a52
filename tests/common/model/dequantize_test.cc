// Against the values that the gguf Python package gives (tests/golden/make_dequant.py), bit for
// bit.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "common/model/half.h"
#include "common/model/model.h"

namespace smartgen::model {
namespace {

std::string ReadGolden(const std::string& name) {
  std::ifstream in(std::string(SMARTGEN_TEST_DATA) + "/dequant/" + name, std::ios::binary);
  EXPECT_TRUE(in.good()) << name;
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

struct Case {
  TensorType type;
  const char* file;
  int64_t cols;
};

class DequantizeType : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const Case& c = GetParam();
    blocks_ = ReadGolden(std::string(c.file) + ".blocks");
    const std::string values = ReadGolden(std::string(c.file) + ".f32");
    want_.resize(values.size() / sizeof(float));
    std::memcpy(want_.data(), values.data(), values.size());
    const BlockShape shape = BlockShapeOf(c.type);
    const int64_t row_bytes = c.cols / shape.elements * shape.bytes;
    view_ = {c.file, c.type, static_cast<int64_t>(blocks_.size()) / row_bytes, c.cols,
             std::as_bytes(std::span(blocks_))};
    ASSERT_GE(view_.rows, 3);
    ASSERT_EQ(static_cast<size_t>(view_.rows * view_.cols), want_.size());
  }
  std::string blocks_;
  std::vector<float> want_;
  TensorView view_;
};

TEST_P(DequantizeType, EqualsTheReferenceBitForBit) {
  std::vector<float> out(want_.size());
  Dequantize(view_, 0, view_.rows, out);
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(want_[i])) << i;
  }
}

TEST_P(DequantizeType, ARangeOfRowsIsThatPartOfTheWhole) {
  std::vector<float> out(static_cast<size_t>(view_.cols));
  Dequantize(view_, 1, 2, out);
  EXPECT_EQ(std::memcmp(out.data(), want_.data() + view_.cols, out.size() * sizeof(float)), 0);
}

TEST_P(DequantizeType, UnalignedDataGivesTheSame) {
  const std::string moved = "x" + blocks_;
  view_.data = std::as_bytes(std::span(moved)).subspan(1);
  std::vector<float> out(want_.size());
  Dequantize(view_, 0, view_.rows, out);
  EXPECT_EQ(std::memcmp(out.data(), want_.data(), out.size() * sizeof(float)), 0);
}

INSTANTIATE_TEST_SUITE_P(
    AllTypes, DequantizeType,
    ::testing::Values(Case{TensorType::kF32, "f32", 32}, Case{TensorType::kF16, "f16", 32},
                      Case{TensorType::kBF16, "bf16", 32}, Case{TensorType::kQ4_0, "q4_0", 96},
                      Case{TensorType::kQ4_1, "q4_1", 96}, Case{TensorType::kQ5_0, "q5_0", 96},
                      Case{TensorType::kQ5_1, "q5_1", 96}, Case{TensorType::kQ8_0, "q8_0", 96},
                      Case{TensorType::kQ4_K, "q4_k", 256}, Case{TensorType::kQ5_K, "q5_k", 256},
                      Case{TensorType::kQ6_K, "q6_k", 256}),
    [](const auto& info) { return std::string(info.param.file); });

TEST(HalfToFloat, EveryHalfHasTheValueThatItsBitsSay) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const int exponent = static_cast<int>(bits >> 10) & 31;
    const int mantissa = static_cast<int>(bits & 1023);
    const float got = HalfToFloat(static_cast<uint16_t>(bits));
    if (exponent == 31 && mantissa != 0) {
      ASSERT_TRUE(std::isnan(got)) << bits;
      continue;
    }
    double want =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    if (exponent == 31) want = INFINITY;
    if ((bits & 0x8000) != 0) want = -want;
    ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(static_cast<float>(want)))
        << bits;
  }
}

TEST(TensorType, BlocksHaveTheSizesOfTheFormat) {
  const auto expect = [](TensorType type, int elements, int bytes) {
    EXPECT_EQ(BlockShapeOf(type).elements, elements) << TensorTypeName(type);
    EXPECT_EQ(BlockShapeOf(type).bytes, bytes) << TensorTypeName(type);
  };
  expect(TensorType::kF32, 1, 4);
  expect(TensorType::kBF16, 1, 2);
  expect(TensorType::kQ4_0, 32, 2 + 16);
  expect(TensorType::kQ5_1, 32, 4 + 4 + 16);
  expect(TensorType::kQ8_0, 32, 2 + 32);
  expect(TensorType::kQ4_K, 256, 4 + 12 + 128);
  expect(TensorType::kQ5_K, 256, 4 + 12 + 32 + 128);
  expect(TensorType::kQ6_K, 256, 128 + 64 + 16 + 2);
}

}  // namespace
}  // namespace smartgen::model
