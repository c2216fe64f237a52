// What CublasLtGemm makes of calls, on a strict double of the library. On a real device:
// tests/cuda_device.
#include "common/executor/cuda/cublaslt_gemm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/common/executor_cuda/gemm_contract.h"
#include "tests/fakes/fake_cublaslt.h"
#include "tests/fakes/fake_device.h"

namespace smartgen::executor::cuda {
namespace {

using fakes::CublasLt;
using testing::HasSubstr;
using testing::IsEmpty;

class CublasLtGemmTest : public testing::Test {
 protected:
  void SetUp() override { fakes::ResetCublasLt(); }
  void TearDown() override { EXPECT_THAT(CublasLt().faults, IsEmpty()); }
  std::unique_ptr<Gemm> Make(const CublasLtOptions& options = {.workspace_bytes = 4096}) {
    auto gemm = CreateCublasLtGemm(&device_, options);
    EXPECT_TRUE(gemm.ok()) << gemm.status();
    return gemm.ok() ? *std::move(gemm) : nullptr;
  }
  fakes::FakeDevice device_;
};

TEST_F(CublasLtGemmTest, ProductsOfAllTypesAndStrides) {
  const auto gemm = Make();
  ShapeRandom random(1);
  for (int shape = 0; shape < kShapes; ++shape) {
    SCOPED_TRACE(shape);
    CheckProduct(*gemm, random, GemmShape::Small(random));
    if (HasFatalFailure()) return;
  }
}

TEST_F(CublasLtGemmTest, LittleStagingIsEnough) {
  const auto gemm = Make({.workspace_bytes = 4096, .staging_bytes = 2048, .cached_shapes = 2});
  ShapeRandom random(2);
  for (int shape = 0; shape < kShapes / 5; ++shape) {
    SCOPED_TRACE(shape);
    CheckProduct(*gemm, random, {random.Between(1, 40), random.Between(1, 30), 50});
    if (HasFatalFailure()) return;
  }
}

TEST_F(CublasLtGemmTest, ARowThatDoesNotFitIntoTheStagingIsRefused) {
  const auto gemm = Make({.workspace_bytes = 4096, .staging_bytes = 256});
  ShapeRandom random(3);
  Rows x(random, 2, 200), w(random, 3, 200, kv::DType::kBF16), y(random, 2, 3);
  const absl::Status status = gemm->Run(ArgsOf(x, w, y, 2, 3, 200), nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(base::MessageOf(status)), HasSubstr("400 bytes of staging, of 256"));
  EXPECT_EQ(CublasLt().products, 0);
}

TEST_F(CublasLtGemmTest, AnAlgorithmIsAskedForOnceAShapeWhileThereIsRoom) {
  const auto gemm = Make({.workspace_bytes = 4096, .cached_shapes = 2});
  ShapeRandom random(4);
  Rows x(random, 5, 8), w(random, 3, 8), y(random, 5, 3);
  x.Fill(random);
  w.Fill(random);
  const auto run = [&](int64_t m) {
    EXPECT_TRUE(gemm->Run(ArgsOf(x, w, y, m, 3, 8), nullptr).ok());
  };
  for (const int64_t m : {1, 2, 1, 2, 2}) run(m);
  EXPECT_EQ(CublasLt().choices, 2);
  run(3);  // a third: begun anew
  run(3);
  EXPECT_EQ(CublasLt().choices, 3);
  run(1);
  EXPECT_EQ(CublasLt().choices, 4);
  EXPECT_EQ(CublasLt().products, 8);
}

TEST_F(CublasLtGemmTest, ErrorsNameTheCallTheStatusAndTheProduct) {
  const auto gemm = Make();
  ShapeRandom random(5);
  Rows x(random, 2, 8), w(random, 3, 8), y(random, 2, 3);
  x.Fill(random);
  w.Fill(random);
  const GemmArgs args = ArgsOf(x, w, y, 2, 3, 8);
  for (const char* call : {"cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmul"}) {
    CublasLt().fail = call;
    const absl::Status status = gemm->Run(args, nullptr);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(base::MessageOf(status)),
                AllOf(HasSubstr(std::string(call) + ": "), HasSubstr("CUBLAS_STATUS_NOT_SUPPORTED"),
                      HasSubstr("gemm of 2 x 8 f32"), HasSubstr("with 3 x 8 f32")));
  }
  EXPECT_TRUE(gemm->Run(args, nullptr).ok()) << "a failed call leaves nothing behind";
}

TEST_F(CublasLtGemmTest, WhatCannotBeMadeIsGivenBack) {
  CublasLt().fail = "cublasLtCreate";
  EXPECT_EQ(CreateCublasLtGemm(&device_).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(CreateCublasLtGemm(&device_, {.workspace_bytes = size_t{1} << 40}).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(CublasLt().handles, 0);
}

}  // namespace
}  // namespace smartgen::executor::cuda
