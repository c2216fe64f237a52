// Against logits of the reference implementation (transformers, float32, dequantised weights).
#include <iostream>

#include "tests/common/executor/model/fixture.h"

namespace smartgen::executor {
namespace {

struct Measured {
  std::vector<float> logits;
  double nll = 0;
};

Measured Measure(Bench& b, kv::KvSequence& sequence, const std::vector<TokenId>& ids) {
  Measured m;
  m.logits.resize(b.vocab());
  EXPECT_TRUE(sequence.Reserve(static_cast<int64_t>(ids.size())).ok());
  const int64_t count = static_cast<int64_t>(ids.size());
  constexpr int64_t kChunk = 2048;
  for (int64_t at = 0; at < count; at += kChunk) {
    const int64_t end = std::min(count, at + kChunk);
    PrefillChunk chunk{.sequence = &sequence,
                       .start = at,
                       .tokens = std::span(ids).subspan(at, end - at),
                       .last_logits = m.logits};
    chunk.on_logits = [&](int64_t position, std::span<const float> logits) {
      if (position + 1 < count) m.nll += NegativeLogLikelihood(logits, ids[position + 1]);
    };
    const absl::Status status = b.executor->Prefill(chunk);
    EXPECT_TRUE(status.ok()) << status;
  }
  if (count > 1) m.nll /= static_cast<double>(count - 1);
  return m;
}

TEST(GoldenLogits, Float32EqualsTheReference) {
  ASSERT_NE(DefaultModel(), nullptr);
  Bench b = Bench::Make(*DefaultModel(), {.compute = ComputeType::kF32}, 3200);
  double worst = 0;
  const nlohmann::json golden = ReadGolden("logits_smol.json");
  for (const auto& c : golden["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    const auto ids = c["ids"].get<std::vector<TokenId>>();
    kv::KvSequence sequence(b.pool.get());
    const Measured m = Measure(b, sequence, ids);
    for (const auto& top : c["top10"]) {
      const double difference = std::abs(m.logits[top[0].get<int>()] - top[1].get<double>());
      EXPECT_LE(difference, 1e-3) << "token " << top[0];
      worst = std::max(worst, difference);
    }
    if (!c["nll"].is_null()) {
      EXPECT_NEAR(m.nll, c["nll"].get<double>(), 1e-4);
    }
    // The reference's own tokens are forced where it was nearly undecided.
    std::vector<float> logits = m.logits;
    const auto& greedy = c["greedy"];
    for (size_t step = 0; step < greedy.size(); ++step) {
      if (c["gap"][step].get<double>() > 0.01) {
        EXPECT_EQ(Argmax(logits), greedy[step].get<TokenId>()) << "step " << step;
      }
      const int64_t position = static_cast<int64_t>(ids.size() + step);
      logits = DecodeOne(b, sequence, position, greedy[step].get<TokenId>());
    }
  }
  std::cout << "largest difference of a top-10 logit: " << worst << "\n";
}

TEST(GoldenLogits, BFloat16KeepsTheLikelihoodWithinAPercent) {
  ASSERT_NE(DefaultModel(), nullptr);
  Bench b = Bench::Make(*DefaultModel(), {.compute = ComputeType::kBF16}, 3200);
  double mine = 0, reference = 0;
  const nlohmann::json golden = ReadGolden("logits_smol.json");
  for (const auto& c : golden["cases"]) {
    if (c["nll"].is_null()) continue;
    const auto ids = c["ids"].get<std::vector<TokenId>>();
    kv::KvSequence sequence(b.pool.get());
    mine += Measure(b, sequence, ids).nll;
    reference += c["nll"].get<double>();
  }
  EXPECT_NEAR(mine / reference, 1.0, 0.01);
  std::cout << "nll over all cases: " << mine << " against " << reference << "\n";
}

}  // namespace
}  // namespace smartgen::executor
