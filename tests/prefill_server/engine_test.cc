#include "prefill_server/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/fakes/fake_executor.h"

namespace smartgen::prefill_server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FakeLink final : public DecodeLink {
 public:
  bool up() const override { return true; }
  absl::Status Begin(const base::TransferId& id, std::shared_ptr<kv::KvSequence>, int64_t begin,
                     int64_t end) override {
    calls.push_back(fmt::format("begin {} {}-{}", id.lo, begin, end));
    return begin_status;
  }
  absl::Status LayerReady(const base::TransferId& id, const transfer::LayerRange& range) override {
    calls.push_back(
        fmt::format("ready {} layer {} {}-{}", id.lo, range.layer, range.begin, range.end));
    return absl::OkStatus();
  }
  void End(const base::TransferId& id) override { calls.push_back(fmt::format("end {}", id.lo)); }
  void NotifyAborted(const base::TransferId& id, std::string_view reason) override {
    calls.push_back(fmt::format("aborted {} {}", id.lo, reason));
  }
  std::vector<std::string> calls;
  absl::Status begin_status;
};

class FakeListener final : public JobListener {
 public:
  void Started(int64_t cached_tokens, double) override {
    calls.push_back(fmt::format("started {}", cached_tokens));
  }
  void FirstToken(const sampling::SampledToken&) override { calls.push_back("token"); }
  void Done(bool transfer, double) override {
    calls.push_back(transfer ? "done, transfer" : "done");
  }
  void Failed(const absl::Status& status) override {
    calls.push_back(fmt::format("failed {}", base::MessageOf(status)));
  }
  std::vector<std::string> calls;
};

class EngineTest : public ::testing::Test {
 protected:
  void Make(int64_t pages = 64) {
    executor_options_.max_prefill_tokens = 32;
    executor_options_.layers = 2;
    executor_ = std::make_unique<fakes::FakeExecutor>(executor_options_);
    const kv::KvLayout layout = executor_->Layout(1024);
    pool_ = *kv::KvPool::Create(layout, {.bytes = pages * layout.PageBytesTotal()});
    cache_ = std::make_unique<kv::PrefixCache>(pool_.get(), kv::PrefixCache::Options{});
    options_.chunk_tokens = 32;
    options_.lease = std::chrono::seconds(30);
    engine_ = std::make_unique<PrefillEngine>(
        options_,
        PrefillEngine::Parts{executor_.get(), pool_.get(), cache_.get(), &clock_, metrics_.get()},
        false);
  }
  JobSpec Spec(uint64_t id, int tokens, int64_t max_tokens = 8) {
    JobSpec spec;
    spec.id = {1, id};
    for (int i = 0; i < tokens; ++i)
      spec.tokens.push_back(static_cast<int32_t>((i * 7 + static_cast<int>(id)) % 256));
    spec.prompt_tokens = tokens;
    spec.max_tokens = max_tokens;
    spec.sampling.temperature = 0;
    spec.link = link_;
    return spec;
  }
  std::shared_ptr<FakeListener> Submit(JobSpec spec) {
    auto listener = std::make_shared<FakeListener>();
    const auto job = engine_->Submit(std::move(spec), listener);
    EXPECT_TRUE(job.ok()) << job.status();
    if (job.ok()) jobs_.push_back(*job);
    return listener;
  }
  int64_t FreeOrCached() const { return pool_->free_pages() + cache_->stats().pages; }

  fakes::FakeExecutor::Options executor_options_;
  PrefillEngine::Options options_;
  base::SimulatedClock clock_;
  std::unique_ptr<metrics::Metrics> metrics_ = metrics::Metrics::Create("prefilld");
  std::unique_ptr<fakes::FakeExecutor> executor_;
  std::unique_ptr<kv::KvPool> pool_;
  std::unique_ptr<kv::PrefixCache> cache_;
  std::shared_ptr<FakeLink> link_ = std::make_shared<FakeLink>();
  std::unique_ptr<PrefillEngine> engine_;
  std::vector<std::shared_ptr<Job>> jobs_;
};

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
