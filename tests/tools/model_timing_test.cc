#include "tools/model_timing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>

#include "tests/fakes/fake_executor.h"

namespace smartgen::tools {
namespace {

struct Timer {
  std::unique_ptr<fakes::FakeExecutor> executor;
  std::unique_ptr<kv::KvPool> pool;
  std::unique_ptr<ModelTimer> timer;
};

// `before` as FakeExecutor's.
Timer MakeTimer(int64_t max_tokens, const TimingPlan& plan, int chunk = 2048,
                std::function<void(int)> before = nullptr) {
  Timer t;
  fakes::FakeExecutor::Options options;
  options.before = std::move(before);
  t.executor = std::make_unique<fakes::FakeExecutor>(options);
  const kv::KvLayout layout = t.executor->Layout(max_tokens + kv::kPageTokens);
  auto pool = kv::KvPool::Create(
      layout, {.bytes = kv::KvPool::PagesFor(TokensHeld(plan)) * layout.PageBytesTotal()});
  EXPECT_TRUE(pool.ok()) << pool.status();
  t.pool = *std::move(pool);
  auto timer = ModelTimer::Create(t.executor.get(), t.pool.get(), chunk);
  EXPECT_TRUE(timer.ok()) << timer.status();
  t.timer = *std::move(timer);
  return t;
}

TEST(TimingPlanTest, PointsLieWithinTheLimitsAndNoneComesTwice) {
  for (const int64_t max_tokens : {64, 100, 4096, 131072}) {
    for (const int64_t max_batch : {1, 3, 8}) {
      const TimingPlan plan = PlanTiming(max_tokens, max_batch);
      std::set<std::pair<int64_t, int64_t>> prompts, steps;
      for (const auto& p : plan.prefill) {
        EXPECT_LE(p.tokens + p.prefix, max_tokens);
        EXPECT_EQ(p.prefix % kv::kPageTokens, 0);
        EXPECT_TRUE(prompts.insert({p.tokens, p.prefix}).second);
      }
      for (const auto& p : plan.steps) {
        EXPECT_LT(p.context, max_tokens);
        EXPECT_LE(p.batch, max_batch);
        EXPECT_TRUE(steps.insert({p.batch, p.context}).second);
      }
    }
  }
}

TEST(TimingPlanTest, BothKindsHavePointsForTheCurveAndPointsHeldOut) {
  for (const int64_t max_tokens : {64, 4096}) {
    const TimingPlan plan = PlanTiming(max_tokens, 8);
    const auto held_out = [](const auto& p) { return p.held_out; };
    const auto prompts = std::count_if(plan.prefill.begin(), plan.prefill.end(), held_out);
    const auto steps = std::count_if(plan.steps.begin(), plan.steps.end(), held_out);
    EXPECT_GE(prompts, 1) << max_tokens;
    EXPECT_GE(steps, 1) << max_tokens;
    EXPECT_GE(static_cast<int64_t>(plan.prefill.size()) - prompts, 2) << max_tokens;
    EXPECT_GE(static_cast<int64_t>(plan.steps.size()) - steps, 4) << max_tokens;
  }
}

TEST(TimingPlanTest, TheLongestPromptAndTheLongestContextAreMeasured) {
  const TimingPlan plan = PlanTiming(3000, 4);
  EXPECT_TRUE(std::any_of(plan.prefill.begin(), plan.prefill.end(), [](const auto& p) {
    return p.tokens == 3000 && p.prefix == 0 && !p.held_out;
  }));
  EXPECT_TRUE(std::any_of(plan.steps.begin(), plan.steps.end(), [](const auto& p) {
    return p.batch == 4 && p.context == 2999 && !p.held_out;
  }));
}

TEST(TimingPlanTest, StepsThatNeedMoreMemoryThanThereIsAreLeftOut) {
  TimingPlan plan = PlanTiming(4096, 8);
  const size_t all = plan.steps.size();
  const int64_t dropped = Shrink(plan, 4 * 4096 + 512);
  EXPECT_GT(dropped, 0);
  EXPECT_EQ(plan.steps.size() + static_cast<size_t>(dropped), all);
  EXPECT_LE(TokensHeld(plan), 4 * 4096 + 512);
}

TEST(ModelTimerTest, EveryPointOfThePlanGetsATime) {
  const TimingPlan plan = PlanTiming(128, 4);
  const Timer t = MakeTimer(128, plan);
  double work = 0;
  int begun = 0;
  const auto points = MeasureTiming(
      *t.timer, plan, 2,
      {.begin = [&](const std::string&) { ++begun; }, .end = [&](double w) { work += w; }});
  ASSERT_TRUE(points.ok()) << points.status();
  ASSERT_EQ(points->prefill.size(), plan.prefill.size());
  ASSERT_EQ(points->steps.size(), plan.steps.size());
  for (const auto& p : points->prefill) EXPECT_GT(p.seconds, 0);
  for (const auto& p : points->steps) EXPECT_GT(p.seconds, 0);
  EXPECT_EQ(begun, 2 * static_cast<int>(plan.prefill.size() + plan.steps.size()));
  EXPECT_NEAR(work, TimingWork(plan, 2), 1e-6 * work);
  // 128 tokens and a page, of which the text takes all that a sequence may hold.
  EXPECT_EQ(t.pool->total_pages() - t.pool->free_pages(), 9) << "the text's pages alone are held";
}

// The executor refuses what stands on KV that is not local, and its time is what is measured: one
// that sleeps 2 ms a layer of a chunk.
TEST(ModelTimerTest, PromptsRunInChunksAfterTheirPrefix) {
  TimingPlan plan;
  plan.prefill = {{100, 48, 0, false}};
  std::vector<int> layers;
  const Timer t = MakeTimer(256, plan, 40, [&](int layer) {
    layers.push_back(layer);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  });
  layers.clear();
  const auto seconds = t.timer->Prefill(100, 48);
  ASSERT_TRUE(seconds.ok()) << seconds.status();
  EXPECT_EQ(layers, (std::vector<int>{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_GE(*seconds, 0.024);
}

TEST(ModelTimerTest, ContextsBeyondTheTextAreLocalToo) {
  TimingPlan plan;
  plan.steps = {{3, 700, 0, false}};
  const Timer t = MakeTimer(1024, plan);
  const auto seconds = t.timer->Step(3, 700);
  ASSERT_TRUE(seconds.ok()) << seconds.status();
  EXPECT_GT(*seconds, 0);
  EXPECT_EQ(t.timer->Step(4, 1000).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace smartgen::tools
