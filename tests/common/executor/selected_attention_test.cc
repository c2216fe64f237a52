// Attention over given tokens against plain arithmetic in double precision, and that arrival does
// not show in the bits.
#include "common/executor/cpu/selected_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "common/executor/cpu/attention.h"
#include "common/kv/pool.h"

namespace smartgen::executor::cpu {
namespace {

struct Shape {
  int heads, kv_heads, dim;
  kv::DType dtype;
  int64_t tokens;
};

class SelectedTokens : public testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    const Shape& s = GetParam();
    const kv::KvLayout layout{
        .layers = {{.kv_heads = 1, .head_dim = 8}, {.kv_heads = s.kv_heads, .head_dim = s.dim}},
        .dtype = s.dtype,
        .token_capacity = 2048};
    pool_ = *kv::KvPool::Create(layout, {.bytes = layout.PageBytesTotal() * 128});
    sequence_ = std::make_unique<kv::KvSequence>(pool_.get());
    ASSERT_TRUE(sequence_->Reserve(s.tokens).ok());
    std::vector<float> row(s.dim);
    for (int64_t t = 0; t < s.tokens; ++t) {
      for (int h = 0; h < s.kv_heads; ++h) {
        for (const bool v : {false, true}) {
          for (float& x : row) x = uniform_(random_);
          StoreKv(row.data(), s.dim, s.dtype, At(h, t, v));
        }
      }
    }
    q_.resize(static_cast<size_t>(s.heads) * s.dim);
    for (float& x : q_) x = 4 * uniform_(random_);
  }

  std::byte* At(int head, int64_t token, bool v) {
    const kv::KvLayout& layout = pool_->layout();
    const int row = static_cast<int>(token % kv::kPageTokens);
    return sequence_->Page(1, token / kv::kPageTokens) +
           (v ? layout.VOffset(1, head, row) : layout.KOffset(1, head, row));
  }
  std::vector<float> Values(int head, int64_t token, bool v) {
    std::vector<float> row(GetParam().dim);
    LoadKv(At(head, token, v), GetParam().dim, GetParam().dtype, row.data());
    return row;
  }
  // softmax(q K / sqrt(d)) V of each query head over its KV head's tokens.
  void Reference(const std::vector<std::vector<int32_t>>& tokens, std::vector<double>& out,
                 std::vector<double>& lse) {
    const Shape& s = GetParam();
    out.assign(q_.size(), 0);
    lse.assign(s.heads, 0);
    for (int head = 0; head < s.heads; ++head) {
      const int kv_head = head / (s.heads / s.kv_heads);
      std::vector<double> scores;
      for (const int32_t token : tokens[kv_head]) {
        const std::vector<float> k = Values(kv_head, token, false);
        double sum = 0;
        for (int i = 0; i < s.dim; ++i) sum += double{q_[head * s.dim + i]} * k[i];
        scores.push_back(sum / std::sqrt(s.dim));
      }
      const double top = *std::max_element(scores.begin(), scores.end());
      double total = 0;
      for (const double score : scores) total += std::exp(score - top);
      lse[head] = top + std::log(total);
      for (size_t i = 0; i < scores.size(); ++i) {
        const std::vector<float> v = Values(kv_head, tokens[kv_head][i], true);
        const double weight = std::exp(scores[i] - lse[head]);
        for (int c = 0; c < s.dim; ++c) out[head * s.dim + c] += weight * v[c];
      }
    }
  }
  // `k` tokens a head, ascending, others in each head.
  std::vector<std::vector<int32_t>> Pick(int64_t k) {
    std::vector<std::vector<int32_t>> rows(GetParam().kv_heads);
    for (auto& row : rows) {
      std::vector<int32_t> all(GetParam().tokens);
      std::iota(all.begin(), all.end(), 0);
      std::sample(all.begin(), all.end(), std::back_inserter(row), k, random_);
    }
    return rows;
  }
  static std::vector<int32_t> Flat(const std::vector<std::vector<int32_t>>& rows) {
    std::vector<int32_t> flat;
    for (const auto& row : rows) flat.insert(flat.end(), row.begin(), row.end());
    return flat;
  }
  SelectedAttention::Job JobFor(std::vector<float>& out, std::vector<float>& lse) {
    out.assign(q_.size(), -7.0f);
    lse.assign(GetParam().heads, -7.0f);
    return {.sequence = sequence_.get(),
            .layer = 1,
            .num_heads = GetParam().heads,
            .q = q_.data(),
            .out = out.data(),
            .lse = lse.data()};
  }
  void ExpectNear(const std::vector<float>& out, const std::vector<float>& lse,
                  const std::vector<double>& want, const std::vector<double>& want_lse) {
    for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], want[i], 2e-6) << i;
    for (size_t h = 0; h < lse.size(); ++h) ASSERT_NEAR(lse[h], want_lse[h], 2e-6) << h;
  }

  std::mt19937 random_{7};
  std::uniform_real_distribution<float> uniform_{-1.0f, 1.0f};
  std::unique_ptr<kv::KvPool> pool_;
  std::unique_ptr<kv::KvSequence> sequence_;
  std::vector<float> q_;
  base::ThreadPool threads_{2};
  Attention whole_{&threads_};
  SelectedAttention selected_{&threads_, whole_.scratch()};
};

TEST_P(SelectedTokens, GatheredRowsEqualPlainSoftmax) {
  for (const int64_t k :
       {int64_t{1}, int64_t{3}, int64_t{64}, int64_t{65}, GetParam().tokens / 3}) {
    const auto rows = Pick(k);
    const std::vector<int32_t> index = Flat(rows);
    std::vector<float> out, lse;
    std::vector<double> want, want_lse;
    Reference(rows, want, want_lse);
    SelectedAttention::Job job = JobFor(out, lse);
    job.index = index;
    job.k = k;
    selected_.Start({&job, 1});
    ASSERT_TRUE(selected_.Run());
    ExpectNear(out, lse, want, want_lse);
  }
}

TEST_P(SelectedTokens, RangesEqualPlainSoftmax) {
  const int64_t n = GetParam().tokens;
  for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 1}, {0, n}, {5, n - 3}, {63, 65}, {250, 300}, {n - 1, n}}) {
    std::vector<int32_t> row(end - begin);
    std::iota(row.begin(), row.end(), static_cast<int32_t>(begin));
    std::vector<float> out, lse;
    std::vector<double> want, want_lse;
    Reference(std::vector<std::vector<int32_t>>(GetParam().kv_heads, row), want, want_lse);
    SelectedAttention::Job job = JobFor(out, lse);
    job.begin = begin;
    job.end = end;
    selected_.Start({&job, 1});
    ASSERT_TRUE(selected_.Run());
    ExpectNear(out, lse, want, want_lse);
  }
}

TEST_P(SelectedTokens, AllTokensHaveTheBitsOfWholeAttention) {
  const int64_t n = GetParam().tokens;
  std::vector<float> want(q_.size()), out, lse;
  const Attention::Job plain{.sequence = sequence_.get(),
                             .position = n - 1,
                             .rows = 1,
                             .q = q_.data(),
                             .out = want.data()};
  whole_.Run(1, GetParam().heads, {&plain, 1});
  SelectedAttention::Job job = JobFor(out, lse);
  job.end = n;
  selected_.Start({&job, 1});
  ASSERT_TRUE(selected_.Run());
  EXPECT_EQ(out, want);
}

TEST_P(SelectedTokens, NoTokensGiveNothing) {
  std::vector<float> out, lse;
  SelectedAttention::Job job = JobFor(out, lse);
  job.begin = job.end = 17;
  selected_.Start({&job, 1});
  ASSERT_TRUE(selected_.Run());
  EXPECT_EQ(out, std::vector<float>(q_.size(), 0.0f));
  for (const float s : lse) EXPECT_EQ(s, -std::numeric_limits<float>::infinity());
}

TEST_P(SelectedTokens, WhenEntriesArriveDoesNotShowInTheBits) {
  const int64_t n = GetParam().tokens;
  const std::vector<int32_t> index = Flat(Pick(n / 3));
  std::vector<float> want, want_lse, want_range, want_range_lse, out, lse, range, range_lse;
  const auto run = [&](bool remote, std::vector<float>& a, std::vector<float>& a_lse,
                       std::vector<float>& b, std::vector<float>& b_lse) {
    std::vector<SelectedAttention::Job> jobs = {JobFor(a, a_lse), JobFor(b, b_lse)};
    jobs[0].index = index;
    jobs[0].k = n / 3;
    jobs[1].begin = 3;
    jobs[1].end = n;
    for (auto& job : jobs) job.remote = remote;
    selected_.Start(jobs);
  };
  run(false, want, want_lse, want_range, want_range_lse);
  ASSERT_TRUE(selected_.Run());
  run(true, out, lse, range, range_lse);
  EXPECT_FALSE(selected_.Run());
  std::vector<std::pair<int, int64_t>> entries;
  for (int h = 0; h < GetParam().kv_heads; ++h) {
    for (int64_t t = 0; t < n; ++t) entries.emplace_back(h, t);
  }
  std::shuffle(entries.begin(), entries.end(), random_);
  for (size_t i = 0; i < entries.size(); ++i) {
    sequence_->MarkHeadLocal(1, entries[i].first, entries[i].second, entries[i].second + 1);
    if (i % 97 == 0) selected_.Run();
  }
  ASSERT_TRUE(selected_.Run());
  EXPECT_EQ(out, want);
  EXPECT_EQ(lse, want_lse);
  EXPECT_EQ(range, want_range);
  EXPECT_EQ(range_lse, want_range_lse);
}

INSTANTIATE_TEST_SUITE_P(Shapes, SelectedTokens,
                         testing::Values(Shape{9, 3, 64, kv::DType::kBF16, 700},
                                         Shape{4, 4, 16, kv::DType::kF32, 333},
                                         Shape{8, 1, 80, kv::DType::kF16, 400},
                                         Shape{6, 2, 9, kv::DType::kF32, 301},
                                         Shape{28, 2, 128, kv::DType::kBF16, 520}));

}  // namespace
}  // namespace smartgen::executor::cpu
