// Parts of decode steps on the prefill side.
#include <cstring>

#include "tests/prefill_server/engine_fixture.h"

namespace smartgen::prefill_server {
namespace {

using ::testing::Contains;
using ::testing::StartsWith;

class HandoverTest : public EngineTest {
 protected:
  // A prompt whose KV is held under a lease.
  JobSpec Held(uint64_t id, int tokens) {
    JobSpec spec = Spec(id, tokens);
    spec.mode = transfer::Mode::kExact;
    Submit(spec);
    RunAll();
    link_->calls.clear();
    return spec;
  }
  void RunAll() {
    while (engine_->Step()) {
    }
  }
  // What a whole step gives, computed apart.
  struct Whole {
    std::vector<float> hidden;  // the input of layer `layer`
    std::vector<float> logits;
  };
  Whole Reference(const JobSpec& spec, int32_t token, int layer) {
    kv::KvSequence sequence(pool_.get());
    const auto count = static_cast<int64_t>(spec.tokens.size());
    EXPECT_TRUE(sequence.Reserve(count + 1).ok());
    for (int64_t at = 0; at < count; at += executor_options_.max_prefill_tokens) {
      executor::PrefillChunk chunk;
      chunk.sequence = &sequence;
      chunk.start = at;
      chunk.tokens = std::span<const int32_t>(spec.tokens)
                         .subspan(static_cast<size_t>(at),
                                  static_cast<size_t>(std::min<int64_t>(
                                      executor_options_.max_prefill_tokens, count - at)));
      EXPECT_TRUE(executor_->Prefill(chunk).ok());
    }
    Whole whole;
    whole.hidden.resize(static_cast<size_t>(executor_->config().hidden_dim));
    whole.logits.resize(static_cast<size_t>(executor_->config().vocab_size));
    executor::DecodeSlot slot;
    slot.sequence = &sequence;
    slot.position = count;
    slot.token = token;
    slot.layer_end = layer;
    slot.hidden = whole.hidden;
    if (layer > 0) {
      EXPECT_TRUE(executor_->Decode({&slot, 1}).ok());
    }
    executor::DecodeSlot all;
    all.sequence = &sequence;
    all.position = count;
    all.token = token;
    all.logits = whole.logits;
    EXPECT_TRUE(executor_->Decode({&all, 1}).ok());
    return whole;
  }
  std::vector<float> LogitsOf(const std::vector<std::byte>& answer) {
    std::vector<float> hidden(answer.size() / sizeof(float));
    std::memcpy(hidden.data(), answer.data(), answer.size());
    kv::KvSequence none(pool_.get());
    EXPECT_TRUE(none.Reserve(512).ok());
    std::vector<float> logits(static_cast<size_t>(executor_->config().vocab_size));
    executor::DecodeSlot slot;
    slot.sequence = &none;
    slot.position = 400;
    slot.layer_begin = slot.layer_end = executor_options_.layers;
    slot.hidden = hidden;
    slot.logits = logits;
    EXPECT_TRUE(executor_->Decode({&slot, 1}).ok());
    return logits;
  }
};

TEST_F(HandoverTest, AStepHandedOverAtAnyLayerGivesTheLogitsOfAWholeOne) {
  Make(256);
  for (int layer = 0; layer < 2; ++layer) {
    const JobSpec spec = Held(10 + static_cast<uint64_t>(layer), 40);
    const Whole whole = Reference(spec, 77, layer);
    SplitStep step{spec.id, 40, 77, layer, whole.hidden};
    if (layer == 0) step.hidden.clear();
    engine_->SubmitSplit({step});
    RunAll();
    ASSERT_EQ(link_->answers.size(), static_cast<size_t>(layer) + 1);
    EXPECT_EQ(LogitsOf(link_->answers.back()), whole.logits) << layer;
    // The token's KV goes out before the answer.
    EXPECT_THAT(link_->calls, ::testing::ElementsAre(
                                  fmt::format("born {} layer {} token 40", spec.id.lo, layer),
                                  fmt::format("reply {} step 40 layer {}", spec.id.lo, layer)));
  }
}

TEST_F(HandoverTest, AskingTwiceForAStepGivesTheSameAnswer) {
  Make(256);
  const JobSpec spec = Held(3, 20);
  for (int i = 0; i < 2; ++i) {
    engine_->SubmitSplit({SplitStep{spec.id, 20, 5, 0, {}}});
    RunAll();
  }
  ASSERT_EQ(link_->answers.size(), 2u);
  EXPECT_EQ(link_->answers[0], link_->answers[1]);
}

TEST_F(HandoverTest, TokensThatTheOtherSideMadeAreMadeAnewBeforeTheStep) {
  Make(256);
  const JobSpec spec = Held(4, 20);
  // Steps 20 and 21 were made there; the same three steps handed over give the same last answer.
  engine_->SubmitSplit({SplitStep{spec.id, 22, 7, 0, {}, {5, 6}}});
  RunAll();
  ASSERT_EQ(link_->answers.size(), 1u);
  // KV is born once, where the token was made first.
  EXPECT_THAT(link_->calls,
              ::testing::ElementsAre("born 4 layer 0 token 22", "reply 4 step 22 layer 0"));
  JobSpec other = Spec(5, 20);
  other.mode = transfer::Mode::kExact;
  other.tokens = spec.tokens;
  Submit(other);
  RunAll();
  for (const auto& [position, token] : {std::pair{20, 5}, {21, 6}, {22, 7}}) {
    engine_->SubmitSplit({SplitStep{other.id, position, token, 0, {}, {}}});
    RunAll();
  }
  ASSERT_EQ(link_->answers.size(), 4u);
  EXPECT_EQ(LogitsOf(link_->answers.back()), LogitsOf(link_->answers.front()));
}

TEST_F(HandoverTest, AStepAfterTokensThatWereNeverMadeHereIsRefused) {
  Make(256);
  const JobSpec spec = Held(6, 20);
  engine_->SubmitSplit({SplitStep{spec.id, 22, 7, 0, {}, {6}}});
  RunAll();
  EXPECT_THAT(link_->calls, Contains(StartsWith("aborted 6 split step: position 22")));
  EXPECT_TRUE(link_->answers.empty());
}

TEST_F(HandoverTest, AStepThatMakesNoSenseEndsItsTransferAndNoOther) {
  Make(256);
  const JobSpec good = Held(1, 20);
  const JobSpec bad = Held(2, 20);
  engine_->SubmitSplit({SplitStep{bad.id, 20, 5, 9, {}}, SplitStep{good.id, 20, 5, 0, {}}});
  RunAll();
  EXPECT_THAT(link_->calls, Contains(StartsWith("aborted 2 split step: layer 9 of 2")));
  EXPECT_THAT(link_->calls, Contains("reply 1 step 20 layer 0"));
  EXPECT_EQ(engine_->load().leases, 1);
}

TEST_F(HandoverTest, AStepOfATransferThatIsOverDoesNoHarm) {
  Make();
  const JobSpec spec = Held(1, 20);
  engine_->Release(spec.id, absl::OkStatus());
  link_->calls.clear();
  engine_->SubmitSplit({SplitStep{spec.id, 20, 5, 0, {}}});
  RunAll();
  EXPECT_TRUE(link_->calls.empty());
  EXPECT_EQ(FreeOrCached(), pool_->total_pages());
}

TEST_F(HandoverTest, TheLinkIsToldWhenAnAnswerWillComeOnceThePaceIsKnown) {
  Make(256);
  const JobSpec spec = Held(1, 20);
  // 60 ms for both layers.
  before_ = [&](int) { clock_.Advance(std::chrono::milliseconds(60)); };
  engine_->SubmitSplit({SplitStep{spec.id, 20, 5, 0, {}}});
  RunAll();
  EXPECT_TRUE(link_->expected_replies.empty());
  const base::TimePoint second = clock_.Now();
  engine_->SubmitSplit({SplitStep{spec.id, 21, 5, 0, {}}});
  RunAll();
  ASSERT_EQ(link_->expected_replies.size(), 1u);
  EXPECT_EQ(link_->expected_replies[0].first, spec.id.lo);
  EXPECT_NEAR(base::ToSeconds(link_->expected_replies[0].second - second), 0.06, 1e-6);
  // One layer of two.
  const Whole whole = Reference(spec, 5, 1);
  const base::TimePoint third = clock_.Now();
  engine_->SubmitSplit({SplitStep{spec.id, 22, 5, 1, whole.hidden}});
  RunAll();
  ASSERT_EQ(link_->expected_replies.size(), 2u);
  EXPECT_NEAR(base::ToSeconds(link_->expected_replies[1].second - third), 0.03, 1e-6);
}

TEST_F(HandoverTest, StepsAreMadeBetweenTheLayersOfAPrompt) {
  Make(256);
  const JobSpec held = Held(1, 20);
  std::vector<std::string> order;
  before_ = [&](int layer) {
    order.push_back(layer < 0 ? "step" : fmt::format("layer {}", layer));
    if (layer == 0) engine_->SubmitSplit({SplitStep{held.id, 20, 5, 0, {}}});
  };
  clock_.Advance(std::chrono::seconds(5));  // the share of a quiet time
  Submit(Spec(2, 32));
  RunAll();
  EXPECT_THAT(order, ::testing::ElementsAre("layer 0", "step", "layer 1"));
}

TEST_F(HandoverTest, WhilePromptsWaitStepsTakeNoMoreThanTheirShare) {
  options_.handover_share = 0.2;
  Make(512);
  const JobSpec held = Held(1, 20);
  // Every layer of a prompt and every step takes 100 ms.
  clock_.Advance(std::chrono::seconds(1));
  int steps = 0;
  int layers = 0;
  before_ = [&](int layer) {
    clock_.Advance(std::chrono::milliseconds(100));
    ++(layer < 0 ? steps : layers);
    // There is always another step to make.
    if (layer >= 0) engine_->SubmitSplit({SplitStep{held.id, 20, 5, 0, {}}});
  };
  for (uint64_t id = 2; id < 12; ++id) Submit(Spec(id, 64));
  for (int i = 0; i < 20; ++i) engine_->Step();
  EXPECT_GT(layers, 20);
  EXPECT_GT(steps, 0);
  EXPECT_LE(steps, (layers + steps) * 0.2 + 5);
  EXPECT_GT(metrics_->GetCounter("handover_deferred_total").value(), 0);
}

TEST_F(HandoverTest, AStepThatTookLongIsPaidForInFull) {
  options_.handover_share = 0.2;
  Make(512);
  const JobSpec held = Held(1, 20);
  clock_.Advance(std::chrono::seconds(1));
  int steps = 0;
  int layers = 0;
  before_ = [&](int layer) {
    // 3 s, as a step before which much is made anew: 15 s of layers, 100 ms each.
    clock_.Advance(std::chrono::milliseconds(layer < 0 ? 3000 : 100));
    ++(layer < 0 ? steps : layers);
    if (layer >= 0) engine_->SubmitSplit({SplitStep{held.id, 20, 5, 0, {}}});
  };
  for (uint64_t id = 2; id < 22; ++id) Submit(Spec(id, 64));
  while (layers < 60) engine_->Step();
  EXPECT_EQ(steps, 1);
  // 6 s so far: whoever waits is told so, or would ask again and give up.
  EXPECT_NEAR(
      static_cast<double>(std::count(link_->calls.begin(), link_->calls.end(), "deferred 1")), 12,
      2);
}

TEST_F(HandoverTest, WithoutAShareStepsWaitForEveryPromptAndEachTimeIsCounted) {
  options_.handover_share = 0;
  Make(512);
  const JobSpec held = Held(1, 20);
  std::vector<std::string> order;
  before_ = [&](int layer) {
    order.push_back(layer < 0 ? "step" : fmt::format("layer {}", layer));
    if (layer >= 0) engine_->SubmitSplit({SplitStep{held.id, 20, 5, 0, {}}});
  };
  for (uint64_t id = 2; id < 4; ++id) {
    clock_.Advance(std::chrono::seconds(5));
    Submit(Spec(id, 32));
    RunAll();
  }
  EXPECT_THAT(order,
              ::testing::ElementsAre("layer 0", "layer 1", "step", "layer 0", "layer 1", "step"));
  EXPECT_EQ(metrics_->GetCounter("handover_deferred_total").value(), 2);
}

TEST_F(HandoverTest, StepsThatNoPromptWaitsForCostNothing) {
  options_.handover_share = 0.2;
  Make(256);
  const JobSpec held = Held(1, 20);
  int steps = 0;
  before_ = [&](int layer) {
    if (layer < 0) ++steps;
    clock_.Advance(std::chrono::milliseconds(layer < 0 ? 3000 : 100));
  };
  engine_->SubmitSplit({SplitStep{held.id, 20, 5, 0, {}}});
  RunAll();
  ASSERT_EQ(steps, 1);
  clock_.Advance(std::chrono::seconds(1));
  Submit(Spec(2, 32));
  engine_->SubmitSplit({SplitStep{held.id, 20, 5, 0, {}}});
  RunAll();
  EXPECT_EQ(steps, 2);
  EXPECT_EQ(metrics_->GetCounter("handover_deferred_total").value(), 0);
}

}  // namespace
}  // namespace smartgen::prefill_server
