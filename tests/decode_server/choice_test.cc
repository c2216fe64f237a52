// How steps are made while KV is on the way: by what is soonest, with the same tokens whatever that
// is.
#include "tests/decode_server/engine_fixture.h"

namespace smartgen::decode_server {
namespace {

using transfer::Handover;
using transfer::StepKind;

class ChoiceTest : public EngineTest {
 protected:
  // Steps take 10 ms here, and there.
  void MakeSlow() {
    executor_options_.before = [this](int layer) {
      if (layer < 0) clock_.Advance(std::chrono::milliseconds(10));
    };
    Make();
  }
  // A prefill instance that holds the prompt's KV, makes steps, and sends entries that are fetched.
  void Begin(GenerateSpec spec) {
    expected_ = LocalTokens(spec);
    cache_->Clear();
    listener_ = Submit(std::move(spec));
    engine_->Step();
    attempt_ = directory_.attempts.back();
    there_ = std::make_unique<kv::KvSequence>(pool_.get());
    const auto length = static_cast<int64_t>(attempt_->tokens.size());
    ASSERT_TRUE(there_->Reserve(length + 512).ok());
    attempt_->on_fetch = [this](int layer, std::span<const kv::HeadRange> ranges) {
      for (const kv::HeadRange& range : ranges) Bring(layer, range);
      ++fetches_;
    };
    executor::PrefillChunk chunk;
    std::vector<float> logits(256);
    chunk.sequence = there_.get();
    chunk.tokens = attempt_->tokens;
    chunk.last_logits = logits;
    ASSERT_TRUE(executor_->Prefill(chunk).ok());
    held_ = length;
    sampling::Sampler sampler(attempt_->spec.sampling, attempt_->tokens);
    attempt_->events.on_started(0, 0);
    attempt_->events.on_token(*sampler.Sample(logits, length));
    attempt_->events.on_done(true, 0);
  }

  // Entries that are there and not here.
  void Bring(int layer, const kv::HeadRange& range) {
    CopyKv(*there_, *attempt_->spec.sequence, layer,
           {.head = range.head, .begin = range.begin, .end = std::min(range.end, held_)});
  }

  // Makes the step that was handed over last; false if there is none to make.
  bool Answer(base::Duration duration = std::chrono::milliseconds(2)) {
    if (answered_ == attempt_->splits.size()) return false;
    const FakeAttempt::SplitCall& call = attempt_->splits[answered_++];
    const auto before = static_cast<int64_t>(call.before.size());
    EXPECT_LE(call.position - before, held_);
    std::vector<float> hidden = call.hidden;
    hidden.resize(static_cast<size_t>(executor_->config().hidden_dim));
    for (; held_ <= call.position; ++held_) {
      const bool last = held_ == call.position;
      executor::DecodeSlot slot;
      slot.sequence = there_.get();
      slot.position = held_;
      slot.token =
          last ? call.token : call.before[static_cast<size_t>(before - call.position + held_)];
      slot.layer_begin = last ? call.layer : 0;
      slot.hidden = hidden;
      std::vector<float> logits(256);
      slot.logits = logits;
      executor::SlotRead read;
      if (attempt_->spec.mode == Mode::kSmartGen) slot.read = &read;
      const auto run = executor_->StartStep({&slot, 1});
      EXPECT_TRUE(run.ok() && (*run)->Advance().ok());
    }
    if (brings_born_) {
      for (int layer = 0; layer < layers_; ++layer) {
        Bring(layer, {.head = -1, .begin = 0, .end = held_});
      }
    }
    const auto& link = attempt_->now.link;
    const double trip =
        link.bytes_per_second > 0 ? 8 / link.bytes_per_second + link.rtt_seconds : 0;
    clock_.Advance(duration + base::FromSeconds(trip));
    const auto bytes = std::as_bytes(std::span<const float>(hidden));
    attempt_->events.on_reply(static_cast<uint64_t>(call.position), call.layer,
                              {bytes.begin(), bytes.end()});
    return true;
  }

  // Until `count` tokens have come.
  void RunTo(size_t count) {
    for (int i = 0; i < 1000 && listener_->tokens.size() < count; ++i) {
      engine_->Step();
      Answer();
    }
    ASSERT_GE(listener_->tokens.size(), count);
  }
  void Link(double bytes_per_second, double round_trip = 0) {
    attempt_->now.link = {.bytes_per_second = bytes_per_second, .rtt_seconds = round_trip};
  }
  GenerateSpec SmartGen(Handover handover = Handover::kAuto) {
    GenerateSpec spec = Spec(40, 24, Mode::kSmartGen);
    spec.transfer.selector = "dense";
    spec.transfer.selection_budget = 1;
    spec.transfer.handover = handover;
    return spec;
  }
  void ExpectTokens() {
    EXPECT_TRUE(listener_->finished);
    EXPECT_EQ(listener_->tokens, expected_);
    EXPECT_EQ(listener_->stats.fallback_reason, "");
  }
  int64_t Steps(StepKind kind) {
    const auto it = listener_->stats.step_kinds.find(kind);
    return it == listener_->stats.step_kinds.end() ? 0 : it->second;
  }

  std::shared_ptr<FakeListener> listener_;
  std::shared_ptr<FakeAttempt> attempt_;
  std::unique_ptr<kv::KvSequence> there_;
  std::vector<int32_t> expected_;
  int64_t held_ = 0;  // tokens whose KV is there
  size_t answered_ = 0;
  int fetches_ = 0;
  bool brings_born_ = false;  // with an answer, all KV that is there
};

TEST_F(ChoiceTest, OverAThinLinkStepsAreHandedOver) {
  MakeSlow();
  Begin(SmartGen());
  Link(1000);  // 40 tokens of 128 bytes: 5 s
  RunTo(24);
  ExpectTokens();
  EXPECT_EQ(Steps(StepKind::kSplit), 23);
  EXPECT_EQ(fetches_, 0);
  EXPECT_EQ(metrics_->GetCounter("step_choices_total", {{"kind", "split"}}).value(), 23);
}

TEST_F(ChoiceTest, OverAFastLinkStepsFetch) {
  MakeSlow();
  Begin(SmartGen());
  Link(1e9);
  RunTo(24);
  ExpectTokens();
  EXPECT_EQ(Steps(StepKind::kSplit) + Steps(StepKind::kFetch), 23);
  EXPECT_GE(Steps(StepKind::kFetch), 22);
  EXPECT_GT(fetches_, 0);
}

TEST_F(ChoiceTest, TheRequestCanInsistOnHandingOver) {
  MakeSlow();
  Begin(SmartGen(Handover::kSplit));
  Link(1e9);
  RunTo(24);
  ExpectTokens();
  EXPECT_EQ(Steps(StepKind::kSplit), 23);
}

TEST_F(ChoiceTest, TheRequestCanInsistOnFetching) {
  MakeSlow();
  Begin(SmartGen(Handover::kNone));
  Link(1000);
  RunTo(24);
  ExpectTokens();
  EXPECT_EQ(Steps(StepKind::kFetch), 23);
  EXPECT_TRUE(attempt_->splits.empty());
}

// Steps read from the ninth token on, so that never all is here and steps may go back.
class SelectingTest : public ChoiceTest {
 protected:
  void BeginSelecting(Handover handover) {
    executor_options_.read_from = 8;
    MakeSlow();
    Begin(SmartGen(handover));
  }
  // By handing over alone, on a link that is not known.
  std::vector<int32_t> AllHandedOver() {
    BeginSelecting(Handover::kSplit);
    RunTo(24);
    EXPECT_TRUE(listener_->finished);
    there_.reset();
    cache_->Clear();
    answered_ = 0;
    return listener_->tokens;
  }
};

TEST_F(SelectingTest, StepsGoOverAndBackAsTheLinkChanges) {
  const std::vector<int32_t> expected = AllHandedOver();
  Begin(SmartGen());
  Link(1000);
  RunTo(6);
  EXPECT_EQ(fetches_, 0);
  const size_t splits = attempt_->splits.size();
  Link(1e9);
  RunTo(12);
  EXPECT_LE(attempt_->splits.size(), splits + 1);  // one may be on its way
  EXPECT_GT(fetches_, 0);
  // What steps miss became little; now it shall be much.
  requests_.back()->outlook.missed_bytes = 1e6;
  Link(1000);
  RunTo(24);
  EXPECT_TRUE(listener_->finished);
  EXPECT_EQ(listener_->tokens, expected);
  EXPECT_GT(attempt_->splits.size(), splits + 1);
  // The first of those names the tokens that were made here.
  const auto& call = attempt_->splits[splits + (attempt_->splits[splits].before.empty() ? 1 : 0)];
  ASSERT_FALSE(call.before.empty());
  const size_t last = static_cast<size_t>(call.position) - 40 - 1;
  EXPECT_EQ(call.before.back(), listener_->tokens[last]);
  EXPECT_EQ(listener_->stats.fallback_reason, "");
}

TEST_F(ChoiceTest, BaselinesFetchWhateverItCosts) {
  MakeSlow();
  GenerateSpec spec = SmartGen();
  spec.mode = Mode::kPartial;
  Begin(std::move(spec));
  Link(1000);
  RunTo(24);
  ExpectTokens();
  EXPECT_EQ(Steps(StepKind::kFetch), 23);
}

TEST_F(ChoiceTest, ExactWithoutHandoverWaitsForAllKv) {
  MakeSlow();
  GenerateSpec spec = Spec(40, 24, Mode::kExact);
  spec.transfer.handover = Handover::kNone;
  Begin(std::move(spec));
  Link(1000);
  for (int i = 0; i < 5; ++i) engine_->Step();
  EXPECT_EQ(listener_->tokens.size(), 1u);
  EXPECT_TRUE(attempt_->splits.empty());
  for (int layer = 0; layer < executor_options_.layers; ++layer) {
    Bring(layer, {.head = -1, .begin = 0, .end = 40});
  }
  attempt_->events.on_complete();
  RunTo(24);
  ExpectTokens();
  EXPECT_EQ(Steps(StepKind::kWait), 1);
}

// The engine sees it in the pages; the channel's thread may be late to say so.
TEST_F(ChoiceTest, KvThatIsHereCountsAsHereBeforeAnybodySaysSo) {
  MakeSlow();
  Begin(Spec(40, 24, Mode::kExact));
  Link(1000);
  RunTo(3);
  for (int layer = 0; layer < executor_options_.layers; ++layer) {
    Bring(layer, {.head = -1, .begin = 0, .end = held_});
  }
  clock_.Advance(std::chrono::milliseconds(500));
  RunTo(24);
  ExpectTokens();
  EXPECT_GE(listener_->stats.all_local_seconds, 0.5);
}

// Prompts have the other side's time: it says so, and nobody asks again or gives up.
TEST_F(ChoiceTest, AStepThatWaitsForItsTurnThereIsNotLost) {
  MakeSlow();
  Begin(SmartGen(Handover::kSplit));
  Link(1000);
  RunTo(3);
  engine_->Step();
  const size_t asked = attempt_->splits.size();
  ASSERT_EQ(asked, answered_ + 1);
  for (int i = 0; i < 40; ++i) {
    clock_.Advance(std::chrono::milliseconds(500));
    attempt_->events.on_deferred();
    engine_->Step();
  }
  EXPECT_EQ(attempt_->splits.size(), asked);
  EXPECT_EQ(metrics_->GetCounter("handover_retries_total").value(), 0);
  RunTo(24);
  ExpectTokens();
}

// All is sent and has come, so nothing moves while the step waits: that is no stall.
TEST_F(ChoiceTest, AStepThatWaitsForItsTurnOutlastsTheTransfer) {
  MakeSlow();
  GenerateSpec spec = Spec(40, 24, Mode::kExact);
  spec.transfer.handover = Handover::kSplit;
  Begin(std::move(spec));
  Link(1000);
  RunTo(3);
  engine_->Step();
  ASSERT_EQ(attempt_->splits.size(), answered_ + 1);
  for (int layer = 0; layer < layers_; ++layer) {
    Bring(layer, {.head = -1, .begin = 0, .end = held_});
  }
  attempt_->events.on_complete();
  attempt_->events.on_sent();
  for (int i = 0; i < 40; ++i) {
    clock_.Advance(std::chrono::milliseconds(500));
    attempt_->events.on_deferred();
    engine_->Step();
  }
  EXPECT_FALSE(attempt_->ended);
  EXPECT_EQ(attempt_->fetches, 0);
  EXPECT_EQ(Fallbacks("transfer_stalled"), 0);
  brings_born_ = true;
  RunTo(24);
  ExpectTokens();
}

// The link is idle then, and what has come need not be waited for later.
TEST_F(ChoiceTest, TheRestFollowsWhileAStepWaitsForItsTurn) {
  MakeSlow();
  GenerateSpec spec = SmartGen(Handover::kSplit);
  spec.prompt = Spec(80, 1).prompt;
  spec.transfer.speculative_ratio = 0.1;
  Begin(std::move(spec));
  RunTo(3);
  engine_->Step();
  for (int i = 0; i < 5; ++i) {
    const int64_t given = attempt_->credit;
    attempt_->now.path_bytes[transfer::Path::kSpeculative] = static_cast<uint64_t>(given);
    clock_.Advance(std::chrono::milliseconds(500));
    attempt_->events.on_deferred();
    engine_->Step();
    EXPECT_GT(attempt_->credit, given);
  }
}

// Lossless first; where the prefill side has no time for handed-over steps, what the request
// allows.
TEST_F(ChoiceTest, AutoSelectsWhereStepsCannotBeHandedOver) {
  MakeSlow();
  const auto mode = [this](const std::string& selection) {
    GenerateSpec spec = Spec(40, 4, Mode::kAuto, static_cast<int>(directory_.attempts.size()) + 2);
    spec.transfer.selection = selection;
    Submit(std::move(spec));
    engine_->Step();
    return directory_.attempts.back()->spec.mode;
  };
  EXPECT_EQ(mode("when_needed"), Mode::kExact);
  EXPECT_EQ(mode("never"), Mode::kExact);
  EXPECT_EQ(mode("always"), Mode::kSmartGen);
  directory_.attempts[0]->events.on_deferred();
  engine_->Step();
  EXPECT_EQ(mode("when_needed"), Mode::kSmartGen);
  EXPECT_EQ(mode("never"), Mode::kFull);
  clock_.Advance(std::chrono::seconds(11));
  EXPECT_EQ(mode("when_needed"), Mode::kExact);
}

// The rest follows with each step; the link carries an eighth of the KV in a step's time.
TEST_F(ChoiceTest, WithEachStepARatioOfTheKvMayFollowUntilAllIsHere) {
  MakeSlow();
  GenerateSpec spec = SmartGen(Handover::kSplit);
  spec.prompt = Spec(80, 1).prompt;
  spec.max_tokens = 24;
  spec.transfer.speculative_ratio = 0.1;
  Begin(std::move(spec));
  const int64_t all = 80 * pool_->layout().TokenBytes();
  int64_t came = 0;
  int64_t tokens = 0;
  while (came < all) {
    ASSERT_LT(listener_->tokens.size(), 13u);
    RunTo(listener_->tokens.size() + 1);
    // Never more than a step's worth ahead of what came.
    EXPECT_LE(attempt_->credit - came, all / 10 + 64);  // and a token of a layer
    came += std::min(attempt_->credit - came, all / 8);
    attempt_->now.path_bytes[transfer::Path::kSpeculative] = static_cast<uint64_t>(came);
    const int64_t until = std::min<int64_t>(came * 80 / all, 80);
    for (int layer = 0; layer < layers_; ++layer) {
      Bring(layer, {.head = -1, .begin = tokens, .end = until});
    }
    tokens = until;
  }
  EXPECT_LE(listener_->tokens.size(), 12u);  // the first, and ten steps with a credit each
  attempt_->events.on_complete();
  brings_born_ = true;
  RunTo(24);
  ExpectTokens();
  EXPECT_TRUE(attempt_->ended);  // released, long before the request's end
  EXPECT_LE(Steps(StepKind::kSplit), 12);
  const std::string text = metrics_->Serialize();
  EXPECT_THAT(text, ::testing::HasSubstr("smartgen_speculative_iterations_count 1"));
}

// All of a credit's messages may be lost, and a credit that nothing ever answers would be the last.
TEST_F(ChoiceTest, CreditForMessagesThatWereLostIsGivenAgain) {
  MakeSlow();
  GenerateSpec spec = SmartGen(Handover::kSplit);
  spec.transfer.speculative_ratio = 0.1;
  Begin(std::move(spec));
  RunTo(3);
  const int64_t step = attempt_->credit;
  EXPECT_GT(step, 0);
  RunTo(5);
  EXPECT_EQ(attempt_->credit, step) << "nothing came: it may be on its way";
  // A part of it comes; the other part is lost.
  attempt_->now.path_bytes[transfer::Path::kSpeculative] = static_cast<uint64_t>(step / 2);
  RunTo(7);
  EXPECT_EQ(attempt_->credit, step + step / 2);
  clock_.Advance(options_.stall - std::chrono::milliseconds(100));
  RunTo(9);
  EXPECT_EQ(attempt_->credit, step + step / 2);
  EXPECT_EQ(Fallbacks("credit_lost"), 0);
  clock_.Advance(std::chrono::milliseconds(200));
  RunTo(11);
  EXPECT_EQ(attempt_->credit, 2 * step + step / 2);
  EXPECT_EQ(Fallbacks("credit_lost"), 1);
  // Damaged bytes are fetched on demand: the link has carried them all the same.
  attempt_->now.damaged_rest_bytes = static_cast<uint64_t>(step / 4);
  RunTo(12);
  EXPECT_EQ(attempt_->credit, 2 * step + step / 2 + step / 4);
  // It has the lowest lane: while others' bytes come it may be waiting behind them.
  for (int i = 0; i < 9; ++i) {
    clock_.Advance(options_.stall);
    ++attempt_->now.pairing_bytes;
    RunTo(13 + static_cast<size_t>(i));
  }
  EXPECT_EQ(Fallbacks("credit_lost"), 1);
}

// Steps fetch what they need, so that nobody would ask for what was lost and is not needed.
TEST_F(ChoiceTest, WhileStepsFetchWhatWasLostOfTheRestIsAskedForAndFailsNothing) {
  MakeSlow();
  executor_options_.read_from = 20;  // steps read the second half
  Make();
  GenerateSpec spec = SmartGen(Handover::kNone);
  spec.max_tokens = 200;
  Begin(std::move(spec));
  RunTo(3);
  clock_.Advance(2 * options_.stall);
  engine_->Step();
  EXPECT_EQ(attempt_->fetches, 0) << "it was not sent";
  attempt_->events.on_sent();
  engine_->Step();
  for (int i = 0; i < 10; ++i) {
    clock_.Advance(2 * options_.stall);
    engine_->Step();
  }
  EXPECT_EQ(attempt_->fetches, options_.max_fetches);
  EXPECT_FALSE(attempt_->ended);
  EXPECT_EQ(Fallbacks("transfer_stalled"), 0);
}

class MetadataTest : public ChoiceTest {
 protected:
  // Four layers: the first two are dense and have no metadata.
  void BeginQuest(Handover handover, int64_t max_tokens) {
    layers_ = 4;
    MakeSlow();
    GenerateSpec spec = Spec(40, max_tokens, Mode::kSmartGen);
    spec.transfer.selection_budget = 1;
    spec.transfer.handover = handover;
    Begin(std::move(spec));
  }
  void SendMetadata() {
    const auto selector = *selectors_->Get("quest", 1);
    selector::MetadataStore store(&selector->metadata(), 1024);
    for (int layer = 2; layer < 4; ++layer) {
      ASSERT_TRUE(selector->Extend(layer, *there_, 0, 40, store).ok());
      std::vector<std::byte> bytes;
      ASSERT_TRUE(store.Export(layer, 0, 40, bytes).ok());
      attempt_->events.on_metadata(layer, 0, 40, false, std::move(bytes));
    }
  }
};

TEST_F(MetadataTest, WhatDoesNotComeIsAskedForLessAndLessOftenAndNotForEver) {
  BeginQuest(Handover::kAuto, 400);
  std::vector<double> asked;
  const base::TimePoint begin = clock_.Now();
  for (int i = 0; i < 1000 && !attempt_->ended; ++i) {
    engine_->Step();
    Answer(std::chrono::milliseconds(50));
    if (attempt_->metadata_asked.size() > asked.size()) {
      asked.push_back(base::ToSeconds(clock_.Now() - begin));
    }
  }
  // After one stall, then two, then four; given up after eight more.
  ASSERT_EQ(asked.size(), 3u);
  EXPECT_NEAR(asked[0], 1, 0.2);
  EXPECT_NEAR(asked[1], 3, 0.3);
  EXPECT_NEAR(asked[2], 7, 0.4);
  EXPECT_NEAR(base::ToSeconds(clock_.Now() - begin), 15, 0.5);
  EXPECT_THAT(attempt_->metadata_asked[0], ::testing::ElementsAre(transfer::LayerRange{2, 0, 40},
                                                                  transfer::LayerRange{3, 0, 40}));
  EXPECT_EQ(Fallbacks("metadata_missing"), 3);
  EXPECT_EQ(Fallbacks("transfer_stalled"), 1);
}

TEST_F(MetadataTest, OnceItIsHereStepsSelect) {
  BeginQuest(Handover::kNone, 24);
  for (int i = 0; i < 100 && attempt_->metadata_asked.empty(); ++i) {
    engine_->Step();
    clock_.Advance(std::chrono::milliseconds(50));
  }
  ASSERT_EQ(attempt_->metadata_asked.size(), 1u);
  EXPECT_EQ(listener_->tokens.size(), 1u);
  SendMetadata();
  SendMetadata();  // and once more, in case it was only late
  RunTo(24);
  ExpectTokens();
  EXPECT_EQ(Steps(StepKind::kFetch), 23);
}

// Keys of tokens made there, in a queue behind others on a thin link, are on their way for seconds.
TEST_F(MetadataTest, KeysOfTokensMadeThereAreAskedForAgainOnlyAfterTheTimeTheyTake) {
  layers_ = 4;
  MakeSlow();
  GenerateSpec spec = Spec(40, 24, Mode::kPartial);
  spec.transfer.selection_budget = 1;
  Begin(std::move(spec));
  RunTo(6);  // without metadata: handed over
  attempt_->on_fetch = [this](int, std::span<const kv::HeadRange>) { ++fetches_; };
  const int64_t owed = 5 * pool_->layout().TokenBytes();
  Link(static_cast<double>(owed) / 5);
  SendMetadata();
  engine_->Step();
  EXPECT_GT(fetches_, 0);
  for (int i = 0; i < 5; ++i) {
    clock_.Advance(std::chrono::milliseconds(1100));
    engine_->Step();
    EXPECT_TRUE(attempt_->ranges_asked.empty()) << i;
  }
  // One of them comes: the others may.
  attempt_->now.path_bytes[transfer::Path::kOnDemand] += 64;
  engine_->Step();
  clock_.Advance(std::chrono::milliseconds(5500));
  engine_->Step();
  EXPECT_TRUE(attempt_->ranges_asked.empty());
  clock_.Advance(std::chrono::milliseconds(1000));
  engine_->Step();
  EXPECT_EQ(attempt_->ranges_asked.size(), 1u);
}

TEST_F(ChoiceTest, AStepThatIsHandedOverGivesTheLinkItsCredit) {
  MakeSlow();
  Begin(SmartGen());
  Link(1000);
  RunTo(3);
  EXPECT_GT(attempt_->credit, 0);
}

}  // namespace
}  // namespace smartgen::decode_server
