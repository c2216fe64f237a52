// The contract of Gemm, on the implementation that the tests of a whole executor use.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <string>

#include "tests/common/executor_cuda/layer_test_util.h"
#include "tests/fakes/fake_gemm.h"

namespace smartgen::executor::cuda {
namespace {

float Rounded(float value, kv::DType dtype) {
  std::byte bytes[sizeof(float)];
  selector::StoreElement(value, dtype, bytes);
  return selector::LoadElement(bytes, dtype);
}

kv::DType WideOrBf16(ShapeRandom& random) {
  return random.OneIn(2) ? kv::DType::kF32 : kv::DType::kBF16;
}

GemmArgs ArgsOf(Rows& x, Rows& w, Rows& y, int64_t m, int64_t n, int64_t k) {
  return {.x = x.data(),
          .x_element = x.element(),
          .ldx = x.stride(),
          .w = w.data(),
          .w_element = w.element(),
          .ldw = w.stride(),
          .y = y.data(),
          .y_element = y.element(),
          .ldy = y.stride(),
          .m = m,
          .n = n,
          .k = k};
}

TEST(GemmTest, ProductsAreSumsOverRowsOfBoth) {
  ShapeRandom random(1);
  fakes::FakeGemm gemm;
  for (int shape = 0; shape < kShapes; ++shape) {
    const int m = SomeRows(random, 5);
    const int n = SomeRows(random, 9);
    const int k = random.OneIn(10) ? random.Between(0, 1) : random.Between(1, 40);
    Rows x(random, m, k, WideOrBf16(random)), w(random, n, k, random.DType());
    Rows y(random, m, n, WideOrBf16(random));
    x.Fill(random);
    w.Fill(random);
    y.Fill(random);
    Rows before = y;
    GemmArgs args = ArgsOf(x, w, y, m, n, k);
    if (random.OneIn(2)) args.then = GemmArgs::Then::kAdd;
    ASSERT_TRUE(gemm.Run(args, nullptr).ok());
    ASSERT_TRUE(y.GuardsStand());
    for (int r = 0; r < m; ++r) {
      for (int c = 0; c < n; ++c) {
        double want = args.then == GemmArgs::Then::kAdd ? before.Get(r, c) : 0.0f;
        double size = std::fabs(want);
        for (int i = 0; i < k; ++i) {
          const double product = double{Rounded(x.Get(r, i), w.dtype())} * w.Get(c, i);
          want += product;
          size += std::fabs(product);
        }
        ASSERT_NEAR(y.Get(r, c), want, Tolerance(y.dtype()) * size)
            << "shape " << shape << ": " << m << " x " << n << " x " << k;
      }
    }
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
