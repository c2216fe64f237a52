// Rotary embedding and the way of K and V into pages, against the CPU executor's functions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "common/executor/cpu/kernels.h"
#include "common/model/model_config.h"
#include "tests/common/executor_cuda/layer_test_util.h"

namespace smartgen::executor::cuda {
namespace {

std::vector<float> SomeFrequencies(ShapeRandom& random, int head_dim) {
  model::ModelConfig config;
  config.layers = {{.num_heads = 1, .num_kv_heads = 1, .head_dim = head_dim}};
  config.rope.theta = random.OneIn(2) ? 10000.0f : 500000.0f;
  switch (random.Between(0, 3)) {
    case 0:
      config.rope.scaling = model::RopeScaling::kLinear;
      config.rope.factor = 4;
      break;
    case 1:
      config.rope.scaling = model::RopeScaling::kLlama3;
      config.rope.factor = 8;
      break;
    case 2:
      config.rope.frequency_divisors.assign(static_cast<size_t>(head_dim / 2), 3.5f);
      break;
    default:
      break;
  }
  return config.RopeInverseFrequencies();
}

// As cpu::Forward::FillRope has them.
struct Angles {
  Angles(const std::vector<int32_t>& positions, const std::vector<float>& frequencies) {
    for (const int32_t position : positions) {
      for (const float frequency : frequencies) {
        const float angle = static_cast<float>(position) * frequency;
        cosines.push_back(static_cast<float>(std::cos(double{angle})));
        sines.push_back(static_cast<float>(std::sin(double{angle})));
      }
    }
  }
  std::vector<float> cosines, sines;
};

TEST(RopeAnglesKernelTest, AreTheCpusFarIntoTheContext) {
  ShapeRandom random(1);
  for (int shape = 0; shape < kShapes; ++shape) {
    const std::vector<float> frequencies = SomeFrequencies(random, SomeDim(random, 1024));
    std::vector<int32_t> positions(static_cast<size_t>(SomeRows(random, 6)));
    for (int32_t& p : positions) p = random.Between(0, random.OneIn(3) ? (1 << 24) - 1 : 5000);
    const Angles want(positions, frequencies);
    std::vector<float> cosines(want.cosines.size() + 1, 7.0f), sines = cosines;
    random.ShuffleThreads();
    ASSERT_LAUNCHED(RopeAngles({.positions = positions.data(),
                                .rows = static_cast<int64_t>(positions.size()),
                                .frequencies = frequencies.data(),
                                .angles = static_cast<int>(frequencies.size()),
                                .cosines = cosines.data(),
                                .sines = sines.data()},
                               nullptr));
    for (size_t i = 0; i < want.cosines.size(); ++i) {
      ASSERT_NEAR(cosines[i], want.cosines[i], 1e-6f) << "shape " << shape;
      ASSERT_NEAR(sines[i], want.sines[i], 1e-6f) << "shape " << shape;
    }
    ASSERT_EQ(cosines.back(), 7.0f);
    ASSERT_EQ(sines.back(), 7.0f);
  }
}

// Rows of a layer, and the sequences that their KV goes to.
struct RopeCase {
  explicit RopeCase(ShapeRandom& random)
      : query_heads(random.Between(1, 5)),
        kv_heads(random.OneIn(5) ? 0 : random.Between(1, 3)),
        dim(random.OneIn(25) ? random.Between(100, 1024) : SomeDim(random, 40)),
        rows(SomeRows(random, 6)),
        stored(kv_heads > 0 && !random.OneIn(5)),
        x(random, rows, int64_t{query_heads + 2 * kv_heads} * dim),
        batch(random, std::max(kv_heads, 1), dim, random.DType(), {40, 40}) {
    x.Fill(random);
    // Different ones, so that no two rows share a token.
    std::vector<int32_t> all(40);
    std::iota(all.begin(), all.end(), 0);
    for (size_t i = all.size(); i > 1; --i) {
      std::swap(all[i - 1], all[random.Below(static_cast<uint32_t>(i))]);
    }
    positions.assign(all.begin(), all.begin() + rows);
    one_sequence = random.OneIn(2);
    for (int r = 0; r < rows; ++r) {
      sequence_of.push_back(one_sequence ? 0 : random.Between(0, 1));
      row_pages.push_back(batch.Pages(static_cast<size_t>(sequence_of.back())));
    }
  }
  RopeArgs Args(const Angles& angles) {
    RopeArgs args{.x = x.floats(),
                  .stride = x.stride(),
                  .rows = rows,
                  .query_heads = query_heads,
                  .kv_heads = kv_heads,
                  .head_dim = dim,
                  .cosines = angles.cosines.data(),
                  .sines = angles.sines.data(),
                  .positions = positions.data(),
                  .row_pages = one_sequence ? nullptr : row_pages.data()};
    if (stored) {
      args.layer = batch.Layer();
      if (one_sequence) args.layer.pages = batch.Pages(0);
    }
    return args;
  }

  int query_heads, kv_heads, dim, rows;
  bool stored;
  Rows x;
  PagedBatch batch;
  std::vector<int32_t> positions;
  bool one_sequence = false;
  std::vector<int> sequence_of;
  std::vector<const int32_t*> row_pages;
};

TEST(RopeKernelTest, QueriesKeysAndPagesAreTheCpus) {
  ShapeRandom random(2);
  for (int shape = 0; shape < kShapes; ++shape) {
    RopeCase c(random);
    const std::vector<float> frequencies = SomeFrequencies(random, c.dim);
    const Angles angles(c.positions, frequencies);
    Rows want = c.x;
    for (int r = 0; r < c.rows; ++r) {
      for (int h = 0; h < c.query_heads + c.kv_heads; ++h) {
        const auto at = static_cast<size_t>(r) * frequencies.size();
        cpu::Rope(angles.cosines.data() + at, angles.sines.data() + at, c.dim,
                  want.Row(r) + int64_t{h} * c.dim);
      }
    }
    Rows old = c.x;
    const std::vector<std::byte> unwritten = c.batch.Bytes();
    random.ShuffleThreads();
    ASSERT_LAUNCHED(Rope(c.Args(angles), nullptr));
    ASSERT_TRUE(c.x.GuardsStand());
    const int half = c.dim / 2;
    for (int r = 0; r < c.rows; ++r) {
      for (int i = 0; i < (c.query_heads + 2 * c.kv_heads) * c.dim; ++i) {
        // A difference of products: relative to what was subtracted.
        const int channel = i % c.dim;
        const int other = channel < half ? i + half : channel < 2 * half ? i - half : i;
        const float size = std::fabs(old.Get(r, i)) + std::fabs(old.Get(r, other));
        ASSERT_NEAR(c.x.Get(r, i), want.Get(r, i), 1e-5f * size)
            << "shape " << shape << ": dim " << c.dim << ", row " << r << ", value " << i;
        const bool rotated = i < (c.query_heads + c.kv_heads) * c.dim && channel < 2 * half;
        if (!rotated) {
          ASSERT_EQ(c.x.Get(r, i), old.Get(r, i)) << "shape " << shape;
        }
      }
    }
    // The pages have what now stands in the rows, rounded, and nothing else.
    const kv::KvLayout& layout = c.batch.pool().layout();
    std::vector<std::byte> stored(static_cast<size_t>(layout.RowBytes(0)));
    for (int r = 0; c.stored && r < c.rows; ++r) {
      const auto s = static_cast<size_t>(c.sequence_of[r]);
      for (int h = 0; h < c.kv_heads; ++h) {
        const float* key = c.x.Row(r) + int64_t{c.query_heads + h} * c.dim;
        for (const bool value : {false, true}) {
          std::byte* at =
              value ? c.batch.Value(s, h, c.positions[r]) : c.batch.Key(s, h, c.positions[r]);
          cpu::StoreKv(value ? key + int64_t{c.kv_heads} * c.dim : key, c.dim, layout.dtype,
                       stored.data());
          ASSERT_EQ(std::memcmp(at, stored.data(), stored.size()), 0)
              << "shape " << shape << ": row " << r << ", head " << h << (value ? " V" : " K");
          std::memset(at, kGuardByte, stored.size());
        }
      }
    }
    ASSERT_EQ(c.batch.Bytes(), unwritten) << "shape " << shape;
  }
}

TEST(LayerLaunchersTest, RopeOfAnotherShapeThanThePagesIsRefused) {
  ShapeRandom random(3);
  PagedBatch batch(random, 2, 4, kv::DType::kF32, {16});
  const int32_t position = 0;
  RopeArgs args{.stride = 20, .rows = 1, .query_heads = 1, .kv_heads = 2, .head_dim = 4};
  args.layer = batch.Layer();
  EXPECT_NE(Rope(args, nullptr), nullptr);  // no positions
  args.positions = &position;
  args.kv_heads = 1;
  EXPECT_NE(Rope(args, nullptr), nullptr);
  args.kv_heads = 2;
  args.stride = 19;
  EXPECT_NE(Rope(args, nullptr), nullptr);
  EXPECT_NE(RopeAngles({.rows = 1, .angles = 513}, nullptr), nullptr);
}

}  // namespace
}  // namespace smartgen::executor::cuda
