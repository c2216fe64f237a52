// The kernels against plain scalar code, and their promise that routes and neighbours don't show in
// the bits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "common/executor/cpu/attention.h"
#include "common/executor/cpu/kernels.h"
#include "common/executor/cpu/matrix.h"
#include "common/kv/pool.h"
#include "common/kv/sequence.h"

namespace smartgen::executor::cpu {
namespace {

using model::TensorType;

std::vector<float> Random(int64_t size, uint32_t seed) {
  std::mt19937 rng(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> values(size);
  for (float& v : values) v = uniform(rng);
  return values;
}

// Random bytes whose half-precision scales are small finite numbers.
struct RandomTensor {
  std::vector<std::byte> bytes;
  model::TensorView view;

  RandomTensor(TensorType type, int64_t rows, int64_t cols, uint32_t seed) {
    const model::BlockShape shape = model::BlockShapeOf(type);
    bytes.resize(rows * cols / shape.elements * shape.bytes);
    std::mt19937 rng(seed);
    for (std::byte& b : bytes) b = static_cast<std::byte>(rng());
    const auto half_at = [&](size_t at) {
      const uint16_t half =
          static_cast<uint16_t>(0x2000 + rng() % 0x800) | (rng() % 2 ? 0x8000 : 0);
      std::memcpy(bytes.data() + at, &half, 2);
    };
    for (size_t at = 0; at < bytes.size(); at += shape.bytes) {
      switch (type) {
        case TensorType::kF32: {
          const float value = static_cast<float>(rng() % 2001) / 1000 - 1;
          std::memcpy(bytes.data() + at, &value, 4);
          break;
        }
        case TensorType::kBF16: {
          const uint16_t value = static_cast<uint16_t>(0x3C00 + rng() % 0x400);
          std::memcpy(bytes.data() + at, &value, 2);
          break;
        }
        case TensorType::kQ4_1:
        case TensorType::kQ5_1:
        case TensorType::kQ4_K:
        case TensorType::kQ5_K:
          half_at(at);
          half_at(at + 2);
          break;
        case TensorType::kQ6_K:
          half_at(at + 208);
          break;
        default:
          half_at(at);
          break;
      }
    }
    view = {.name = "random", .type = type, .rows = rows, .cols = cols, .data = bytes};
  }
};

class Formats : public testing::TestWithParam<TensorType> {};

TEST_P(Formats, PackedWeightsDecodeToTheDequantizedValuesExactly) {
  base::ThreadPool pool(2);
  Arena arena;
  const RandomTensor t(GetParam(), 37, 512, 1);
  const Matrix::Part part{t.view, {}};
  const Matrix m = Matrix::Pack({&part, 1}, pool, arena);
  ASSERT_EQ(m.columns(), 37);
  std::vector<float> want(512), got(512);
  for (int64_t row = 0; row < 37; ++row) {
    model::Dequantize(t.view, row, row + 1, want);
    m.DecodeRow(row, got.data());
    ASSERT_EQ(got, want) << "row " << row;
  }
}

TEST_P(Formats, EveryNumberOfRowsGivesTheSameBits) {
  base::ThreadPool pool(2);
  Arena arena;
  const RandomTensor t(GetParam(), 150, 512, 2);
  const Matrix::Part part{t.view, {}};
  const Matrix m = Matrix::Pack({&part, 1}, pool, arena);
  MatMul matmul(&pool);
  constexpr int64_t kRows = 401;
  const std::vector<float> x = Random(kRows * 512, 3);
  std::vector<float> want(kRows * 150);
  matmul.Run(m, {.x = x.data(), .ldx = 512, .rows = kRows, .y = want.data(), .ldy = 150});
  for (int64_t rows : {1, 2, 3, 4, 5, 13}) {
    std::vector<float> y(rows * 150);
    for (int64_t begin : {int64_t{0}, int64_t{77}, kRows - rows}) {
      matmul.Run(
          m, {.x = x.data() + begin * 512, .ldx = 512, .rows = rows, .y = y.data(), .ldy = 150});
      ASSERT_EQ(std::memcmp(y.data(), want.data() + begin * 150, y.size() * 4), 0)
          << rows << " rows from " << begin;
    }
  }
  std::vector<float> w(512);
  for (int64_t c : {0, 64, 149}) {
    model::Dequantize(t.view, c, c + 1, w);
    double sum = 0, size = 0;
    for (int k = 0; k < 512; ++k) {
      sum += static_cast<double>(w[k]) * x[k];
      size += std::abs(static_cast<double>(w[k]) * x[k]);
    }
    EXPECT_NEAR(want[c], sum, 1e-5 * size + 1e-30);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Formats,
                         testing::Values(TensorType::kF32, TensorType::kF16, TensorType::kBF16,
                                         TensorType::kQ4_0, TensorType::kQ4_1, TensorType::kQ5_0,
                                         TensorType::kQ5_1, TensorType::kQ8_0, TensorType::kQ4_K,
                                         TensorType::kQ5_K, TensorType::kQ6_K),
                         [](const auto& info) {
                           return std::string(model::TensorTypeName(info.param));
                         });

TEST(MatMul, StacksPartsAddsBiasAndResidual) {
  base::ThreadPool pool(2);
  Arena arena;
  // Sizes that fill no panel and no block; different types side by side; rows of the first in
  // reverse.
  const RandomTensor a(TensorType::kF32, 21, 100, 4), b(TensorType::kBF16, 9, 100, 5);
  std::vector<int64_t> reverse(21);
  for (int i = 0; i < 21; ++i) reverse[i] = 20 - i;
  const std::vector<Matrix::Part> parts{{a.view, reverse}, {b.view, {}}};
  const Matrix m = Matrix::Pack(parts, pool, arena);
  MatMul matmul(&pool);
  const std::vector<float> bias = Random(30, 6);
  std::vector<float> wa(2100), wb(900);
  model::Dequantize(a.view, 0, 21, wa);
  model::Dequantize(b.view, 0, 9, wb);
  for (int64_t rows : {1, 3, 17}) {
    const std::vector<float> x = Random(rows * 100, 7);
    std::vector<float> y(rows * 30);
    matmul.Run(
        m,
        {.x = x.data(), .ldx = 100, .rows = rows, .y = y.data(), .ldy = 30, .bias = bias.data()});
    std::vector<float> added = y;
    matmul.Run(m, {.x = x.data(),
                   .ldx = 100,
                   .rows = rows,
                   .y = added.data(),
                   .ldy = 30,
                   .then = MatMul::Then::kAdd});
    for (int64_t r = 0; r < rows; ++r) {
      for (int c = 0; c < 30; ++c) {
        const float* w = c < 21 ? &wa[(20 - c) * 100] : &wb[(c - 21) * 100];
        double sum = 0;
        for (int k = 0; k < 100; ++k) sum += static_cast<double>(w[k]) * x[r * 100 + k];
        EXPECT_NEAR(y[r * 30 + c], sum + bias[c], 1e-4);
        EXPECT_NEAR(added[r * 30 + c], 2 * sum + bias[c], 1e-4);
      }
    }
  }
}

// In float, which every machine has; bf16 goes the same way.
TEST(MatMul, OneDnnGivesTheSameValuesAndRowsStayIndependent) {
  base::ThreadPool pool(2);
  ASSERT_TRUE(VerifyRows(GemmType::kF32, pool).ok()) << VerifyRows(GemmType::kF32, pool);
  Arena arena;
  const RandomTensor gate(TensorType::kF32, 300, 96, 20), up(TensorType::kF32, 300, 96, 21);
  Matrix m = Matrix::PackPairs({gate.view, {}}, {up.view, {}}, pool, arena);
  ASSERT_TRUE(m.AddFast(GemmType::kF32, pool).ok());
  MatMul matmul(&pool);
  const std::vector<float> x = Random(200 * 96, 22);
  std::vector<float> own(200 * 300), fast(200 * 300), part(70 * 300);
  MatMul::Args args{.x = x.data(),
                    .ldx = 96,
                    .rows = 200,
                    .y = own.data(),
                    .ldy = 300,
                    .then = MatMul::Then::kSwiGlu};
  matmul.Run(m, args);
  args.y = fast.data();
  matmul.RunFast(m, args);
  for (size_t i = 0; i < own.size(); ++i) ASSERT_NEAR(fast[i], own[i], 1e-3) << i;
  args.x += 33 * 96;
  args.rows = 70;
  args.y = part.data();
  matmul.RunFast(m, args);
  EXPECT_EQ(std::memcmp(part.data(), fast.data() + 33 * 300, part.size() * 4), 0);
}

TEST(MatMul, PairsGiveSwiGlu) {
  base::ThreadPool pool(2);
  Arena arena;
  const RandomTensor gate(TensorType::kF32, 40, 64, 8), up(TensorType::kF32, 40, 64, 9);
  const Matrix m = Matrix::PackPairs({gate.view, {}}, {up.view, {}}, pool, arena);
  MatMul matmul(&pool);
  std::vector<float> wg(40 * 64), wu(40 * 64);
  model::Dequantize(gate.view, 0, 40, wg);
  model::Dequantize(up.view, 0, 40, wu);
  for (int64_t rows : {1, 20}) {
    const std::vector<float> x = Random(rows * 64, 10);
    std::vector<float> y(rows * 40);
    matmul.Run(m, {.x = x.data(),
                   .ldx = 64,
                   .rows = rows,
                   .y = y.data(),
                   .ldy = 40,
                   .then = MatMul::Then::kSwiGlu});
    for (int64_t r = 0; r < rows; ++r) {
      for (int c = 0; c < 40; ++c) {
        double g = 0, u = 0;
        for (int k = 0; k < 64; ++k) {
          g += static_cast<double>(wg[c * 64 + k]) * x[r * 64 + k];
          u += static_cast<double>(wu[c * 64 + k]) * x[r * 64 + k];
        }
        EXPECT_NEAR(y[r * 40 + c], g / (1 + std::exp(-g)) * u, 1e-4);
      }
    }
  }
}

TEST(Ops, RmsNormFollowsItsFormula) {
  for (int64_t size : {1, 15, 16, 100, 576}) {
    const std::vector<float> x = Random(size, 11), w = Random(size, 12);
    std::vector<float> out(size);
    RmsNorm(x.data(), w.data(), 1e-5f, size, out.data());
    double sum = 0;
    for (float v : x) sum += static_cast<double>(v) * v;
    for (int64_t i = 0; i < size; ++i) {
      EXPECT_NEAR(out[i], x[i] / std::sqrt(sum / static_cast<double>(size) + 1e-5) * w[i], 1e-5);
    }
  }
}

TEST(Ops, RopeTurnsPairsHalfAHeadApart) {
  for (int size : {2, 16, 64, 80}) {
    std::vector<float> x = Random(size, 13), before = x, cosines, sines;
    for (int i = 0; i < size / 2; ++i) {
      cosines.push_back(std::cos(0.3f * i));
      sines.push_back(std::sin(0.3f * i));
    }
    Rope(cosines.data(), sines.data(), size, x.data());
    for (int i = 0; i < size / 2; ++i) {
      const double a = before[i], b = before[i + size / 2];
      EXPECT_NEAR(x[i], a * cosines[i] - b * sines[i], 1e-6);
      EXPECT_NEAR(x[i + size / 2], b * cosines[i] + a * sines[i], 1e-6);
    }
  }
}

TEST(Ops, SwiGluHoldsAtTheExtremes) {
  const std::vector<float> gate = {0, 1, -1, 20, -20, 200, -200, 1e30f, -1e30f}, up(9, 2.0f);
  std::vector<float> out(9);
  SwiGlu(gate.data(), up.data(), 9, out.data());
  for (int i = 0; i < 9; ++i) {
    const double want = 2.0 * gate[i] / (1 + std::exp(-static_cast<double>(gate[i])));
    EXPECT_NEAR(out[i], want, 1e-6 * std::abs(want) + 1e-6) << gate[i];
  }
}

TEST(Ops, KvIsRoundedToNearestEven) {
  // 1 + 2^-8 lies halfway between two bfloat16 values, 1 + 3 * 2^-8 as well.
  const std::vector<float> x = {1.0f, 1.00390625f, 1.01171875f, -3.0f, 0.0f};
  std::vector<std::byte> stored(10);
  std::vector<float> back(5);
  StoreKv(x.data(), 5, kv::DType::kBF16, stored.data());
  LoadKv(stored.data(), 5, kv::DType::kBF16, back.data());
  EXPECT_EQ(back, (std::vector<float>{1.0f, 1.0f, 1.015625f, -3.0f, 0.0f}));
  StoreKv(x.data(), 5, kv::DType::kF16, stored.data());
  LoadKv(stored.data(), 5, kv::DType::kF16, back.data());
  EXPECT_EQ(back, x);
}

struct AttentionCase {
  int heads;
  int kv_heads;
  int dim;
  int window;
  kv::DType dtype;
};

class AttentionShapes : public testing::TestWithParam<AttentionCase> {};

TEST_P(AttentionShapes, EqualsPlainSoftmaxAndDoesNotDependOnTheCut) {
  const AttentionCase c = GetParam();
  constexpr int64_t kTokens = 345;
  const int64_t q_size = c.heads * c.dim;
  const kv::KvLayout layout{
      .layers = {{c.kv_heads, c.dim, c.window}}, .dtype = c.dtype, .token_capacity = 512};
  auto pool = kv::KvPool::Create(layout, {.bytes = 64 << 20});
  ASSERT_TRUE(pool.ok()) << pool.status();
  kv::KvSequence sequence(pool->get());
  ASSERT_TRUE(sequence.Reserve(kTokens).ok());
  const std::vector<float> q = Random(kTokens * q_size, 14);
  std::vector<float> k = Random(kTokens * c.kv_heads * c.dim, 15),
                     v = Random(kTokens * c.kv_heads * c.dim, 16);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int h = 0; h < c.kv_heads; ++h) {
      std::byte* page = sequence.Page(0, t / kv::kPageTokens);
      const int at = static_cast<int>(t % kv::kPageTokens);
      for (auto* values : {&k, &v}) {
        float* row = values->data() + (t * c.kv_heads + h) * c.dim;
        std::byte* to = page + (values == &k ? layout.KOffset(0, h, at) : layout.VOffset(0, h, at));
        StoreKv(row, c.dim, c.dtype, to);
        LoadKv(to, c.dim, c.dtype, row);
      }
    }
  }
  base::ThreadPool threads(2);
  Attention attention(&threads);
  std::vector<float> whole(kTokens * q_size), cut(kTokens * q_size);
  const auto run = [&](int64_t begin, int64_t end, float* out) {
    const Attention::Job job{.sequence = &sequence,
                             .position = begin,
                             .rows = end - begin,
                             .q = q.data() + begin * q_size,
                             .ldq = q_size,
                             .out = out + begin * q_size,
                             .ldo = q_size};
    attention.Run(0, c.heads, {&job, 1});
  };
  run(0, kTokens, whole.data());
  const int64_t cuts[] = {0, 1, 2, 19, 100, 257, 258, 345};
  for (int i = 0; i + 1 < 8; ++i) run(cuts[i], cuts[i + 1], cut.data());
  EXPECT_EQ(std::memcmp(whole.data(), cut.data(), whole.size() * 4), 0);

  for (int64_t t : {int64_t{0}, int64_t{5}, int64_t{64}, int64_t{256}, kTokens - 1}) {
    for (int h = 0; h < c.heads; ++h) {
      const int kv_head = h / (c.heads / c.kv_heads);
      const int64_t first = c.window > 0 ? std::max<int64_t>(0, t - c.window + 1) : 0;
      std::vector<double> out(c.dim, 0.0);
      double total = 0;
      for (int64_t s = first; s <= t; ++s) {
        double score = 0;
        for (int i = 0; i < c.dim; ++i) {
          score += static_cast<double>(q[t * q_size + h * c.dim + i]) *
                   k[(s * c.kv_heads + kv_head) * c.dim + i];
        }
        const double weight = std::exp(score / std::sqrt(static_cast<double>(c.dim)));
        total += weight;
        for (int i = 0; i < c.dim; ++i)
          out[i] += weight * v[(s * c.kv_heads + kv_head) * c.dim + i];
      }
      for (int i = 0; i < c.dim; ++i) {
        ASSERT_NEAR(whole[t * q_size + h * c.dim + i], out[i] / total, 2e-6)
            << "token " << t << " head " << h;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Some, AttentionShapes,
                         testing::Values(AttentionCase{9, 3, 64, 0, kv::DType::kF32},
                                         AttentionCase{9, 3, 64, 0, kv::DType::kBF16},
                                         AttentionCase{4, 4, 16, 0, kv::DType::kF16},
                                         AttentionCase{14, 2, 64, 100, kv::DType::kF32},
                                         AttentionCase{4, 1, 80, 33, kv::DType::kF32},
                                         AttentionCase{2, 2, 6, 0, kv::DType::kBF16},
                                         AttentionCase{8, 2, 128, 300, kv::DType::kBF16}));

}  // namespace
}  // namespace smartgen::executor::cpu
