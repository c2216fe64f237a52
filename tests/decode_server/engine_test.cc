#include <limits>

#include "tests/decode_server/engine_fixture.h"

namespace smartgen::decode_server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

TEST_F(EngineTest, AThinLinkHasTheTimeThatThePlanSays) {
  directory_.healthy = {"a:1"};
  Make();
  const auto listener = Submit(Spec(40, 6));
  engine_->Step();
  FakeAttempt& attempt = *directory_.attempts[0];
  attempt.events.on_plan({.transfer_seconds = 100});
  Deliver(attempt, /*kv=*/false);
  engine_->Step();
  for (int i = 0; i < 250; ++i) {
    attempt.now.bytes += 1;
    clock_.Advance(std::chrono::seconds(1));
    engine_->Step();
  }
  EXPECT_EQ(Fallbacks("transfer_timeout"), 0);
  for (int i = 0; i < 20; ++i) {
    attempt.now.bytes += 1;
    clock_.Advance(std::chrono::seconds(1));
    engine_->Step();
  }
  EXPECT_EQ(Fallbacks("transfer_timeout"), 1);
  attempt.events.on_plan({.transfer_seconds = std::numeric_limits<double>::quiet_NaN()});
  RunAll();
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
