// cuBLASLt under the contract of Gemm.
#include "common/executor/cuda/cublaslt_gemm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "tests/common/executor_cuda/gemm_contract.h"

namespace smartgen::executor::cuda {
namespace {

class CublasLtGemmTest : public testing::Test {
 protected:
  std::unique_ptr<Gemm> Make(const CublasLtOptions& options = {}) {
    auto device = device::OpenDevice(0);
    EXPECT_TRUE(device.ok()) << device.status();
    if (!device.ok()) return nullptr;
    device_ = *std::move(device);
    auto gemm = CreateCublasLtGemm(device_.get(), options);
    EXPECT_TRUE(gemm.ok()) << gemm.status();
    return gemm.ok() ? *std::move(gemm) : nullptr;
  }
  std::unique_ptr<device::Device> device_;
};

TEST_F(CublasLtGemmTest, SmallProductsOfAllTypesAndStrides) {
  const auto gemm = Make();
  ASSERT_NE(gemm, nullptr);
  ShapeRandom random(1);
  for (int shape = 0; shape < kShapes; ++shape) {
    SCOPED_TRACE(shape);
    CheckProduct(*gemm, random, GemmShape::Small(random));
    if (HasFatalFailure()) return;
  }
}

TEST_F(CublasLtGemmTest, ProductsOfAModelsSizes) {
  const auto gemm = Make();
  ASSERT_NE(gemm, nullptr);
  ShapeRandom random(2);
  for (const GemmShape& shape : {GemmShape{1, 960, 576}, GemmShape{1, 1536, 576},
                                 GemmShape{7, 576, 1536}, GemmShape{130, 192, 576}}) {
    for (int i = 0; i < 12; ++i) CheckProduct(*gemm, random, shape);
    if (HasFatalFailure()) return;
  }
}

// Rows that need a copy go through the staging a few at a time.
TEST_F(CublasLtGemmTest, LittleStagingIsEnough) {
  const auto gemm = Make({.staging_bytes = 4096, .cached_shapes = 3});
  ASSERT_NE(gemm, nullptr);
  ShapeRandom random(3);
  for (int shape = 0; shape < kShapes; ++shape) {
    SCOPED_TRACE(shape);
    CheckProduct(*gemm, random, {random.Between(1, 60), random.Between(1, 90), 100});
    if (HasFatalFailure()) return;
  }
}

TEST_F(CublasLtGemmTest, ARowThatDoesNotFitIntoTheStagingIsRefused) {
  const auto gemm = Make({.staging_bytes = 256});
  ASSERT_NE(gemm, nullptr);
  ShapeRandom random(4);
  Rows x(random, 2, 200), w(random, 3, 200, kv::DType::kBF16), y(random, 2, 3);
  EXPECT_EQ(gemm->Run(ArgsOf(x, w, y, 2, 3, 200), nullptr).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(CublasLtGemmTest, TheSameCallGivesTheSameBits) {
  const auto gemm = Make();
  ASSERT_NE(gemm, nullptr);
  ShapeRandom random(5);
  for (const kv::DType dtype : {kv::DType::kF32, kv::DType::kBF16}) {
    // Few rows, long sums: what the library splits.
    Rows x(random, 3, 1536, dtype), w(random, 576, 1536, dtype), y(random, 3, 576);
    x.Fill(random);
    w.Fill(random);
    y.Fill(random);
    const GemmArgs args = ArgsOf(x, w, y, 3, 576, 1536);
    ASSERT_TRUE(gemm->Run(args, nullptr).ok());
    ASSERT_EQ(FinishLaunches(), nullptr);
    const Rows first = y;
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(gemm->Run(args, nullptr).ok());
      ASSERT_EQ(FinishLaunches(), nullptr);
      ASSERT_TRUE(y == first) << "run " << i;
    }
  }
}

// TF32 keeps ten bits of 1 + 2^-12: it would give k.
TEST_F(CublasLtGemmTest, FloatsAreNotTf32) {
  const auto gemm = Make();
  ASSERT_NE(gemm, nullptr);
  ShapeRandom random(6);
  constexpr int kSide = 128;
  constexpr float kFine = 1.0f + 1.0f / 4096;
  Rows x(random, kSide, kSide), w(random, kSide, kSide), y(random, kSide, kSide);
  for (int r = 0; r < kSide; ++r) {
    for (int c = 0; c < kSide; ++c) {
      x.Set(r, c, kFine);
      w.Set(r, c, 1);
    }
  }
  ASSERT_TRUE(gemm->Run(ArgsOf(x, w, y, kSide, kSide, kSide), nullptr).ok());
  ASSERT_EQ(FinishLaunches(), nullptr);
  EXPECT_EQ(y.Get(5, 7), kSide * kFine);
}

}  // namespace
}  // namespace smartgen::executor::cuda
