#include "common/base/clock.h"

#include <gtest/gtest.h>

namespace smartgen::base {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(SimulatedClock, MovesOnlyWhenTold) {
  SimulatedClock clock;
  const TimePoint start = clock.Now();
  EXPECT_EQ(clock.Now(), start);
  const int64_t unix_start = clock.UnixSeconds();
  clock.Advance(seconds(3));
  EXPECT_EQ(clock.Now() - start, seconds(3));
  EXPECT_EQ(clock.UnixSeconds(), unix_start + 3);
}

TEST(RealClock, NeverRunsBackwards) {
  TimePoint last = Clock::Real()->Now();
  for (int i = 0; i < 1000; ++i) {
    const TimePoint now = Clock::Real()->Now();
    ASSERT_LE(last, now);
    last = now;
  }
  EXPECT_GT(Clock::Real()->UnixSeconds(), 1'700'000'000);
}

TEST(Deadline, ExpiresAtItsMoment) {
  SimulatedClock clock;
  const Deadline deadline = Deadline::After(clock, seconds(2));
  EXPECT_FALSE(deadline.Expired(clock));
  clock.Advance(milliseconds(1500));
  EXPECT_EQ(deadline.Remaining(clock), milliseconds(500));
  clock.Advance(milliseconds(500));
  EXPECT_TRUE(deadline.Expired(clock));
  clock.Advance(seconds(9));
  EXPECT_EQ(deadline.Remaining(clock), Duration(0));
}

TEST(Deadline, AfterADurationWithoutEndIsInfinite) {
  SimulatedClock clock;
  clock.Advance(seconds(100));
  const Deadline deadline = Deadline::After(clock, Duration(INT64_MAX));
  EXPECT_FALSE(deadline.Expired(clock));
  EXPECT_TRUE(deadline.IsInfinite());
}

TEST(Deadline, InfiniteNeverExpiresAndLosesAgainstAnyOther) {
  SimulatedClock clock;
  clock.Advance(std::chrono::hours(24 * 365 * 100));
  EXPECT_TRUE(Deadline::Infinite().IsInfinite());
  EXPECT_FALSE(Deadline::Infinite().Expired(clock));
  EXPECT_GT(Deadline::Infinite().Remaining(clock), std::chrono::hours(24 * 365));
  const Deadline soon = Deadline::After(clock, seconds(1));
  EXPECT_EQ(Deadline::Earlier(soon, Deadline::Infinite()).at(), soon.at());
  EXPECT_EQ(Deadline::Earlier(Deadline::Infinite(), soon).at(), soon.at());
}

TEST(Duration, ConvertsToSecondsAndBack) {
  EXPECT_DOUBLE_EQ(ToSeconds(milliseconds(250)), 0.25);
  EXPECT_EQ(FromSeconds(0.25), milliseconds(250));
}

}  // namespace
}  // namespace smartgen::base
