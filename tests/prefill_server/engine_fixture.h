// The prefill engine with a fake executor, a fake link and a simulated clock.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "prefill_server/engine.h"
#include "tests/fakes/fake_executor.h"

namespace smartgen::prefill_server {

class FakeLink final : public DecodeLink {
 public:
  bool up() const override { return true; }
  absl::Status Begin(transfer::SendSpec spec) override {
    calls.push_back(fmt::format("begin {} {}-{}", spec.id.lo, spec.begin, spec.end));
    last_spec = spec;
    last_spec.sequence.reset();
    return begin_status;
  }
  absl::Status LayerReady(const base::TransferId& id, const transfer::LayerRange& range) override {
    calls.push_back(
        fmt::format("ready {} layer {} {}-{}", id.lo, range.layer, range.begin, range.end));
    return absl::OkStatus();
  }
  absl::Status Metadata(const base::TransferId& id, int layer, int64_t begin, int64_t end,
                        bool header, std::vector<std::byte>) override {
    calls.push_back(fmt::format("{} {} layer {} {}-{}", header ? "header" : "metadata", id.lo,
                                layer, begin, end));
    return absl::OkStatus();
  }
  void PromptDone(const base::TransferId&) override { ++prompts_done; }
  absl::Status Born(const base::TransferId& id, int layer_begin, int64_t token) override {
    calls.push_back(fmt::format("born {} layer {} token {}", id.lo, layer_begin, token));
    return absl::OkStatus();
  }
  absl::Status Reply(const base::TransferId& id, uint64_t step, int layer,
                     std::vector<std::byte> bytes) override {
    calls.push_back(fmt::format("reply {} step {} layer {}", id.lo, step, layer));
    answers.push_back(std::move(bytes));
    return absl::OkStatus();
  }
  void ExpectReply(const base::TransferId& id, base::TimePoint at) override {
    expected_replies.emplace_back(id.lo, at);
  }
  void NotifyPlan(const base::TransferId&, const DeliveryPlan& plan) override { last_plan = plan; }
  transfer::LinkEstimate estimate() const override { return link_estimate; }
  void End(const base::TransferId& id) override { calls.push_back(fmt::format("end {}", id.lo)); }
  void NotifyDeferred(const base::TransferId& id) override {
    calls.push_back(fmt::format("deferred {}", id.lo));
  }
  void NotifyAborted(const base::TransferId& id, std::string_view reason) override {
    calls.push_back(fmt::format("aborted {} {}", id.lo, reason));
  }
  std::vector<std::string> calls;
  std::vector<std::vector<std::byte>> answers;
  std::vector<std::pair<uint64_t, base::TimePoint>> expected_replies;
  transfer::SendSpec last_spec;
  DeliveryPlan last_plan;
  transfer::LinkEstimate link_estimate;
  int prompts_done = 0;
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
    if (!executor_options_.before) {
      executor_options_.before = [this](int layer) {
        if (before_) before_(layer);
      };
    }
    executor_ = std::make_unique<fakes::FakeExecutor>(executor_options_);
    const kv::KvLayout layout = executor_->Layout(1024);
    pool_ = *kv::KvPool::Create(layout, {.bytes = pages * layout.PageBytesTotal()});
    cache_ = std::make_unique<kv::PrefixCache>(pool_.get(), kv::PrefixCache::Options{});
    options_.chunk_tokens = 32;
    options_.lease = std::chrono::seconds(30);
    planner_ = std::make_unique<TransferPlanner>(
        TransferPlanner::Options{}, layout,
        std::vector<transfer::Profile>{transfer::Profile::Prior(executor_options_.layers)});
    selectors_ = std::make_unique<selector::SelectorSet>(
        layout,
        std::vector<int>(static_cast<size_t>(executor_options_.layers), executor_options_.kv_heads),
        selector::Parameters{}, selector::Options{});
    engine_ = std::make_unique<PrefillEngine>(
        options_,
        PrefillEngine::Parts{executor_.get(), pool_.get(), cache_.get(), &clock_, metrics_.get(),
                             planner_.get(), selectors_.get()},
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
  std::function<void(int layer)> before_;  // as the executor's, but may be set after Make
  PrefillEngine::Options options_;
  base::SimulatedClock clock_;
  std::unique_ptr<metrics::Metrics> metrics_ = metrics::Metrics::Create("prefilld");
  std::unique_ptr<fakes::FakeExecutor> executor_;
  std::unique_ptr<kv::KvPool> pool_;
  std::unique_ptr<kv::PrefixCache> cache_;
  std::shared_ptr<FakeLink> link_ = std::make_shared<FakeLink>();
  std::unique_ptr<TransferPlanner> planner_;
  std::unique_ptr<selector::SelectorSet> selectors_;
  std::unique_ptr<PrefillEngine> engine_;
  std::vector<std::shared_ptr<Job>> jobs_;
};

}  // namespace smartgen::prefill_server
