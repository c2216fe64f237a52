// Kernels on rows (embedding, norm, SwiGLU, sums, rounding) against the CPU executor's functions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "common/executor/cpu/kernels.h"
#include "tests/common/executor_cuda/layer_test_util.h"

namespace smartgen::executor::cuda {
namespace {

TEST(EmbedKernelTest, RowsAreTheTablesExactly) {
  ShapeRandom random(1);
  for (int shape = 0; shape < kShapes; ++shape) {
    const int dim = SomeDim(random, 700);
    const int vocabulary = random.Between(1, 12);
    const int count = SomeRows(random, 6);
    const kv::DType dtype = random.DType();
    const std::vector<std::byte> table = Elements(random, int64_t{vocabulary} * dim, dtype);
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    for (int32_t& token : tokens) {
      token = random.OneIn(10) ? (random.OneIn(2) ? -1 : vocabulary)
                               : random.Between(0, vocabulary - 1);
    }
    Rows out(random, count, dim);
    random.ShuffleThreads();
    ASSERT_LAUNCHED(Embed({.table = table.data(),
                           .element = static_cast<Element>(dtype),
                           .vocabulary = vocabulary,
                           .dim = dim,
                           .tokens = tokens.data(),
                           .rows = count,
                           .out = out.floats(),
                           .out_stride = out.stride()},
                          nullptr));
    ASSERT_TRUE(out.GuardsStand());
    for (int r = 0; r < count; ++r) {
      for (int i = 0; i < dim; ++i) {
        if (tokens[r] < 0 || tokens[r] >= vocabulary) {
          ASSERT_TRUE(std::isnan(out.Get(r, i))) << "shape " << shape;
        } else {
          const int64_t at = int64_t{tokens[r]} * dim + i;
          ASSERT_EQ(out.Get(r, i),
                    selector::LoadElement(table.data() + at * kv::DTypeBytes(dtype), dtype))
              << "shape " << shape;
        }
      }
    }
  }
}

TEST(RmsNormKernelTest, RowsAreTheCpus) {
  ShapeRandom random(2);
  for (int shape = 0; shape < kShapes; ++shape) {
    const int dim = SomeDim(random, 900);
    const int count = SomeRows(random, 2);
    const float eps = random.OneIn(3) ? 1e-2f : 1e-5f;
    Rows x(random, count, dim), weight(random, 1, dim, random.DType());
    x.Fill(random);
    weight.Fill(random);
    Rows add(random, count, dim);
    add.Fill(random);
    const bool adds = random.OneIn(2);
    Rows out(random, count, dim, random.DType());
    const bool in_place = out.dtype() == kv::DType::kF32 && random.OneIn(2);
    std::vector<float> sums, want(static_cast<size_t>(count) * dim), weights(dim);
    for (int i = 0; i < dim; ++i) weights[i] = weight.Get(0, i);
    for (int r = 0; r < count; ++r) {
      for (int i = 0; i < dim; ++i) sums.push_back(x.Get(r, i) + (adds ? add.Get(r, i) : 0.0f));
      cpu::RmsNorm(sums.data() + int64_t{r} * dim, weights.data(), eps, dim,
                   want.data() + int64_t{r} * dim);
    }
    Rows& result = in_place ? x : out;
    random.ShuffleThreads();
    ASSERT_LAUNCHED(RmsNorm({.x = x.floats(),
                             .x_stride = x.stride(),
                             .add = adds ? add.floats() : nullptr,
                             .add_stride = add.stride(),
                             .weight = weight.data(),
                             .weight_element = weight.element(),
                             .eps = eps,
                             .out = result.data(),
                             .out_element = result.element(),
                             .out_stride = result.stride(),
                             .rows = count,
                             .dim = dim},
                            nullptr));
    ASSERT_TRUE(x.GuardsStand() && out.GuardsStand());
    for (int r = 0; r < count; ++r) {
      for (int i = 0; i < dim; ++i) {
        const int64_t at = int64_t{r} * dim + i;
        if (!in_place) {
          ASSERT_EQ(x.Get(r, i), sums[at]) << "shape " << shape;
        }
        ASSERT_NEAR(result.Get(r, i), want[at],
                    Tolerance(result.dtype()) * (1e-3f + std::fabs(want[at])))
            << "shape " << shape << ": dim " << dim << ", row " << r << ", channel " << i;
      }
    }
  }
}

TEST(SwiGluKernelTest, RowsAreTheCpusFusedOrNot) {
  ShapeRandom random(3);
  for (int shape = 0; shape < kShapes; ++shape) {
    const int dim = SomeDim(random, 2500);
    const int count = SomeRows(random, 4);
    const bool fused = random.OneIn(2);
    Rows both(random, count, 2 * dim);
    both.Fill(random);
    for (int r = 0; r < count; ++r) {
      for (int i = 0; i < dim; ++i) {
        if (random.OneIn(4)) both.Set(r, i, both.Get(r, i) * (random.OneIn(2) ? 30.0f : 1000.0f));
      }
    }
    std::vector<float> apart(static_cast<size_t>(count * both.stride()) + 1);
    float* up = both.floats() + dim;
    if (!fused) {
      for (float& value : apart) value = random.Normal();
      up = apart.data();
    }
    Rows out(random, count, dim, random.DType());
    std::vector<float> want(static_cast<size_t>(count) * dim);
    for (int r = 0; r < count; ++r) {
      cpu::SwiGlu(both.Row(r), up + r * both.stride(), dim, want.data() + int64_t{r} * dim);
    }
    random.ShuffleThreads();
    ASSERT_LAUNCHED(SwiGlu({.gate = both.floats(),
                            .up = up,
                            .stride = both.stride(),
                            .out = out.data(),
                            .out_element = out.element(),
                            .out_stride = out.stride(),
                            .rows = count,
                            .dim = dim},
                           nullptr));
    ASSERT_TRUE(out.GuardsStand());
    for (int r = 0; r < count; ++r) {
      for (int i = 0; i < dim; ++i) {
        const float expected = want[int64_t{r} * dim + i];
        ASSERT_NEAR(out.Get(r, i), expected, Tolerance(out.dtype()) * (1e-3f + std::fabs(expected)))
            << "shape " << shape << ": gate " << both.Get(r, i);
      }
    }
  }
}

TEST(AddRowsKernelTest, ResidualsAndBiasesAreAddedOnce) {
  ShapeRandom random(4);
  for (int shape = 0; shape < kShapes; ++shape) {
    const int dim = SomeDim(random, 2500);
    const int count = SomeRows(random, 5);
    const bool bias = random.OneIn(2);
    Rows x(random, count, dim), y(random, bias ? 1 : count, dim, random.DType());
    x.Fill(random);
    y.Fill(random);
    Rows want = x;
    for (int r = 0; r < count; ++r) {
      for (int i = 0; i < dim; ++i) want.Set(r, i, x.Get(r, i) + y.Get(bias ? 0 : r, i));
    }
    random.ShuffleThreads();
    ASSERT_LAUNCHED(AddRows({.x = x.floats(),
                             .x_stride = x.stride(),
                             .y = y.data(),
                             .y_element = y.element(),
                             .y_stride = bias ? 0 : y.stride(),
                             .rows = count,
                             .dim = dim},
                            nullptr));
    ASSERT_TRUE(x == want) << "shape " << shape << ": " << count << " rows of " << dim;
  }
}

TEST(RoundRowsKernelTest, RoundsToNearestEven) {
  ShapeRandom random(5);
  for (int shape = 0; shape < kShapes; ++shape) {
    const int dim = SomeDim(random, 2500);
    const int count = SomeRows(random, 5);
    Rows x(random, count, dim);
    x.Fill(random);
    for (int r = 0; r < count; ++r) {
      // A tie between two bf16 numbers, and what f16 has no room for.
      if (random.OneIn(3)) x.Set(r, 0, 1.0f + 0x1p-8f * static_cast<float>(random.Between(0, 9)));
      if (random.OneIn(3)) x.Set(r, dim - 1, 1e6f);
    }
    Rows out(random, count, dim, random.DType());
    Rows want = out;
    for (int r = 0; r < count; ++r) {
      for (int i = 0; i < dim; ++i) want.Set(r, i, x.Get(r, i));
    }
    random.ShuffleThreads();
    ASSERT_LAUNCHED(RoundRows({.x = x.floats(),
                               .x_stride = x.stride(),
                               .out = out.data(),
                               .out_element = out.element(),
                               .out_stride = out.stride(),
                               .rows = count,
                               .dim = dim},
                              nullptr));
    ASSERT_TRUE(out == want) << "shape " << shape << ": " << count << " rows of " << dim;
  }
}

TEST(LayerLaunchersTest, RowsThatDoNotFitAreRefusedBeforeAnythingRuns) {
  EXPECT_NE(Embed({.vocabulary = 1, .dim = 0, .rows = 1}, nullptr), nullptr);
  EXPECT_NE(Embed({.vocabulary = 1, .dim = 4, .rows = 1, .out_stride = 3}, nullptr), nullptr);
  EXPECT_NE(RmsNorm({.x_stride = 4, .out_stride = 3, .rows = 1, .dim = 4}, nullptr), nullptr);
  EXPECT_NE(RmsNorm({.x_stride = 4, .out_stride = 4, .rows = kMaxRows + 1, .dim = 4}, nullptr),
            nullptr);
  EXPECT_NE(SwiGlu({.stride = 3, .out_stride = 4, .rows = 1, .dim = 4}, nullptr), nullptr);
  EXPECT_NE(AddRows({.x_stride = 4, .y_stride = 1, .rows = 1, .dim = 4}, nullptr), nullptr);
  EXPECT_NE(RoundRows({.x_stride = 4, .out_stride = 4, .rows = 1, .dim = 0}, nullptr), nullptr);
}

}  // namespace
}  // namespace smartgen::executor::cuda
