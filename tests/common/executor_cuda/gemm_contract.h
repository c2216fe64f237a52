// The contract of Gemm on random numbers, for whatever implements it.
#pragma once

#include <cmath>
#include <cstddef>

#include "common/executor/cuda/gemm.h"
#include "tests/common/executor_cuda/layer_test_util.h"

namespace smartgen::executor::cuda {

struct GemmShape {
  int m = 0;
  int n = 0;
  int k = 0;
  static GemmShape Small(ShapeRandom& random) {
    return {SomeRows(random, 5), SomeRows(random, 9),
            random.OneIn(10) ? random.Between(0, 1) : random.Between(1, 40)};
  }
};

inline GemmArgs ArgsOf(Rows& x, Rows& w, Rows& y, int64_t m, int64_t n, int64_t k) {
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

inline float RoundedTo(float value, kv::DType dtype) {
  std::byte bytes[sizeof(float)];
  selector::StoreElement(value, dtype, bytes);
  return selector::LoadElement(bytes, dtype);
}

// One product of random types, strides and numbers.
inline void CheckProduct(Gemm& gemm, ShapeRandom& random, const GemmShape& shape) {
  const auto [m, n, k] = shape;
  const auto wide_or_bf16 = [&] { return random.OneIn(2) ? kv::DType::kF32 : kv::DType::kBF16; };
  Rows x(random, m, k, wide_or_bf16()), w(random, n, k, random.DType());
  Rows y(random, m, n, wide_or_bf16());
  x.Fill(random);
  w.Fill(random);
  y.Fill(random);
  Rows before = y;
  GemmArgs args = ArgsOf(x, w, y, m, n, k);
  if (random.OneIn(2)) args.then = GemmArgs::Then::kAdd;
  const absl::Status status = gemm.Run(args, nullptr);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(FinishLaunches(), nullptr);
  ASSERT_TRUE(y.GuardsStand());
  for (int r = 0; r < m; ++r) {
    for (int c = 0; c < n; ++c) {
      double want = args.then == GemmArgs::Then::kAdd ? before.Get(r, c) : 0.0f;
      double size = std::fabs(want);
      for (int i = 0; i < k; ++i) {
        const double product = double{RoundedTo(x.Get(r, i), w.dtype())} * w.Get(c, i);
        want += product;
        size += std::fabs(product);
      }
      ASSERT_NEAR(y.Get(r, c), want, Tolerance(y.dtype()) * size)
          << m << " x " << n << " x " << k << ", row " << r << " column " << c << ", x "
          << static_cast<int>(args.x_element) << " w " << static_cast<int>(args.w_element) << " y "
          << static_cast<int>(args.y_element);
    }
  }
}

}  // namespace smartgen::executor::cuda
