#include "common/transfer/step_choice.h"

#include <gtest/gtest.h>

namespace smartgen::transfer {
namespace {

// 30 layers, 25 ms a step, 1 MB/s, 1 ms there and back; handed over: 32 ms.
StepOutlook Outlook() {
  StepOutlook outlook;
  outlook.layers = 30;
  outlook.step_seconds = 0.025;
  outlook.bytes_per_second = 1e6;
  outlook.round_trip_seconds = 0.001;
  outlook.split_seconds = 0.032;
  outlook.attend_bytes = 2340;
  outlook.missed_bytes = 500'000;
  outlook.remaining_bytes = 10'000'000;
  return outlook;
}

TEST(StepChoiceTest, EachWayTakesWhatItsFormulaSays) {
  StepOutlook outlook = Outlook();
  outlook.owed_bytes = 100'000;
  outlook.replayed = 2;
  outlook.attend_queue_seconds = 0.002;
  const StepCosts costs = PredictStep(outlook);
  EXPECT_NEAR(costs.fetch, 0.025 + 0.6 + 31 * 0.001, 1e-12);
  EXPECT_NEAR(costs.split, 0.032 + 2 * 0.031, 1e-12);
  EXPECT_NEAR(costs.attend, 0.025 + 30 * (0.001 + 0.00234 + 0.002), 1e-12);
  EXPECT_NEAR(costs.wait, 0.025 + 10, 1e-12);
}

TEST(StepChoiceTest, AThinLinkHandsOver) {
  EXPECT_EQ(Soonest(PredictStep(Outlook())), StepKind::kSplit);
}

TEST(StepChoiceTest, NothingMissedIsMadeHere) {
  StepOutlook outlook = Outlook();
  outlook.missed_bytes = 0;
  EXPECT_EQ(Soonest(PredictStep(outlook)), StepKind::kFetch);
}

TEST(StepChoiceTest, ALongWayThereMakesTheLittleThatIsMissingWorthWaitingFor) {
  StepOutlook outlook = Outlook();
  outlook.round_trip_seconds = 0.05;
  outlook.split_seconds = 0.08;
  outlook.missed_bytes = 2000;
  outlook.remaining_bytes = 20'000;
  EXPECT_EQ(Soonest(PredictStep(outlook)), StepKind::kWait);
}

TEST(StepChoiceTest, ASlowPrefillSideAttends) {
  StepOutlook outlook = Outlook();
  outlook.split_seconds = 0.5;
  EXPECT_EQ(Soonest(PredictStep(outlook)), StepKind::kAttend);
}

TEST(StepChoiceTest, WithoutABandwidthNothingIsSaidOfIt) {
  StepOutlook outlook = Outlook();
  outlook.bytes_per_second = 0;
  EXPECT_NEAR(PredictStep(outlook).wait, 0.025, 1e-12);
}

}  // namespace
}  // namespace smartgen::transfer
