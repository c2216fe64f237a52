// The contract of Gemm, on the implementation that the tests of a whole executor use.
#include <gtest/gtest.h>

#include <string>

#include "tests/common/executor_cuda/gemm_contract.h"
#include "tests/fakes/fake_gemm.h"

namespace smartgen::executor::cuda {
namespace {

TEST(GemmTest, ProductsAreSumsOverRowsOfBoth) {
  ShapeRandom random(1);
  fakes::FakeGemm gemm;
  for (int shape = 0; shape < kShapes; ++shape) {
    SCOPED_TRACE(shape);
    CheckProduct(gemm, random, GemmShape::Small(random));
    if (HasFatalFailure()) return;
  }
}

TEST(GemmTest, WhatDoesNotFitIsNamed) {
  ShapeRandom random(2);
  fakes::FakeGemm gemm;
  Rows x(random, 2, 8), w(random, 3, 8), y(random, 2, 3);
  const GemmArgs good = ArgsOf(x, w, y, 2, 3, 8);
  const auto error = [&](auto change) {
    GemmArgs args = good;
    change(args);
    return std::string(base::MessageOf(gemm.Run(args, nullptr)));
  };
  EXPECT_EQ(error([](GemmArgs& a) { a.k = -1; }),
            "gemm: want sizes that are not negative, got m 2 n 3 k -1");
  EXPECT_EQ(error([](GemmArgs& a) { a.x_element = Element::kF16; }), "gemm: want x of f32 or bf16");
  EXPECT_EQ(error([](GemmArgs& a) { a.y_element = Element::kF16; }), "gemm: want y of f32 or bf16");
  EXPECT_EQ(error([](GemmArgs& a) { a.ldx = a.ldw = 7; }),
            "gemm: want ldx and ldw of at least k 8, got 7 and 7");
  EXPECT_EQ(error([](GemmArgs& a) { a.ldy = 2; }), "gemm: want ldy of at least n 3, got 2");
  EXPECT_EQ(error([](GemmArgs& a) { a.w = nullptr; }), "gemm: want x, w and y, got null");
  EXPECT_EQ(gemm.runs(), 0);
  EXPECT_TRUE(gemm.Run(good, nullptr).ok());
  EXPECT_EQ(gemm.runs(), 1);
}

}  // namespace
}  // namespace smartgen::executor::cuda
