#include "tools/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace smartgen::tools {
namespace {

TEST(ProgressTest, ALineShowsShareTimeLeftAndWhatIsDone) {
  EXPECT_EQ(ProgressLine(0.5, 64.2, "prompt of 16 tokens"),
            "[############............]  50 %  1:05 left  prompt of 16 tokens");
  EXPECT_EQ(ProgressLine(1, 0, ""), "[########################] 100 %  0:00 left");
}

TEST(ProgressTest, SharesBeyondTheWholeAndUnknownTimesDoNoHarm) {
  EXPECT_EQ(ProgressLine(7, -1, ""), "[########################] 100 %");
  EXPECT_EQ(ProgressLine(-7, -1, ""), "[........................]   0 %");
  EXPECT_EQ(ProgressLine(std::numeric_limits<double>::quiet_NaN(), -1, ""),
            "[........................]   0 %");
}

// Standard error of a test is no terminal once it is captured.
TEST(ProgressTest, WithoutATerminalThereIsALineForEachTenth) {
  base::SimulatedClock clock;
  testing::internal::CaptureStderr();
  {
    Progress progress(100, &clock);
    for (int i = 0; i < 100; ++i) {
      progress.Begin("work");
      clock.Advance(std::chrono::seconds(1));
      progress.Advance(1);
    }
  }
  const std::string lines = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 10);
  EXPECT_THAT(lines, testing::HasSubstr(" 40 %  1:00 left  work\n"));
}

TEST(ProgressTest, UpdatesSayTheWholeOfWhatIsDone) {
  base::SimulatedClock clock;
  testing::internal::CaptureStderr();
  {
    Progress progress(1, &clock);
    for (int i = 1; i <= 50; ++i) {
      clock.Advance(std::chrono::seconds(1));
      progress.Update(i * 0.01, "hash weights");
    }
  }
  const std::string lines = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 5);
  EXPECT_THAT(lines, testing::HasSubstr(" 50 %  0:50 left  hash weights\n"));
}

}  // namespace
}  // namespace smartgen::tools
