// A decode engine without network: the test plays the prefill instances.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "decode_server/engine.h"
#include "tests/fakes/fake_executor.h"

namespace smartgen::decode_server {

// An attempt whose events the test gives.
class FakeAttempt final : public PrefillAttempt {
 public:
  Progress progress() const override { return now; }
  bool FetchMissing() override {
    ++fetches;
    return true;
  }
  void FetchRanges(std::span<const transfer::LayerRange> ranges) override {
    if (!ranges.empty()) ranges_asked.push_back({ranges.begin(), ranges.end()});
  }
  void FetchHeads(int layer, std::span<const kv::HeadRange> ranges, bool) override {
    if (on_fetch) on_fetch(layer, ranges);
  }
  void Split(int64_t position, int32_t token, int layer, std::span<const float> hidden,
             std::span<const int32_t> before) override {
    splits.push_back(
        {position, token, layer, {hidden.begin(), hidden.end()}, {before.begin(), before.end()}});
  }
  void FetchMetadata(std::span<const transfer::LayerRange> ranges) override {
    metadata_asked.push_back({ranges.begin(), ranges.end()});
  }
  void FlushSteps() override {}
  void Attend(int64_t, int, int64_t, int64_t, std::span<const float>) override {}
  void Credit(int64_t bytes) override { credit += bytes; }
  void RenewLease() override { ++renewals; }
  base::Duration lease() const override { return std::chrono::seconds(30); }
  void End() override {
    ended = true;
    spec.sequence.reset();
  }

  struct SplitCall {
    int64_t position;
    int32_t token;
    int layer;
    std::vector<float> hidden;
    std::vector<int32_t> before;
  };
  AttemptSpec spec;
  std::function<void(int layer, std::span<const kv::HeadRange> ranges)> on_fetch;
  std::vector<SplitCall> splits;
  std::vector<std::vector<transfer::LayerRange>> metadata_asked;
  std::vector<std::vector<transfer::LayerRange>> ranges_asked;
  int64_t credit = 0;
  std::vector<int32_t> tokens;
  AttemptEvents events;
  Progress now;
  int fetches = 0;
  int renewals = 0;
  bool ended = false;
};

class FakeDirectory final : public PrefillDirectory {
 public:
  bool configured() const override { return configured_; }
  std::vector<std::string> Healthy(const std::vector<std::string>& ranking) const override {
    return ranking.empty() ? healthy : ranking;
  }
  absl::StatusOr<std::shared_ptr<PrefillAttempt>> Start(const std::string& address,
                                                        AttemptSpec spec,
                                                        AttemptEvents events) override {
    addresses.push_back(address);
    auto attempt = std::make_shared<FakeAttempt>();
    attempt->tokens.assign(spec.tokens.begin(), spec.tokens.end());
    attempt->spec = std::move(spec);
    attempt->events = std::move(events);
    attempts.push_back(attempt);
    return std::shared_ptr<PrefillAttempt>(attempt);
  }
  bool configured_ = true;
  std::vector<std::string> healthy = {"a:1", "b:2"};
  std::vector<std::string> addresses;
  std::vector<std::shared_ptr<FakeAttempt>> attempts;
};

class FakeListener final : public GenerateListener {
 public:
  void Admitted(int64_t) override { admitted = true; }
  void Token(const sampling::SampledToken& token) override { tokens.push_back(token.id); }
  void Finished(FinishReason why, const Stats& all) override {
    finished = true;
    reason = why;
    stats = all;
  }
  void Failed(const absl::Status& status) override { failure = status; }
  bool admitted = false;
  bool finished = false;
  FinishReason reason = FinishReason::kStop;
  std::vector<int32_t> tokens;
  Stats stats;
  absl::Status failure;
};

class EngineTest : public ::testing::Test {
 protected:
  void Make(int64_t pages = 64) {
    executor_options_.layers = layers_;
    executor_ = std::make_unique<fakes::FakeExecutor>(executor_options_);
    const kv::KvLayout layout = executor_->Layout(1024);
    pool_ = *kv::KvPool::Create(layout, {.bytes = pages * layout.PageBytesTotal()});
    cache_ = std::make_unique<kv::PrefixCache>(pool_.get(), kv::PrefixCache::Options{});
    selectors_ = std::make_unique<selector::SelectorSet>(
        layout,
        std::vector<int>(static_cast<size_t>(executor_options_.layers), executor_options_.kv_heads),
        selector::Parameters{}, selector::Options{});
    engine_ = std::make_unique<DecodeEngine>(
        options_,
        DecodeEngine::Parts{executor_.get(), pool_.get(), cache_.get(), &directory_, &clock_,
                            metrics_.get(), selectors_.get(), costs_.get()},
        false);
  }
  GenerateSpec Spec(int tokens, int64_t max_tokens, Mode mode = Mode::kFull, int salt = 1) {
    GenerateSpec spec;
    for (int i = 0; i < tokens; ++i) spec.prompt.push_back((i * 7 + salt) % 256);
    spec.max_tokens = max_tokens;
    spec.sampling.temperature = 0;
    spec.mode = mode;
    return spec;
  }
  std::shared_ptr<FakeListener> Submit(GenerateSpec spec) {
    auto listener = std::make_shared<FakeListener>();
    const auto request = engine_->Submit(std::move(spec), listener);
    EXPECT_TRUE(request.ok()) << request.status();
    if (request.ok()) requests_.push_back(*request);
    return listener;
  }
  // What a prefill instance does: KV into place, then the token.
  void Deliver(FakeAttempt& attempt, bool kv = true) {
    executor::PrefillChunk chunk;
    std::vector<float> logits(256);
    kv::KvSequence scratch(pool_.get());
    ASSERT_TRUE(scratch.Reserve(static_cast<int64_t>(attempt.tokens.size())).ok());
    chunk.sequence = kv ? attempt.spec.sequence.get() : &scratch;
    if (kv) chunk.start = attempt.spec.decode_cached_tokens;
    chunk.tokens =
        std::span<const int32_t>(attempt.tokens).subspan(static_cast<size_t>(chunk.start));
    chunk.last_logits = logits;
    ASSERT_TRUE(executor_->Prefill(chunk).ok());
    sampling::Sampler sampler(attempt.spec.sampling, attempt.tokens);
    attempt.events.on_started(0, 0);
    attempt.events.on_token(*sampler.Sample(logits, static_cast<int64_t>(attempt.tokens.size())));
    attempt.events.on_done(true, 0);
    if (kv) attempt.events.on_complete();
  }
  // Entries of one sequence that the other has not; head -1: of all heads.
  void CopyKv(kv::KvSequence& from, kv::KvSequence& to, int layer, const kv::HeadRange& range) {
    for (int head = 0; head < executor_options_.kv_heads; ++head) {
      if (range.head >= 0 && range.head != head) continue;
      for (int64_t token = range.begin; token < range.end; ++token) {
        if (to.HeadLocal(layer, head, token)) continue;
        const auto source = from.Segments(layer, head, token, token + 1);
        const auto target = to.Segments(layer, head, token, token + 1);
        for (size_t i = 0; i < target.size(); ++i) {
          std::memcpy(target[i].data(), source[i].data(), target[i].size());
        }
        to.MarkHeadLocal(layer, head, token, token + 1);
      }
    }
  }
  std::vector<int32_t> LocalTokens(GenerateSpec spec) {
    spec.mode = Mode::kLocal;
    const auto listener = Submit(std::move(spec));
    while (engine_->Step()) {
    }
    EXPECT_TRUE(listener->finished);
    return listener->tokens;
  }
  void RunAll() {
    while (engine_->Step()) {
    }
  }
  int64_t FreeOrCached() const { return pool_->free_pages() + cache_->stats().pages; }
  double Fallbacks(std::string_view reason) {
    return metrics_->GetCounter("fallback_total", {{"reason", reason}}).value();
  }

  int layers_ = 2;
  fakes::FakeExecutor::Options executor_options_;
  DecodeEngine::Options options_;
  base::SimulatedClock clock_;
  FakeDirectory directory_;
  std::unique_ptr<metrics::Metrics> metrics_ = metrics::Metrics::Create("decoded");
  std::unique_ptr<fakes::FakeExecutor> executor_;
  std::unique_ptr<kv::KvPool> pool_;
  std::unique_ptr<kv::PrefixCache> cache_;
  std::unique_ptr<selector::SelectorSet> selectors_;
  std::unique_ptr<transfer::CostModel> costs_;
  std::unique_ptr<DecodeEngine> engine_;
  std::vector<std::shared_ptr<Request>> requests_;
};

}  // namespace smartgen::decode_server
