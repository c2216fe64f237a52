// Attention to two sides' KV: what the other side gives for a shipped query, and the step that
// merges it.
#include <cmath>
#include <limits>

#include "tests/common/executor/late_remote.h"
#include "tests/common/executor/model/fixture.h"

namespace smartgen::executor {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kPrompt = 150;

class QueryShipping : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto model = model::Model::Open(std::string(SMARTGEN_TEST_DATA) + "/arch_" + GetParam());
    ASSERT_TRUE(model.ok()) << model.status();
    b_ = Bench::Make(**model, {.compute = ComputeType::kF32, .threads = 2}, 256);
    ASSERT_NE(b_.executor, nullptr);
    for (int i = 0; i < 256; ++i) tokens_.push_back((i * 53 + 7) % 256);
    full_ = std::make_unique<kv::KvSequence>(b_.pool.get());
    PrefillAll(b_, *full_, {tokens_.data(), kPrompt}, 512);
    ASSERT_TRUE(full_->Reserve(256).ok());
  }
  Executor& executor() { return *b_.executor; }
  const model::LayerConfig& layer(int i) { return executor().config().layers[i]; }
  std::unique_ptr<kv::KvSequence> Part(auto local) {
    auto part = std::make_unique<kv::KvSequence>(b_.pool.get());
    EXPECT_TRUE(part->Reserve(256).ok());
    CopyPart(*full_, *part, kPrompt, local);
    return part;
  }
  absl::Status Ship(kv::KvSequence& part, LateRemote& remote, int64_t position,
                    std::vector<float>& logits, SlotRead& read) {
    logits.assign(b_.vocab(), 0.0f);
    read.remote = &remote;
    read.ship_end = kPrompt;
    const DecodeSlot slot{.sequence = &part,
                          .position = position,
                          .token = tokens_[position],
                          .logits = logits,
                          .read = &read};
    ASSIGN_OR_RETURN(auto run, executor().StartStep({&slot, 1}));
    for (int i = 0; i < 100; ++i) {
      ASSIGN_OR_RETURN(const StepRun::State state, run->Advance());
      if (state == StepRun::State::kDone) return absl::OkStatus();
    }
    return base::Internal("the step never ends");
  }
  // Within 1e-5 of the greatest logit.
  void ExpectClose(const std::vector<float>& got, const std::vector<float>& want) {
    double top = 0;
    for (const float v : want) top = std::max(top, std::abs(double{v}));
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-5 * top) << i;
  }
  int64_t First(int i, int64_t position) {
    return layer(i).window > 0 ? std::max<int64_t>(0, position + 1 - layer(i).window) : 0;
  }

  Bench b_;
  std::vector<TokenId> tokens_;
  std::unique_ptr<kv::KvSequence> full_;
};

TEST_P(QueryShipping, BothSidesTogetherGiveFullAttention) {
  for (const int64_t here : {0L, 1L, 70L, 130L, 149L}) {
    // Other entries that happen to be here are left to the other side.
    auto part = Part([&](int layer, int head, int64_t token) {
      return token < here + layer || (token > here + layer && (token + head) % 3 == 0);
    });
    LateRemote remote(&executor(), full_.get(), part.get(), 1);
    for (int64_t at = kPrompt; at < kPrompt + 5; ++at) {
      std::vector<float> got;
      SlotRead read;
      ASSERT_EQ(Ship(*part, remote, at, got, read), absl::OkStatus());
      ExpectClose(got, DecodeOne(b_, *full_, at, tokens_[at]));
    }
  }
}

TEST_P(QueryShipping, TheOtherSideAttendsFromTheFirstTokenThatIsNotHere) {
  auto part =
      Part([&](int layer, int, int64_t token) { return token < 130 + layer || token == 140; });
  LateRemote remote(&executor(), full_.get(), part.get(), 1);
  std::vector<float> got;
  SlotRead read;
  ASSERT_EQ(Ship(*part, remote, kPrompt, got, read), absl::OkStatus());
  EXPECT_THAT(remote.calls, ElementsAre("attend 0 130 150", "attend 1 131 150"));
  const int64_t heads = layer(0).num_kv_heads;
  EXPECT_EQ(read.remote_entries, heads * (20 + 19));
  EXPECT_EQ(read.selected_entries,
            heads * (2 * (kPrompt + 1) - First(0, kPrompt) - First(1, kPrompt)));
}

TEST_P(QueryShipping, WhatIsAllHereIsFullAttentionBitForBit) {
  auto part = Part([](int, int, int64_t) { return true; });
  LateRemote remote(&executor(), full_.get(), part.get(), 1);
  std::vector<float> got;
  SlotRead read;
  ASSERT_EQ(Ship(*part, remote, kPrompt, got, read), absl::OkStatus());
  EXPECT_EQ(got, DecodeOne(b_, *full_, kPrompt, tokens_[kPrompt]));
  EXPECT_TRUE(remote.calls.empty());
}

TEST_P(QueryShipping, TokensOutsideTheWindowAreNobodysBusiness) {
  auto part = Part([&](int layer, int, int64_t token) { return token >= First(layer, kPrompt); });
  LateRemote remote(&executor(), full_.get(), part.get(), 1);
  std::vector<float> got;
  SlotRead read;
  ASSERT_EQ(Ship(*part, remote, kPrompt, got, read), absl::OkStatus());
  EXPECT_TRUE(remote.calls.empty());
}

TEST_P(QueryShipping, NewerTokensMustBeHere) {
  auto part = Part([](int, int, int64_t) { return false; });
  LateRemote remote(&executor(), full_.get(), part.get(), 1);
  std::vector<float> got;
  SlotRead read;
  const absl::Status status = Ship(*part, remote, kPrompt + 1, got, read);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(base::MessageOf(status)), HasSubstr("token 150"));
}

TEST_P(QueryShipping, AnErrorOrNonsenseFromTheOtherSideEndsTheStep) {
  auto part = Part([](int, int, int64_t) { return false; });
  std::vector<float> got;
  SlotRead read;
  LateRemote gone(&executor(), full_.get(), part.get(), 1);
  gone.fail = base::Unavailable("gone");
  EXPECT_EQ(Ship(*part, gone, kPrompt, got, read).code(), absl::StatusCode::kUnavailable);
  LateRemote silent(&executor(), full_.get(), part.get(), 1);
  silent.fail_later = base::DeadlineExceeded("no answer");
  EXPECT_EQ(Ship(*part, silent, kPrompt, got, read).code(), absl::StatusCode::kDeadlineExceeded);
  LateRemote mad(&executor(), full_.get(), part.get(), 1);
  mad.spoil = true;
  EXPECT_EQ(Ship(*part, mad, kPrompt, got, read).code(), absl::StatusCode::kDataLoss);
}

TEST_P(QueryShipping, AttendGivesSoftmaxOverItsTokens) {
  const int last = executor().config().num_layers() - 1;
  const int heads = layer(last).num_heads, kv_heads = layer(last).num_kv_heads;
  const int dim = layer(last).head_dim;
  std::vector<float> q(heads * dim);
  for (size_t i = 0; i < q.size(); ++i) q[i] = 3 * std::sin(static_cast<float>(i) + 1);
  std::vector<float> out(2 * q.size()), lse(2 * heads);
  const std::span<float> outs(out), lses(lse);
  // Two jobs of unlike layers and ranges in one call.
  const std::vector<AttendJob> jobs = {
      {full_.get(), 0, 3, 9, q, outs.first(q.size()), lses.first(heads)},
      {full_.get(), last, 17, 100, q, outs.subspan(q.size()), lses.subspan(heads)}};
  ASSERT_EQ(executor().Attend(jobs), absl::OkStatus());
  const kv::KvLayout& layout = full_->layout();
  for (int h = 0; h < heads; ++h) {
    const int kv_head = h / (heads / kv_heads);
    double total = 0;
    std::vector<double> want(dim);
    for (int64_t t = 17; t < 100; ++t) {
      const int row = static_cast<int>(t % kv::kPageTokens);
      const auto* page = full_->Page(last, t / kv::kPageTokens);
      const auto* k = reinterpret_cast<const float*>(page + layout.KOffset(last, kv_head, row));
      const auto* v = reinterpret_cast<const float*>(page + layout.VOffset(last, kv_head, row));
      double score = 0;
      for (int i = 0; i < dim; ++i) score += double{q[h * dim + i]} * k[i];
      const double weight = std::exp(score / std::sqrt(dim));
      total += weight;
      for (int i = 0; i < dim; ++i) want[i] += weight * v[i];
    }
    EXPECT_NEAR(jobs[1].lse[h], std::log(total), 1e-5);
    for (int i = 0; i < dim; ++i) EXPECT_NEAR(jobs[1].out[h * dim + i], want[i] / total, 1e-5);
  }
}

TEST_P(QueryShipping, AttendRefusesWhatDoesNotFitByName) {
  const int heads = layer(0).num_heads;
  std::vector<float> q(heads * layer(0).head_dim), out(q.size()), lse(heads);
  const AttendJob good{full_.get(), 0, 0, kPrompt, q, out, lse};
  ASSERT_EQ(executor().Attend({&good, 1}), absl::OkStatus());
  const auto refused = [&](const char* field, absl::StatusCode code, auto change) {
    AttendJob bad = good;
    change(bad);
    const absl::Status status = executor().Attend({&bad, 1});
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(base::MessageOf(status)), HasSubstr(field));
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  refused("layer", kInvalid, [](AttendJob& j) { j.layer = -1; });
  refused("layer", kInvalid, [&](AttendJob& j) { j.layer = executor().config().num_layers(); });
  refused("begin", kInvalid, [](AttendJob& j) { j.begin = -1; });
  refused("begin", kInvalid, [](AttendJob& j) { j.begin = j.end + 1; });
  refused("positions", kInvalid, [](AttendJob& j) { j.end = 1000; });
  refused("sequence", kInvalid, [](AttendJob& j) { j.sequence = nullptr; });
  refused("queries", kInvalid, [](AttendJob& j) { j.queries = j.queries.first(1); });
  refused("out", kInvalid, [](AttendJob& j) { j.out = j.out.first(1); });
  refused("lse", kInvalid, [](AttendJob& j) { j.lse = {}; });
  refused("token 150", absl::StatusCode::kFailedPrecondition, [](AttendJob& j) { j.end = 160; });
}

INSTANTIATE_TEST_SUITE_P(Tiny, QueryShipping, testing::Values("llama", "mistral"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace smartgen::executor
