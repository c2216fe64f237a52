#include "decode_server/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/fakes/fake_executor.h"

namespace smartgen::decode_server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// An attempt whose events the test gives.
class FakeAttempt final : public PrefillAttempt {
 public:
  Progress progress() const override { return now; }
  bool FetchMissing() override {
    ++fetches;
    return true;
  }
  void FetchRanges(std::span<const transfer::LayerRange>) override {}
  void FetchHeads(int, std::span<const kv::HeadRange>, bool) override {}
  void Split(int64_t position, int32_t token, int layer, std::span<const float> hidden) override {
    splits.push_back({position, token, layer, {hidden.begin(), hidden.end()}});
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
  };
  AttemptSpec spec;
  std::vector<SplitCall> splits;
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
    executor_options_.layers = 2;
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

TEST_F(EngineTest, RoomIsReservedBeforeAnInstanceIsAsked) {
  Make();
  const auto listener = Submit(Spec(40, 4));
  engine_->Step();
  EXPECT_TRUE(listener->admitted);
  ASSERT_EQ(directory_.attempts.size(), 1u);
  EXPECT_EQ(pool_->free_pages(), 64 - 3);
  EXPECT_EQ(directory_.attempts[0]->spec.max_tokens, 4);
  EXPECT_EQ(directory_.attempts[0]->spec.prompt_tokens, 40);
}

TEST_F(EngineTest, RemoteAndLocalMakeTheSameTokens) {
  Make();
  const auto listener = Submit(Spec(40, 6));
  engine_->Step();
  Deliver(*directory_.attempts[0]);
  RunAll();
  EXPECT_TRUE(listener->finished);
  EXPECT_EQ(listener->stats.mode, Mode::kFull);
  EXPECT_TRUE(directory_.attempts[0]->ended);
  cache_->Clear();
  EXPECT_EQ(listener->tokens, LocalTokens(Spec(40, 6)));
  EXPECT_EQ(FreeOrCached(), 64);
}

TEST_F(EngineTest, TheTokenIsForwardedBeforeItsKvIsHere) {
  Make();
  const auto listener = Submit(Spec(40, 6));
  engine_->Step();
  Deliver(*directory_.attempts[0], /*kv=*/false);
  engine_->Step();
  EXPECT_EQ(listener->tokens.size(), 1u);
  EXPECT_EQ(requests_[0]->state(), RequestState::kReceiving);
}

TEST_F(EngineTest, TheRankingDecidesWhoIsAskedFirst) {
  Make();
  auto spec = Spec(40, 6);
  spec.prefill_ranking = {"b:2", "a:1"};
  Submit(std::move(spec));
  engine_->Step();
  EXPECT_THAT(directory_.addresses, ElementsAre("b:2"));
}

TEST_F(EngineTest, AFailureBeforeTheTokenTriesTheNextInstanceThenLocally) {
  Make();
  const auto listener = Submit(Spec(40, 6));
  engine_->Step();
  directory_.attempts[0]->events.on_failed(Fallback::kPrefillBusy, base::ResourceExhausted("full"));
  engine_->Step();
  EXPECT_TRUE(directory_.attempts[0]->ended);
  EXPECT_THAT(directory_.addresses, ElementsAre("a:1", "b:2"));
  directory_.attempts[1]->events.on_failed(Fallback::kPeerDown, base::Unavailable("gone"));
  RunAll();
  EXPECT_TRUE(listener->finished);
  EXPECT_EQ(listener->stats.mode, Mode::kLocal);
  EXPECT_EQ(listener->stats.fallback_reason, "peer_down");
  EXPECT_EQ(Fallbacks("prefill_busy"), 1);
  EXPECT_EQ(Fallbacks("peer_down"), 1);
  cache_->Clear();
  EXPECT_EQ(listener->tokens, LocalTokens(Spec(40, 6)));
}

TEST_F(EngineTest, AFailureAfterTheTokenGoesOnWithoutRepeatingIt) {
  Make();
  const auto listener = Submit(Spec(40, 6));
  engine_->Step();
  Deliver(*directory_.attempts[0], /*kv=*/false);
  engine_->Step();
  directory_.attempts[0]->events.on_failed(Fallback::kPeerDown, base::Unavailable("gone"));
  engine_->Step();
  // The next instance computes the prompt and the token that is out.
  ASSERT_EQ(directory_.attempts.size(), 2u);
  EXPECT_EQ(directory_.attempts[1]->tokens.size(), 41u);
  EXPECT_EQ(directory_.attempts[1]->spec.prompt_tokens, 40);
  EXPECT_EQ(directory_.attempts[1]->spec.max_tokens, 5);
  Deliver(*directory_.attempts[1]);
  RunAll();
  cache_->Clear();
  EXPECT_EQ(listener->tokens, LocalTokens(Spec(40, 6)));
}

TEST_F(EngineTest, EventsOfAnAttemptThatIsOverChangeNothing) {
  Make();
  const auto listener = Submit(Spec(40, 6));
  engine_->Step();
  directory_.attempts[0]->events.on_failed(Fallback::kPrefillError, base::Internal("x"));
  engine_->Step();
  Deliver(*directory_.attempts[0], /*kv=*/false);
  directory_.attempts[0]->events.on_complete();
  engine_->Step();
  EXPECT_THAT(listener->tokens, IsEmpty());
  EXPECT_EQ(requests_[0]->state(), RequestState::kRemotePrefill);
}

TEST_F(EngineTest, AStalledTransferIsAskedForAgainThenGivenUp) {
  options_.max_fetches = 2;
  directory_.healthy = {"a:1"};
  Make();
  const auto listener = Submit(Spec(40, 6));
  engine_->Step();
  FakeAttempt& attempt = *directory_.attempts[0];
  Deliver(attempt, /*kv=*/false);
  attempt.events.on_sent();
  engine_->Step();
  for (int i = 1; i <= 2; ++i) {
    clock_.Advance(options_.stall + std::chrono::milliseconds(1));
    engine_->Step();
    EXPECT_EQ(attempt.fetches, i);
  }
  clock_.Advance(options_.stall + std::chrono::milliseconds(1));
  RunAll();
  EXPECT_EQ(Fallbacks("transfer_stalled"), 1);
  EXPECT_TRUE(listener->finished);
  cache_->Clear();
  EXPECT_EQ(listener->tokens, LocalTokens(Spec(40, 6)));
}

TEST_F(EngineTest, ATransferThatWaitsBehindOthersIsNotStalled) {
  Make();
  Submit(Spec(40, 6));
  engine_->Step();
  FakeAttempt& attempt = *directory_.attempts[0];
  Deliver(attempt, /*kv=*/false);
  attempt.events.on_sent();
  engine_->Step();
  for (int i = 0; i < 5; ++i) {
    attempt.now.pairing_bytes += 1000;
    clock_.Advance(options_.stall + std::chrono::milliseconds(1));
    engine_->Step();
  }
  EXPECT_EQ(attempt.fetches, 0);
}

TEST_F(EngineTest, ATransferThatTricklesForEverEndsAtItsTimeout) {
  directory_.healthy = {"a:1"};
  Make();
  const auto listener = Submit(Spec(40, 6));
  engine_->Step();
  FakeAttempt& attempt = *directory_.attempts[0];
  Deliver(attempt, /*kv=*/false);
  engine_->Step();
  for (int i = 0; i < 61; ++i) {
    attempt.now.bytes += 1;
    clock_.Advance(std::chrono::seconds(1));
    engine_->Step();
  }
  RunAll();
  EXPECT_EQ(Fallbacks("transfer_timeout"), 1);
  EXPECT_TRUE(listener->finished);
}

TEST_F(EngineTest, LeasesAreRenewedWhileWaitingButNotBeforeTheyAreGranted) {
  Make();
  Submit(Spec(40, 6));
  engine_->Step();
  FakeAttempt& attempt = *directory_.attempts[0];
  clock_.Advance(std::chrono::seconds(11));
  engine_->Step();
  EXPECT_EQ(attempt.renewals, 0);
  attempt.events.on_started(0, 0);
  engine_->Step();
  clock_.Advance(std::chrono::seconds(11));
  engine_->Step();
  EXPECT_EQ(attempt.renewals, 1);
}

TEST_F(EngineTest, AVeryShortPromptStaysHereInAutoMode) {
  options_.local_below_tokens = 50;
  Make();
  const auto listener = Submit(Spec(40, 2, Mode::kAuto));
  RunAll();
  EXPECT_TRUE(listener->finished);
  EXPECT_THAT(directory_.addresses, IsEmpty());
  EXPECT_EQ(listener->stats.fallback_reason, "");
}

// 1 ms a token here and there, 10 ms to a:1 and back: up to some 100 tokens local is sooner.
TEST_F(EngineTest, ACalibrationKeepsPromptsHereThatAreSoonerHere) {
  const transfer::CostPoints points{.prefill = {{10, 0, 0.01, false}, {1000, 0, 1, false}},
                                    .steps = {{1, 10, 0.01, false}, {2, 10, 0.01, false}},
                                    .links = {{"a:1", 1e6, 0.01}}};
  costs_ = *transfer::CostModel::Create(points);
  directory_.healthy = {"a:1", "b:1"};
  Make();
  const auto sooner = Submit(Spec(40, 2, Mode::kAuto, 1));
  RunAll();
  EXPECT_TRUE(sooner->finished);
  EXPECT_EQ(sooner->stats.mode, Mode::kLocal);
  EXPECT_EQ(sooner->stats.fallback_reason, "");
  EXPECT_THAT(directory_.addresses, IsEmpty());
  Submit(Spec(400, 2, Mode::kAuto, 2));
  engine_->Step();
  EXPECT_THAT(directory_.addresses, ElementsAre("a:1"));
  GenerateSpec ranked = Spec(40, 2, Mode::kAuto, 3);
  ranked.prefill_ranking = {"b:1"};
  Submit(std::move(ranked));
  engine_->Step();
  EXPECT_THAT(directory_.addresses, ElementsAre("a:1", "b:1")) << "the way to b:1 is not known";
}

TEST_F(EngineTest, WithoutLocalFallbackWhatNoInstanceCanServeIsUnavailable) {
  options_.local_fallback = false;
  directory_.healthy = {"a:1"};
  Make();
  const auto failed = Submit(Spec(40, 6));
  engine_->Step();
  directory_.attempts[0]->events.on_failed(Fallback::kPrefillBusy, base::ResourceExhausted("full"));
  engine_->Step();
  EXPECT_TRUE(absl::IsUnavailable(failed->failure)) << failed->failure;
  EXPECT_THAT(std::string(failed->failure.message()), HasSubstr("prefill_busy"));
  directory_.healthy.clear();
  const auto refused = Submit(Spec(40, 6));
  engine_->Step();
  EXPECT_TRUE(absl::IsUnavailable(refused->failure)) << refused->failure;
  EXPECT_EQ(FreeOrCached(), 64);
  // What was meant to be computed here still is.
  EXPECT_EQ(LocalTokens(Spec(40, 6)).size(), 6u);
}

TEST_F(EngineTest, ALocalPrefillTakesShortTurnsAsSoonAsAnybodyElseIsHere) {
  options_.max_prefill_tokens = 64;
  options_.local_chunk_tokens = 16;
  Make();
  const auto listener = Submit(Spec(200, 1, Mode::kLocal));
  engine_->Step();
  EXPECT_EQ(requests_[0]->local_done, 64);  // alone
  Submit(Spec(40, 6, Mode::kFull, 2));      // waits for its prefill instance
  engine_->Step();
  EXPECT_EQ(requests_[0]->local_done, 80);
}

TEST_F(EngineTest, WhatCanNeverFitIsRefusedForGood) {
  Make(4);
  const auto request = engine_->Submit(Spec(64, 1), std::make_shared<FakeListener>());
  EXPECT_TRUE(absl::IsOutOfRange(request.status())) << request.status();
}

TEST_F(EngineTest, ATokenOutsideTheVocabularyIsNotBelieved) {
  directory_.healthy = {"a:1"};
  Make();
  const auto listener = Submit(Spec(40, 2));
  engine_->Step();
  directory_.attempts[0]->events.on_token({.id = 256, .logprob = 0, .top = {}});
  RunAll();
  EXPECT_EQ(Fallbacks("prefill_error"), 1);
  EXPECT_TRUE(listener->finished);
}

TEST_F(EngineTest, CancelFreesEverythingInTheNextStepInEveryState) {
  Make();
  for (int state = 0; state < 4; ++state) {
    const auto listener =
        Submit(Spec(40, 500, state == 3 ? Mode::kLocal : Mode::kFull, 10 + state));
    if (state > 0) engine_->Step();
    if (state == 2) {
      Deliver(*directory_.attempts.back(), /*kv=*/false);
      engine_->Step();
    }
    engine_->Cancel(requests_.back(), base::Cancelled("gone"));
    engine_->Step();
    EXPECT_TRUE(absl::IsCancelled(listener->failure)) << state;
    EXPECT_EQ(FreeOrCached(), 64) << state;
    EXPECT_EQ(engine_->load().running + engine_->load().waiting, 0) << state;
  }
  for (const auto& attempt : directory_.attempts) EXPECT_TRUE(attempt->ended);
}

TEST_F(EngineTest, DeadlinesEndRequestsWhereverTheyAre) {
  Make();
  auto spec = Spec(40, 500);
  spec.deadline = base::Deadline::After(clock_, std::chrono::seconds(3));
  const auto listener = Submit(std::move(spec));
  engine_->Step();
  clock_.Advance(std::chrono::seconds(4));
  engine_->Step();
  EXPECT_TRUE(absl::IsDeadlineExceeded(listener->failure));
  EXPECT_THAT(std::string(listener->failure.message()), HasSubstr("remote_prefill"));
  EXPECT_EQ(FreeOrCached(), 64);
}

TEST_F(EngineTest, TheYoungestIsPreemptedAndItsOutputIsUnchanged) {
  Make(64);
  const auto expected_old = LocalTokens(Spec(60, 60, Mode::kLocal, 3));
  const auto expected_young = LocalTokens(Spec(60, 60, Mode::kLocal, 4));
  engine_.reset();
  cache_.reset();
  Make(12);  // two of 120 tokens want 8 pages each
  const auto old = Submit(Spec(60, 60, Mode::kLocal, 3));
  const auto young = Submit(Spec(60, 60, Mode::kLocal, 4));
  for (int i = 0; i < 1000 && !(old->finished && young->finished); ++i) engine_->Step();
  EXPECT_EQ(old->tokens, expected_old);
  EXPECT_EQ(young->tokens, expected_young);
  EXPECT_EQ(old->stats.preemptions, 0);
  EXPECT_GE(young->stats.preemptions, 1);
  EXPECT_GE(metrics_->GetCounter("preemptions_total").value(), 1);
  EXPECT_GE(metrics_->GetCounter("prompt_tokens_total", {{"source", "recomputed"}}).value(), 1);
}

TEST_F(EngineTest, StoppingFailsWhatIsLeft) {
  Make();
  const auto listener = Submit(Spec(40, 6));
  engine_->Step();
  const auto late = Submit(Spec(40, 6));
  engine_->Stop();
  EXPECT_TRUE(absl::IsUnavailable(listener->failure));
  EXPECT_TRUE(absl::IsUnavailable(late->failure));
  EXPECT_EQ(FreeOrCached(), 64);
  directory_.attempts[0]->events.on_complete();  // late: no harm
}

}  // namespace
}  // namespace smartgen::decode_server
