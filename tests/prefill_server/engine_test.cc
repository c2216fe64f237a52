#include "prefill_server/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/prefill_server/engine_fixture.h"

namespace smartgen::prefill_server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(EngineTest, EveryLayerOfEveryChunkIsHandedOutAsItIsReady) {
  Make();
  const auto listener = Submit(Spec(7, 40));
  while (engine_->Step()) {
  }
  EXPECT_THAT(link_->calls,
              ElementsAre("begin 7 0-40", "ready 7 layer 0 0-32", "ready 7 layer 1 0-32",
                          "ready 7 layer 0 32-40", "ready 7 layer 1 32-40"));
  EXPECT_THAT(listener->calls, ElementsAre("started 0", "token", "done, transfer"));
  EXPECT_EQ(engine_->load().leases, 1);
  engine_->Release({1, 7}, absl::OkStatus());
  EXPECT_EQ(engine_->load().leases, 0);
  EXPECT_EQ(link_->calls.back(), "end 7");
  EXPECT_EQ(FreeOrCached(), pool_->total_pages());
}

TEST_F(EngineTest, ACachedPrefixIsSentBeforeTheRestIsComputed) {
  Make();
  Submit(Spec(7, 40));
  while (engine_->Step()) {
  }
  engine_->Release({1, 7}, absl::OkStatus());
  link_->calls.clear();
  JobSpec again = Spec(7, 40);
  again.id = {1, 8};
  const auto listener = Submit(std::move(again));
  while (engine_->Step()) {
  }
  EXPECT_THAT(link_->calls,
              ElementsAre("begin 8 0-40", "ready 8 layer 0 0-32", "ready 8 layer 1 0-32",
                          "ready 8 layer 0 32-40", "ready 8 layer 1 32-40"));
  EXPECT_THAT(listener->calls, ElementsAre("started 32", "token", "done, transfer"));
}

TEST_F(EngineTest, OneTokenNeedsNoTransferAndLeavesNoLease) {
  Make();
  const auto listener = Submit(Spec(7, 20, 1));
  while (engine_->Step()) {
  }
  EXPECT_THAT(listener->calls, ElementsAre("started 0", "token", "done"));
  EXPECT_THAT(link_->calls, ElementsAre("end 7"));
  EXPECT_EQ(engine_->load().leases, 0);
}

TEST_F(EngineTest, ALeaseThatNobodyRenewsEndsAloneAndFreesThePages) {
  Make();
  Submit(Spec(7, 20));
  while (engine_->Step()) {
  }
  clock_.Advance(std::chrono::seconds(29));
  EXPECT_TRUE(engine_->Renew({1, 7}).ok());
  clock_.Advance(std::chrono::seconds(29));
  EXPECT_EQ(engine_->ExpireLeases(), 0);
  clock_.Advance(std::chrono::seconds(2));
  EXPECT_EQ(engine_->ExpireLeases(), 1);
  EXPECT_THAT(link_->calls.end()[-2], HasSubstr("aborted 7"));
  EXPECT_EQ(FreeOrCached(), pool_->total_pages());
  EXPECT_FALSE(engine_->Renew({1, 7}).ok());
}

TEST_F(EngineTest, PagesUnderLeasesHoldNewPromptsBackUntilTheyReturn) {
  Make(4);
  Submit(Spec(1, 40));  // 3 of 4 pages
  while (engine_->Step()) {
  }
  const auto waiting = Submit(Spec(2, 40));
  EXPECT_FALSE(engine_->Step());
  EXPECT_THAT(waiting->calls, IsEmpty());
  EXPECT_EQ(engine_->load().queued, 1);
  engine_->Release({1, 1}, absl::OkStatus());
  while (engine_->Step()) {
  }
  EXPECT_THAT(waiting->calls, ElementsAre("started 0", "token", "done, transfer"));
}

TEST_F(EngineTest, AQueuedPromptsDeadlineEndsItThere) {
  Make(4);
  Submit(Spec(1, 40));
  while (engine_->Step()) {
  }
  JobSpec spec = Spec(2, 40);
  spec.deadline = base::Deadline::After(clock_, std::chrono::seconds(1));
  const auto waiting = Submit(std::move(spec));
  engine_->Step();
  clock_.Advance(std::chrono::seconds(2));
  engine_->Step();
  ASSERT_EQ(waiting->calls.size(), 1u);
  EXPECT_THAT(waiting->calls[0], HasSubstr("deadline passed while it was queued"));
}

TEST_F(EngineTest, BeyondTheQueueIsRefusedAtOnce) {
  options_.max_queue = 2;
  Make();
  Submit(Spec(1, 20));
  Submit(Spec(2, 20));
  const auto third = engine_->Submit(Spec(3, 20), std::make_shared<FakeListener>());
  EXPECT_TRUE(absl::IsResourceExhausted(third.status())) << third.status();
}

TEST_F(EngineTest, APromptThatCanNeverFitIsRefusedAtOnce) {
  Make(4);
  const auto job = engine_->Submit(Spec(1, 65), std::make_shared<FakeListener>());
  EXPECT_TRUE(absl::IsResourceExhausted(job.status()));
  EXPECT_THAT(std::string(job.status().message()),
              HasSubstr("need 5 KV pages; this instance has 4"));
}

TEST_F(EngineTest, AnIdInUseIsRefused) {
  Make();
  Submit(Spec(1, 20));
  EXPECT_TRUE(absl::IsAlreadyExists(
      engine_->Submit(Spec(1, 20), std::make_shared<FakeListener>()).status()));
}

TEST_F(EngineTest, L1_AReleaseThatOvertakesItsPromptIsRemembered) {
  Make();
  engine_->Release({1, 1}, absl::OkStatus());
  EXPECT_TRUE(
      absl::IsCancelled(engine_->Submit(Spec(1, 20), std::make_shared<FakeListener>()).status()));
  EXPECT_EQ(engine_->Submit(Spec(2, 20), std::make_shared<FakeListener>()).status(),
            absl::OkStatus());
}

TEST_F(EngineTest, ShortPromptsOvertakeALongOneChunkByChunk) {
  Make();
  const auto longer = Submit(Spec(1, 320));
  engine_->Step();
  const auto shorter = Submit(Spec(2, 20));
  engine_->Step();
  EXPECT_EQ(shorter->calls.back(), "done, transfer");
  EXPECT_THAT(longer->calls, ElementsAre("started 0"));
}

TEST_F(EngineTest, ALinkThatGoesDownEndsItsJobsInEveryState) {
  options_.max_running = 1;
  Make();
  const auto leased = Submit(Spec(1, 20));
  while (engine_->Step()) {
  }
  const auto running = Submit(Spec(2, 100));
  engine_->Step();
  const auto queued = Submit(Spec(3, 20));
  engine_->DropLink(link_.get(), base::Unavailable("gone"));
  while (engine_->Step()) {
  }
  EXPECT_EQ(leased->calls.back(), "done, transfer");
  EXPECT_EQ(running->calls.back(), "failed gone");
  EXPECT_EQ(queued->calls.back(), "failed gone");
  EXPECT_EQ(engine_->load().leases, 0);
  EXPECT_EQ(FreeOrCached(), pool_->total_pages());
}

TEST_F(EngineTest, CancelInsideAChunkEndsItBeforeTheNextLayer) {
  int layers = 0;
  std::shared_ptr<Job> job;
  executor_options_.before = [&](int) {
    ++layers;
    if (!jobs_.empty()) engine_->Cancel(jobs_[0], base::Cancelled("stop"));
  };
  Make();
  const auto listener = Submit(Spec(1, 100));
  while (engine_->Step()) {
  }
  EXPECT_EQ(layers, 1);
  EXPECT_EQ(listener->calls.back(), "failed stop");
  EXPECT_EQ(FreeOrCached(), pool_->total_pages());
}

TEST_F(EngineTest, ATransferThatCannotBeginFailsThePrompt) {
  Make();
  link_->begin_status = base::Unavailable("no channel");
  const auto listener = Submit(Spec(1, 20));
  while (engine_->Step()) {
  }
  EXPECT_THAT(listener->calls, ElementsAre("failed no channel"));
  EXPECT_EQ(engine_->load().leases, 0);
  EXPECT_EQ(FreeOrCached(), pool_->total_pages());
}

TEST_F(EngineTest, StoppingFailsWhatIsLeftAndFreesEverything) {
  Make();
  Submit(Spec(1, 20));
  while (engine_->Step()) {
  }
  const auto queued = Submit(Spec(2, 20));
  engine_->Stop();
  EXPECT_THAT(queued->calls, ElementsAre("failed prefilld is stopping"));
  EXPECT_EQ(FreeOrCached(), pool_->total_pages());
  EXPECT_TRUE(
      absl::IsUnavailable(engine_->Submit(Spec(3, 20), std::make_shared<FakeListener>()).status()));
}

}  // namespace
}  // namespace smartgen::prefill_server
