#include "decode_server/step_times.h"

#include <gtest/gtest.h>

namespace smartgen::decode_server {
namespace {

class StepTimesTest : public ::testing::Test {
 protected:
  base::TimePoint At(double seconds) { return base::TimePoint{} + base::FromSeconds(seconds); }
  StepTimes times_;
};

TEST_F(StepTimesTest, BeforeAnyStepWasMadeHereStepsAreAsFastAsThere) {
  EXPECT_EQ(times_.step_seconds(), 0);
  times_.HandedOver("a", 0.030, 1, 0.005, At(0));
  EXPECT_NEAR(times_.step_seconds(), 0.025, 1e-9);
  EXPECT_NEAR(times_.SplitSeconds("a", 1, 0.005, At(0)), 0.030, 1e-9);
  times_.Stepped(0.010);  // what was measured here replaces it
  EXPECT_NEAR(times_.step_seconds(), 0.010, 1e-9);
}

TEST_F(StepTimesTest, AStepOfHalfTheLayersTakesHalfAStepBesideTheWay) {
  times_.Stepped(0.020);
  EXPECT_NEAR(times_.SplitSeconds("a", 0.5, 0.004, At(0)), 0.014, 1e-9);
}

TEST_F(StepTimesTest, WhatAPeerTakesMoreIsExpectedAgainAndForgottenWithTime) {
  times_.Stepped(0.020);
  times_.HandedOver("a", 0.120, 1, 0, At(0));  // 100 ms more
  EXPECT_NEAR(times_.SplitSeconds("a", 1, 0, At(0)), 0.120, 1e-9);
  EXPECT_NEAR(times_.SplitSeconds("a", 1, 0, At(1)), 0.070, 1e-9);  // half of it
  EXPECT_NEAR(times_.SplitSeconds("a", 1, 0, At(60)), 0.020, 1e-6);
  EXPECT_NEAR(times_.SplitSeconds("b", 1, 0, At(0)), 0.020, 1e-9);  // another peer
}

TEST_F(StepTimesTest, MissesAreLearntBySelector) {
  EXPECT_EQ(times_.MissShare("quest"), 1);
  times_.Missed("quest", 1000, 200);
  EXPECT_NEAR(times_.MissShare("quest"), 0.2, 1e-9);
  times_.Missed("quest", 1000, 5000);  // more than all: all
  EXPECT_NEAR(times_.MissShare("quest"), 0.2 + 0.3 * 0.8, 1e-9);
  EXPECT_EQ(times_.MissShare("hata"), 1);
}

}  // namespace
}  // namespace smartgen::decode_server
