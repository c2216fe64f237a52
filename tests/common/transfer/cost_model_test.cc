#include "common/transfer/cost_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <thread>

namespace smartgen::transfer {
namespace {

using testing::HasSubstr;

using PrefillFormula = std::function<double(double tokens, double prefix)>;

// A ladder as `smartgen calibrate` climbs it; held-out points lie between its rungs.
std::vector<PrefillPoint> Ladder(const PrefillFormula& seconds) {
  std::vector<PrefillPoint> points;
  const auto add = [&](int64_t tokens, int64_t prefix, bool held_out) {
    points.push_back({tokens, prefix,
                      seconds(static_cast<double>(tokens), static_cast<double>(prefix)), held_out});
  };
  for (const int64_t tokens : {16, 64, 256, 1024, 4096}) add(tokens, 0, false);
  for (const int64_t tokens : {16, 64, 256, 1024}) add(tokens, 3072, false);
  add(64, 1024, false);
  for (const int64_t tokens : {32, 128, 512, 2048}) add(tokens, 0, true);
  add(128, 2048, true);
  add(512, 3072, true);
  return points;
}

std::unique_ptr<CostModel> Make(const CostPoints& points) {
  auto model = CostModel::Create(points);
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

double WorstError(const CostPoints& points) {
  const auto results = PredictHeldOut(points);
  EXPECT_TRUE(results.ok()) << results.status();
  double worst = 0;
  for (const HeldOutResult& result : *results) worst = std::max(worst, std::abs(result.error()));
  return worst;
}

// Two cores and a small model: 2.4 ms a token, attention 0.1 us for each pair of tokens.
double OnCpu(double n, double p) { return 0.003 + 0.0022 * n + 1e-7 * n * (p + n / 2); }

TEST(CostModelTest, PredictsHeldOutPromptsOfASumOfConstantTokensAndPairs) {
  EXPECT_LT(WorstError({.prefill = Ladder(OnCpu)}), 1e-6);
}

TEST(CostModelTest, PredictsAMachineThatPaysForItsWeightsFirstAndForTokensLater) {
  // 5 ms to read the weights, in which 300 tokens are computed as well.
  const auto seconds = [](double n, double p) {
    return std::max(0.005, 0.005 + (n - 300) * 1.6e-5) + 2e-9 * n * (p + n / 2);
  };
  EXPECT_LT(WorstError({.prefill = Ladder(seconds)}), kMaxHeldOutError);
}

TEST(CostModelTest, PredictsAMachineThatIsEfficientFromSomeLengthOn) {
  const auto seconds = [](double n, double p) {
    return 0.002 + 0.004 * std::min(n, 64.0) + 0.002 * std::max(n - 64, 0.0) +
           1e-7 * n * (p + n / 2);
  };
  EXPECT_LT(WorstError({.prefill = Ladder(seconds)}), 0.02);
}

TEST(CostModelTest, PredictsThroughNoiseOfAFewPerCent) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> noise(0.95, 1.05);
  const auto points = Ladder([&](double n, double p) { return OnCpu(n, p) * noise(random); });
  EXPECT_LT(WorstError({.prefill = points}), kMaxHeldOutError);
}

TEST(CostModelTest, PredictsBeyondTheLongestPromptMeasured) {
  const auto model = Make({.prefill = Ladder(OnCpu)});
  EXPECT_NEAR(model->PrefillSeconds(16384, 0) / OnCpu(16384, 0), 1, 1e-6);
  EXPECT_NEAR(model->PrefillSeconds(100, 16384) / OnCpu(100, 16384), 1, 1e-6);
}

TEST(CostModelTest, PredictsStepsByBatchAndContext) {
  const auto seconds = [](int64_t batch, int64_t context) {
    return 0.02 + 0.003 * static_cast<double>(batch) + 1e-6 * static_cast<double>(batch * context);
  };
  CostPoints points;
  for (const int64_t batch : {1, 2, 8}) {
    for (const int64_t context : {16, 1024, 4096}) {
      points.steps.push_back({batch, context, seconds(batch, context), false});
    }
  }
  points.steps.push_back({4, 2048, seconds(4, 2048), true});
  EXPECT_LT(WorstError(points), 1e-6);
  EXPECT_NEAR(Make(points)->StepSeconds(3, 700), seconds(3, 700), 1e-9);
}

TEST(CostModelTest, HeldOutPointsDoNotShapeTheCurve) {
  CostPoints points{.prefill = Ladder(OnCpu)};
  const double before = Make(points)->PrefillSeconds(512, 0);
  for (PrefillPoint& point : points.prefill) point.seconds *= point.held_out ? 2 : 1;
  EXPECT_DOUBLE_EQ(Make(points)->PrefillSeconds(512, 0), before);
  EXPECT_NEAR(WorstError(points), 0.5, 1e-6);
}

TEST(CostModelTest, WhatWasNotMeasuredIsNotKnown) {
  const auto nothing = Make({});
  EXPECT_EQ(nothing->PrefillSeconds(100, 0), 0);
  EXPECT_EQ(nothing->RemotePrefillSeconds("a:1", 100, 0), 0);
  EXPECT_EQ(nothing->StepSeconds(1, 100), 0);
  EXPECT_EQ(nothing->Link("a:1").bytes_per_second, 0);
  EXPECT_EQ(nothing->Link("a:1").round_trip_seconds, 0);
  const auto model = Make({.prefill = Ladder(OnCpu), .links = {{"a:1", 1e9, 1e-4}}});
  EXPECT_EQ(model->PrefillSeconds(0, 0), 0);
  EXPECT_EQ(model->PrefillSeconds(10, -1), 0);
  EXPECT_EQ(model->StepSeconds(1, 100), 0);
  EXPECT_EQ(model->Link("a:1").bytes_per_second, 1e9);
  EXPECT_EQ(model->Link("b:1").bytes_per_second, 0);
}

TEST(CostModelTest, PointsThatAreNoTimesAreRefused) {
  EXPECT_THAT(
      std::string(base::MessageOf(CostModel::Create({.prefill = {{16, 0, 1, false}}}).status())),
      HasSubstr("prefill: curve: want at least 2 measurements, got 1"));
  EXPECT_THAT(
      std::string(base::MessageOf(
          CostModel::Create({.steps = {{1, 16, 0.1, false}, {2, 16, -0.1, false}}}).status())),
      HasSubstr("decode steps: fit: measurement 1: want a value > 0"));
}

TEST(CostModelTest, LearnsThatTheMachineIsSlowerThanItWas) {
  const auto model = Make({.prefill = Ladder(OnCpu)});
  for (int i = 0; i < 30; ++i) model->LearnPrefill(512, 0, 1.5 * OnCpu(512, 0));
  EXPECT_NEAR(model->prefill_ratio(), 1.5, 0.01);
  EXPECT_NEAR(model->PrefillSeconds(1000, 100), 1.5 * OnCpu(1000, 100), 0.02);
  EXPECT_EQ(model->step_ratio(), 1) << "each kind for itself";
}

TEST(CostModelTest, PeersAreAsFastAsWeUntilTheyShowOtherwise) {
  const auto model = Make({.prefill = Ladder(OnCpu)});
  model->LearnPrefill(512, 0, 3 * OnCpu(512, 0));
  EXPECT_NEAR(model->RemotePrefillSeconds("a:1", 512, 0), OnCpu(512, 0), 1e-6);
  for (int i = 0; i < 30; ++i) model->LearnRemotePrefill("a:1", 512, 0, 0.5 * OnCpu(512, 0));
  EXPECT_NEAR(model->RemotePrefillSeconds("a:1", 512, 0), 0.5 * OnCpu(512, 0), 0.01);
  EXPECT_NEAR(model->RemotePrefillSeconds("b:1", 512, 0), OnCpu(512, 0), 1e-6);
}

TEST(CostModelTest, NoMorePeersAreRememberedThanThereMayBe) {
  const auto model = Make({.prefill = Ladder(OnCpu)});
  for (size_t i = 0; i <= CostModel::kMaxPeers; ++i) {
    model->LearnRemotePrefill(fmt::format("{}:1", i), 512, 0, 2 * OnCpu(512, 0));
  }
  EXPECT_GT(model->RemotePrefillSeconds("0:1", 512, 0), 1.1 * OnCpu(512, 0));
  EXPECT_NEAR(model->RemotePrefillSeconds(fmt::format("{}:1", CostModel::kMaxPeers), 512, 0),
              OnCpu(512, 0), 1e-6);
}

// After k measurements of ratio r: r^(1 - (1 - kNew)^k).
TEST(CorrectionTest, ConvergesAsAnExponentiallyWeightedMean) {
  Correction correction;
  EXPECT_EQ(correction.ratio(), 1);
  for (int k = 1; k <= 20; ++k) {
    correction.Observe(0.2, 0.4);
    EXPECT_NEAR(correction.ratio(), std::pow(2, 1 - std::pow(1 - Correction::kNew, k)), 1e-9);
  }
}

TEST(CorrectionTest, GarbageChangesNothing) {
  Correction correction;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  for (const double bad : {0.0, -1.0, nan, inf, -inf}) {
    correction.Observe(bad, 1);
    correction.Observe(1, bad);
  }
  EXPECT_EQ(correction.ratio(), 1);
}

TEST(CorrectionTest, OneMeasurementFarOffCountsOnlyAsTheMostThatIsBelieved) {
  Correction correction;
  correction.Observe(1e-300, 1e300);
  EXPECT_NEAR(correction.ratio(), std::pow(Correction::kMaxRatio, Correction::kNew), 1e-9);
  for (int i = 0; i < 200; ++i) correction.Observe(1, 1e9);
  EXPECT_LE(correction.ratio(), Correction::kMaxRatio * (1 + 1e-9));
  for (int i = 0; i < 200; ++i) correction.Observe(1, 1e-9);
  EXPECT_GE(correction.ratio(), 1 / Correction::kMaxRatio * (1 - 1e-9));
}

TEST(CostModelTest, ThreadsMayLearnAndPredictAtOnce) {
  const auto model =
      Make({.prefill = Ladder(OnCpu), .steps = {{1, 1, 1, false}, {2, 1, 2, false}}});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::string peer = fmt::format("{}:1", t % 2);
      for (int i = 0; i < 2000; ++i) {
        model->LearnPrefill(64, 0, 2 * OnCpu(64, 0));
        model->LearnRemotePrefill(peer, 64, 0, 2 * OnCpu(64, 0));
        model->LearnStep(1, 1, 2);
        EXPECT_GT(model->PrefillSeconds(64, 0), 0);
        EXPECT_GT(model->RemotePrefillSeconds(peer, 64, 0), 0);
        EXPECT_GT(model->StepSeconds(1, 1), 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_NEAR(model->prefill_ratio(), 2, 1e-3);
}

}  // namespace
}  // namespace smartgen::transfer
