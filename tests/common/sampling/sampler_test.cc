#include "common/sampling/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

namespace smartgen::sampling {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> Logs(std::vector<double> probabilities) {
  std::vector<float> logits;
  // An offset: softmax must not care.
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p) + 3));
  return logits;
}

SampledToken Sample(Sampler& sampler, std::vector<float> logits, int64_t position = 0) {
  const auto token = sampler.Sample(logits, position);
  EXPECT_TRUE(token.ok()) << token.status().ToString();
  return token.ok() ? *token : SampledToken{.id = -1};
}

// The exact distribution after truncation, by the definitions and with a full sort.
std::vector<double> Exact(const std::vector<float>& logits, const SamplingParams& p) {
  std::vector<size_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < order.size()) order.resize(p.top_k);
  std::vector<double> weight(logits.size());
  double sum = 0;
  for (const size_t i : order) {
    weight[i] = std::exp((static_cast<double>(logits[i]) - logits[order[0]]) / p.temperature);
    sum += weight[i];
  }
  double mass = 0;
  double kept = 0;
  std::vector<double> exact(logits.size());
  for (const size_t i : order) {
    if (mass >= p.top_p * sum * (1 - 1e-6) && p.top_p < 1) break;
    mass += weight[i];
    if (weight[i] < p.min_p) continue;
    exact[i] = weight[i];
    kept += weight[i];
  }
  for (double& e : exact) e /= kept;
  return exact;
}

// Draws with fixed seed and compares by chi-square; bins with fewer than 5 expected are pooled.
void ExpectDistribution(const std::vector<float>& logits, const SamplingParams& params) {
  constexpr int kDraws = 10000;
  Sampler sampler(params, {});
  std::map<TokenId, int> counts;
  for (int i = 0; i < kDraws; ++i) ++counts[Sample(sampler, logits, i).id];
  const std::vector<double> exact = Exact(logits, params);
  double chi_square = 0, pooled_want = 0, pooled_got = 0;
  int bins = 0;
  const auto add = [&](double got, double want) {
    chi_square += (got - want) * (got - want) / want;
    ++bins;
  };
  for (size_t i = 0; i < exact.size(); ++i) {
    const double want = exact[i] * kDraws;
    const auto found = counts.find(static_cast<TokenId>(i));
    const double got = found == counts.end() ? 0 : found->second;
    if (want == 0) {
      EXPECT_EQ(got, 0) << "token " << i << " was cut off";
    } else if (want < 5) {
      pooled_want += want;
      pooled_got += got;
    } else {
      add(got, want);
    }
  }
  if (pooled_want > 0) add(pooled_got, pooled_want);
  // Wilson and Hilferty's approximation of the 0.9995 quantile.
  const double k = std::max(1, bins - 1);
  const double limit = k * std::pow(1 - 2 / (9 * k) + 3.2905 * std::sqrt(2 / (9 * k)), 3);
  EXPECT_LT(chi_square, limit) << bins << " bins";
}

std::vector<float> Spread(size_t size, uint32_t seed, float deviation) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> logits(size);
  for (float& x : logits) x = normal(random);
  return logits;
}

TEST(Greedy, TakesTheBestAndOnTiesTheLowerId) {
  Sampler sampler({.temperature = 0}, {});
  EXPECT_EQ(Sample(sampler, {1, 5, 2}).id, 1);
  EXPECT_EQ(Sample(sampler, {1, 5, 5, 2}).id, 1);
  EXPECT_EQ(Sample(sampler, {-kInf, -2, -kInf}).id, 1);
  std::vector<float> large(200000, 0.5f);
  large[150001] = large[170000] = 2;
  EXPECT_EQ(Sample(sampler, large).id, 150001);
}

TEST(Greedy, ATinyTemperatureIsGreedy) {
  Sampler sampler({.temperature = 1e-30f}, {});
  EXPECT_EQ(Sample(sampler, {1, 1.0001f, 1}).id, 1);
}

TEST(Sampler, BadLogitsAreInternalErrorsNeverTokens) {
  for (const float temperature : {0.0f, 1.0f}) {
    Sampler sampler({.temperature = temperature}, {});
    for (std::vector<float> logits :
         {std::vector<float>{1, kNan, 2}, {1, kInf}, {-kInf, -kInf}, {}}) {
      const auto token = sampler.Sample(logits, 7);
      EXPECT_EQ(token.status().code(), absl::StatusCode::kInternal);
      EXPECT_NE(base::MessageOf(token.status()).find("position 7"), std::string_view::npos);
    }
  }
}

TEST(Sampler, FollowsTheExactDistribution) {
  const auto small = Logs({0.4, 0.3, 0.15, 0.1, 0.05});
  ExpectDistribution(small, {.seed = 1});
  ExpectDistribution(small, {.temperature = 0.5f, .seed = 2});
  ExpectDistribution(small, {.temperature = 2.0f, .seed = 3});
  ExpectDistribution(Spread(1000, 1, 2), {.seed = 4});
}

TEST(Sampler, FollowsTheExactDistributionWhenTruncated) {
  const auto small = Logs({0.1, 0.05, 0.4, 0.3, 0.15});
  ExpectDistribution(small, {.top_p = 0.8f, .seed = 5});
  ExpectDistribution(small, {.top_k = 2, .seed = 6});
  ExpectDistribution(small, {.min_p = 0.3f, .seed = 7});
  ExpectDistribution(small,
                     {.temperature = 1.5f, .top_p = 0.7f, .top_k = 4, .min_p = 0.2f, .seed = 8});
  for (const float deviation : {0.1f, 2.0f, 6.0f}) {  // from flat to peaked
    const auto wide = Spread(1000, 2, deviation);
    ExpectDistribution(wide, {.top_p = 0.9f, .seed = 9});
    ExpectDistribution(wide, {.top_p = 0.05f, .seed = 10});
    ExpectDistribution(wide, {.top_k = 20, .seed = 11});
    ExpectDistribution(wide, {.top_p = 0.95f, .top_k = 700, .seed = 12});
    ExpectDistribution(wide, {.top_p = 0.9f, .min_p = 0.05f, .seed = 13});
  }
}

// The set that truncation leaves, against the definition, for many shapes of logits.
TEST(Sampler, TruncationNeverLeavesTheExactSet) {
  std::mt19937 random(17);
  for (int round = 0; round < 300; ++round) {
    const size_t size = 1 + random() % 700;
    auto logits = Spread(size, random(), 0.1f + static_cast<float>(random() % 50) / 10);
    if (round % 3 == 0) {
      for (float& x : logits) x = std::round(x);  // many ties
    }
    SamplingParams params{.top_p = 0.05f + static_cast<float>(random() % 95) / 100,
                          .top_k = static_cast<int>(random() % 60),
                          .min_p = static_cast<float>(random() % 4) / 10,
                          .seed = random()};
    const std::vector<double> exact = Exact(logits, params);
    Sampler sampler(params, {});
    std::set<TokenId> seen;
    for (int i = 0; i < 50; ++i) seen.insert(Sample(sampler, logits, i).id);
    for (const TokenId id : seen) {
      ASSERT_GT(exact[id], 0) << "round " << round << ": top_p " << params.top_p << ", top_k "
                              << params.top_k << ", min_p " << params.min_p;
    }
  }
}

TEST(TopP, KeepsTheSmallestSetThatReachesTheMass) {
  const auto logits = Logs({0.05, 0.5, 0.3, 0.15});
  const auto support = [&](float top_p) {
    Sampler sampler({.top_p = top_p, .seed = 1}, {});
    std::set<TokenId> seen;
    for (int i = 0; i < 2000; ++i) seen.insert(Sample(sampler, logits, i).id);
    return seen;
  };
  EXPECT_EQ(support(1e-6f), (std::set<TokenId>{1}));
  EXPECT_EQ(support(0.5f), (std::set<TokenId>{1}));
  EXPECT_EQ(support(0.51f), (std::set<TokenId>{1, 2}));
  EXPECT_EQ(support(0.8f), (std::set<TokenId>{1, 2}));
  EXPECT_EQ(support(0.81f), (std::set<TokenId>{1, 2, 3}));
  EXPECT_EQ(support(0.96f), (std::set<TokenId>{0, 1, 2, 3}));
}

TEST(TopK, OneIsGreedyTiesGoToTheLowerIdAndTooLargeIsClamped) {
  Sampler one({.top_k = 1, .seed = 3}, {});
  for (int i = 0; i < 100; ++i) EXPECT_EQ(Sample(one, {0, 2, 2, 1}, i).id, 1);
  Sampler huge({.top_k = 9999999, .seed = 3}, {});
  Sampler off({.seed = 3}, {});
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(Sample(huge, {0, 2, 2, 1}, i).id, Sample(off, {0, 2, 2, 1}, i).id);
  }
}

TEST(MinP, OneKeepsOnlyTheBest) {
  Sampler sampler({.min_p = 1.0f, .seed = 3}, {});
  for (int i = 0; i < 100; ++i) EXPECT_EQ(Sample(sampler, {0, 2, 1.99f, 1}, i).id, 1);
}

TEST(Penalties, FrequencyAndPresenceCountGeneratedTokensOnly) {
  const std::vector<TokenId> prompt{0, 0, 0};
  Sampler sampler({.temperature = 0, .presence_penalty = 0.5f, .frequency_penalty = 1.0f}, prompt);
  const std::vector<float> logits{3, 2, 1};
  EXPECT_EQ(Sample(sampler, logits).id, 0);
  sampler.Accept(0);  // 3 - 0.5 - 1 = 1.5
  EXPECT_EQ(Sample(sampler, logits).id, 1);
  sampler.Accept(1);  // 2 - 1.5 = 0.5
  EXPECT_EQ(Sample(sampler, logits).id, 0);
  sampler.Accept(0);  // 3 - 0.5 - 2 = 0.5
  EXPECT_EQ(Sample(sampler, logits).id, 2);
}

TEST(Penalties, RepetitionScalesPromptAndGeneratedTokensOnce) {
  const std::vector<TokenId> prompt{0, 1, 0};
  Sampler sampler({.temperature = 0, .repetition_penalty = 2.0f}, prompt);
  EXPECT_EQ(Sample(sampler, {3, -1, 1.6f}).id, 2);    // 1.5, -2, 1.6
  EXPECT_EQ(Sample(sampler, {3, -1, 1.4f}).id, 0);    // 1.5, -2, 1.4
  EXPECT_EQ(Sample(sampler, {-3, -1, -2.1f}).id, 1);  // -6, -2, -2.1
  sampler.Accept(0);                                  // in the prompt as well: still once
  EXPECT_EQ(Sample(sampler, {3, -1, 1.4f}).id, 0);
  sampler.Accept(2);
  EXPECT_EQ(Sample(sampler, {3, -1, 2.9f}).id, 0);  // 1.5, -2, 1.45
}

TEST(LogitBias, MovesTokens) {
  Sampler ban({.temperature = 0, .logit_bias = {{1, -100.0f}}}, {});
  EXPECT_EQ(Sample(ban, {1, 50, 2}).id, 2);
  Sampler force({.seed = 4, .logit_bias = {{0, 100.0f}}}, {});
  for (int i = 0; i < 100; ++i) EXPECT_EQ(Sample(force, {1, 50, 2}, i).id, 0);
}

TEST(MinTokens, HoldsEndTokensBack) {
  SamplingParams params{
      .temperature = 0, .logit_bias = {{1, 100.0f}}, .eos_ids = {1}, .min_tokens = 2};
  Sampler sampler(params, {});
  EXPECT_EQ(Sample(sampler, {1, 50, 2}).id, 2);
  sampler.Accept(2);
  EXPECT_EQ(Sample(sampler, {1, 50, 2}).id, 2);
  sampler.Accept(2);
  EXPECT_EQ(Sample(sampler, {1, 50, 2}).id, 1);
  // With nothing else left it is an error, not the token that must not come.
  Sampler stuck(params, {});
  std::vector<float> only_eos{-kInf, 1, -kInf};
  EXPECT_EQ(stuck.Sample(only_eos, 0).status().code(), absl::StatusCode::kInternal);
}

TEST(IgnoreEos, MakesEndTokensOrdinary) {
  Sampler ends({.eos_ids = {1, 7}}, {});
  EXPECT_TRUE(ends.IsEos(1));
  EXPECT_TRUE(ends.IsEos(7));
  EXPECT_FALSE(ends.IsEos(2));
  Sampler goes_on({.temperature = 0, .eos_ids = {1}, .min_tokens = 5, .ignore_eos = true}, {});
  EXPECT_FALSE(goes_on.IsEos(1));
  EXPECT_EQ(Sample(goes_on, {1, 50, 2}).id, 1);
}

TEST(Logprobs, AreOfTheModelsOwnDistribution) {
  const auto logits = Logs({0.1, 0.4, 0.2, 0.3});
  for (const float temperature : {0.0f, 0.7f}) {
    Sampler sampler(
        {.temperature = temperature, .top_k = 2, .logit_bias = {{0, 50.0f}}, .logprobs = 3}, {});
    const SampledToken token = Sample(sampler, logits);
    EXPECT_EQ(token.id, 0);
    EXPECT_NEAR(token.logprob, std::log(0.1), 1e-5);
    ASSERT_EQ(token.top.size(), 3u);
    EXPECT_EQ(token.top[0].id, 1);
    EXPECT_NEAR(token.top[0].logprob, std::log(0.4), 1e-5);
    EXPECT_EQ(token.top[1].id, 3);
    EXPECT_EQ(token.top[2].id, 2);
    EXPECT_NEAR(token.top[2].logprob, std::log(0.2), 1e-5);
  }
}

TEST(Logprobs, ZeroGivesTheChosenOneAloneAndTiesGoToTheLowerId) {
  Sampler zero({.temperature = 0, .logprobs = 0}, {});
  const SampledToken token = Sample(zero, Logs({0.25, 0.75}));
  EXPECT_NEAR(token.logprob, std::log(0.75), 1e-5);
  EXPECT_TRUE(token.top.empty());
  Sampler two({.temperature = 0, .logprobs = 2}, {});
  const SampledToken tie = Sample(two, std::vector<float>(1000, 1.0f));
  ASSERT_EQ(tie.top.size(), 2u);
  EXPECT_EQ(tie.top[0].id, 0);
  EXPECT_EQ(tie.top[1].id, 1);
  EXPECT_NEAR(tie.top[0].logprob, -std::log(1000), 1e-5);
  Sampler more_than_there_are({.temperature = 0, .logprobs = 20}, {});
  EXPECT_EQ(Sample(more_than_there_are, {1, 2, -kInf}).top.size(), 2u);
}

TEST(Sampler, H19_TheTokenIsTheSameWithAndWithoutLogprobs) {
  const auto logits = Spread(5000, 8, 3);
  for (const float top_p : {1.0f, 0.9f}) {
    Sampler with({.top_p = top_p, .seed = 5, .logprobs = 5}, {});
    Sampler without({.top_p = top_p, .seed = 5}, {});
    for (int i = 0; i < 100; ++i) {
      ASSERT_EQ(Sample(with, logits, i).id, Sample(without, logits, i).id);
    }
  }
}

TEST(ForcedIds, ComeFirstWithTheLogprobsThatTheModelGivesThem) {
  const auto logits = Logs({0.1, 0.4, 0.2, 0.3});
  Sampler sampler({.temperature = 0, .logprobs = 1, .forced_ids = {2, 0}}, {});
  for (const auto& [id, probability] : {std::pair{2, 0.2}, std::pair{0, 0.1}}) {
    const SampledToken token = Sample(sampler, logits);
    EXPECT_EQ(token.id, id);
    EXPECT_NEAR(token.logprob, std::log(probability), 1e-5);
    ASSERT_EQ(token.top.size(), 1u);
    EXPECT_EQ(token.top[0].id, 1);  // what would have been taken
    sampler.Accept(token.id);
  }
  EXPECT_EQ(Sample(sampler, logits).id, 1) << "sampling begins behind them";
}

TEST(ForcedIds, AResumedSequenceIsForcedFromWhereItWas) {
  Sampler sampler({.temperature = 0, .forced_ids = {2, 0, 3}}, {}, std::vector<TokenId>{2});
  EXPECT_EQ(Sample(sampler, Logs({0.1, 0.4, 0.2, 0.3})).id, 0);
}

TEST(ForcedIds, BeyondTheLogitsAreAnErrorNeverAToken) {
  Sampler sampler({.temperature = 0, .forced_ids = {4}}, {});
  std::vector<float> logits(4, 0.0f);
  EXPECT_EQ(sampler.Sample(logits, 0).status().code(), absl::StatusCode::kInternal);
}

// A stream that another instance takes over mid-way, told the tokens sent so far.
TEST(Sampler, AResumedSequenceGoesOnIdentically) {
  const SamplingParams params{.temperature = 0.9f,
                              .top_p = 0.95f,
                              .presence_penalty = 0.3f,
                              .frequency_penalty = 0.2f,
                              .repetition_penalty = 1.2f,
                              .seed = 99,
                              .logit_bias = {{3, 1.5f}},
                              .eos_ids = {0},
                              .min_tokens = 30};
  const std::vector<TokenId> prompt{4, 8, 15, 16, 23, 42};
  const auto logits_at = [](int64_t position) {
    return Spread(300, static_cast<uint32_t>(position), 2);
  };
  const auto generate = [&](std::vector<TokenId> tokens, size_t until) {
    Sampler sampler(params, prompt, tokens);
    while (tokens.size() < until) {
      const auto position = static_cast<int64_t>(prompt.size() + tokens.size());
      tokens.push_back(Sample(sampler, logits_at(position), position).id);
      sampler.Accept(tokens.back());
    }
    return tokens;
  };
  const std::vector<TokenId> whole = generate({}, 60);
  for (const size_t cut : {1U, 29U, 30U, 59U}) {
    EXPECT_EQ(generate({whole.begin(), whole.begin() + cut}, 60), whole) << cut;
  }
}

TEST(SamplingParams, CheckNamesFieldRangeAndValue) {
  const auto message = [](SamplingParams params) {
    const absl::Status status = params.Check(100);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(base::MessageOf(status));
  };
  EXPECT_TRUE(SamplingParams{}.Check(100).ok());
  EXPECT_EQ(message({.temperature = 2.5f}), "temperature: want 0 to 2, got 2.5");
  EXPECT_EQ(message({.temperature = kNan}), "temperature: want 0 to 2, got nan");
  EXPECT_EQ(message({.top_p = 0}), "top_p: want above 0 and at most 1, got 0");
  EXPECT_EQ(message({.top_p = 1.5f}), "top_p: want above 0 and at most 1, got 1.5");
  EXPECT_EQ(message({.top_k = -1}), "top_k: want 0 (off) or more, got -1");
  EXPECT_EQ(message({.min_p = -0.5f}), "min_p: want 0 to 1, got -0.5");
  EXPECT_EQ(message({.presence_penalty = 3}), "presence_penalty: want -2 to 2, got 3");
  EXPECT_EQ(message({.frequency_penalty = -3}), "frequency_penalty: want -2 to 2, got -3");
  EXPECT_EQ(message({.repetition_penalty = 0}), "repetition_penalty: want a number above 0, got 0");
  EXPECT_EQ(message({.repetition_penalty = kInf}),
            "repetition_penalty: want a number above 0, got inf");
  EXPECT_EQ(message({.logit_bias = {{5, 101.0f}}}), "logit_bias: want -100 to 100, got 101");
  EXPECT_EQ(message({.logprobs = 21}), "logprobs: want -1 to 20, got 21");
  EXPECT_EQ(message({.eos_ids = {100}}), "eos_ids: want token ids from 0 to 99, got 100");
  EXPECT_EQ(message({.forced_ids = {7, 100}}), "forced_ids: want token ids from 0 to 99, got 100");
  EXPECT_EQ(message({.eos_ids = {2}, .forced_ids = {7, 2}}),
            "forced_ids: want no end-of-text token without ignore_eos, got 2");
  EXPECT_TRUE(
      (SamplingParams{.eos_ids = {2}, .ignore_eos = true, .forced_ids = {2}}.Check(9).ok()));
  EXPECT_EQ(message({.min_tokens = -1}).substr(0, 10), "min_tokens");
}

TEST(SamplingParams, C3_BiasOnTokensThatDoNotExistIsRefused) {
  const SamplingParams params{.logit_bias = {{999999, 1.0f}}};
  EXPECT_EQ(base::MessageOf(params.Check(100)),
            "logit_bias: want token ids from 0 to 99, got 999999");
}

}  // namespace
}  // namespace smartgen::sampling
