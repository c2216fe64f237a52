#include "prefill_server/scheduler.h"

#include <gtest/gtest.h>

#include <vector>

namespace smartgen::prefill_server {
namespace {

TEST(SchedulerTest, NothingToChooseFrom) { EXPECT_EQ(ChooseNext({}), std::nullopt); }

TEST(SchedulerTest, TheOneWithTheLeastLeftGoesFirst) {
  const std::vector<Candidate> candidates = {{5000, 0}, {100, 0}, {200, 0}};
  EXPECT_EQ(ChooseNext(candidates), 1u);
}

TEST(SchedulerTest, TiesGoToTheOneThatCameFirst) {
  const std::vector<Candidate> candidates = {{300, 0}, {300, 0}};
  EXPECT_EQ(ChooseNext(candidates), 0u);
}

TEST(SchedulerTest, ALongPromptGetsATurnAmongAnEndlessStreamOfShortOnes) {
  std::vector<Candidate> candidates = {{8000, 0}, {10, 0}};
  int turns = 0;
  for (int step = 0; step < 50; ++step) {
    const size_t next = *ChooseNext(candidates);
    for (auto& candidate : candidates) ++candidate.passed_over;
    candidates[next].passed_over = 0;
    if (next == 0) ++turns;
  }
  EXPECT_EQ(turns, 10);  // every fifth: passed over four times, then first
}

}  // namespace
}  // namespace smartgen::prefill_server
