#include "prefill_server/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace smartgen::prefill_server {
namespace {

using transfer::Mode;

kv::KvLayout Layout(int layers) {
  kv::KvLayout layout;
  layout.layers.assign(static_cast<size_t>(layers), {.kv_heads = 2, .head_dim = 16, .window = 0});
  layout.token_capacity = 8192;
  return layout;
}

TransferPlanner Planner(int layers) {
  return TransferPlanner({}, Layout(layers), {transfer::Profile::Prior(layers)});
}

// T_p = 1 s and T_t = 4 s for a prompt of `tokens`, computed in one chunk.
TransferPlanner::Input FourToOne(const TransferPlanner& planner, int layers, int64_t tokens,
                                 Mode mode) {
  TransferPlanner::Input input;
  input.tokens = tokens;
  input.chunk_tokens = tokens;
  input.mode = mode;
  planner.Learn(tokens, 0, 1.0);
  input.link.bytes_per_second = static_cast<double>(tokens * Layout(layers).TokenBytes()) / 4;
  return input;
}

TEST(PrefillSpeedTest, KnowsNothingBeforeTheFirstPrompt) {
  PrefillSpeed speed;
  EXPECT_EQ(speed.Predict(1000), 0);
  speed.Learn(0, 1);
  speed.Learn(100, 0);
  EXPECT_EQ(speed.Predict(1000), 0);
}

TEST(PrefillSpeedTest, PredictsFromTheNearestLengthAndFollowsChanges) {
  PrefillSpeed speed;
  speed.Learn(1000, 2);
  EXPECT_DOUBLE_EQ(speed.Predict(1000), 2);
  EXPECT_DOUBLE_EQ(speed.Predict(500), 1);
  for (int i = 0; i < 30; ++i) speed.Learn(1000, 4);
  EXPECT_NEAR(speed.Predict(1000), 4, 0.01);
}

// 1 ms a token, after any prefix.
std::unique_ptr<transfer::CostModel> Calibrated() {
  return *transfer::CostModel::Create({.prefill = {{10, 0, 0.01, false}, {1000, 0, 1, false}}});
}

TEST(PlannerTest, ACalibrationIsBelievedFromTheFirstPromptOnAndCorrected) {
  const TransferPlanner planner({}, Layout(4), {transfer::Profile::Prior(4)}, Calibrated());
  EXPECT_NEAR(planner.PrefillSeconds(300, 100), 0.3, 1e-9);
  TransferPlanner::Input input;
  input.tokens = 400;
  input.prefill_cached = 100;
  EXPECT_NEAR(planner.Plan(input).prefill_seconds, 0.3, 1e-9);
  for (int i = 0; i < 40; ++i) planner.Learn(300, 100, 0.6);
  EXPECT_NEAR(planner.PrefillSeconds(600, 0), 1.2, 0.01);
}

TEST(PlannerTest, WithoutACalibrationPromptsThatWereComputedTell) {
  const TransferPlanner planner = Planner(4);
  EXPECT_EQ(planner.PrefillSeconds(300, 0), 0);
  planner.Learn(300, 0, 0.6);
  EXPECT_NEAR(planner.PrefillSeconds(300, 100), 0.6, 1e-9);
}

TEST(PlannerTest, BudgetIsThePapers) {
  // smartgen.md, section 2: L = 32, M = 1024, T_p = 1, T_t = 4 -> 7936.
  const TransferPlanner planner = Planner(32);
  const DeliveryPlan plan = planner.Plan(FourToOne(planner, 32, 4096, Mode::kSmartGen));
  EXPECT_EQ(plan.total_blocks, 32 * 1024);
  EXPECT_EQ(plan.budget_blocks, 7936);
  EXPECT_EQ(plan.pushed_blocks, 7936);
  EXPECT_TRUE(plan.deliver_rest);
  EXPECT_TRUE(plan.credits);
}

TEST(PlannerTest, DenseLayersGoThoughTheyExceedTheBudgetAndSoMuchIsTold) {
  // K_r = 3 * 1024 / 4 * 2 / 3, less than the two dense layers.
  const TransferPlanner planner = Planner(3);
  const DeliveryPlan plan = planner.Plan(FourToOne(planner, 3, 4096, Mode::kSmartGen));
  EXPECT_EQ(plan.budget_blocks, 512);
  EXPECT_EQ(plan.pushed_blocks, 2 * 1024);
  EXPECT_EQ(plan.dense_overrun_blocks, 2 * 1024 - 512);
  const TransferPlanner roomy = Planner(32);
  EXPECT_EQ(roomy.Plan(FourToOne(roomy, 32, 4096, Mode::kSmartGen)).dense_overrun_blocks, 0);
}

TEST(PlannerTest, MetadataStandsInsideTheBudget) {
  const TransferPlanner planner = Planner(32);
  auto input = FourToOne(planner, 32, 4096, Mode::kSmartGen);
  // A sixteenth of the KV.
  input.metadata_bytes = 4096 * Layout(32).TokenBytes() / 16;
  EXPECT_EQ(planner.Plan(input).pushed_blocks, 7936 - 32 * 1024 / 16);
}

TEST(PlannerTest, SharedLinksGiveEachItsPart) {
  const TransferPlanner planner = Planner(32);
  auto input = FourToOne(planner, 32, 4096, Mode::kSmartGen);
  input.sharing = 2;
  EXPECT_EQ(planner.Plan(input).budget_blocks, 7936 / 2);
}

TEST(PlannerTest, ExactAndFullSendEverythingLayerByLayer) {
  const TransferPlanner planner = Planner(8);
  for (const Mode mode : {Mode::kFull, Mode::kExact}) {
    const DeliveryPlan plan = planner.Plan(FourToOne(planner, 8, 4096, mode));
    EXPECT_TRUE(plan.order.empty());
    EXPECT_EQ(plan.pushed_blocks, -1);
    EXPECT_FALSE(plan.credits);
    EXPECT_DOUBLE_EQ(plan.prefill_seconds, 1);
    EXPECT_DOUBLE_EQ(plan.transfer_seconds, 4);
  }
}

TEST(PlannerTest, PartialPushesTheFirstBlocksOfEachLayerAndNothingMore) {
  const TransferPlanner planner = Planner(8);
  const DeliveryPlan plan = planner.Plan(FourToOne(planner, 8, 4096, Mode::kPartial));
  EXPECT_FALSE(plan.deliver_rest);
  const int64_t dense = 2 * 1024;
  // K_r = 8 * 1024 / 4 * 7 / 8.
  ASSERT_EQ(plan.pushed_blocks, std::max<int64_t>(1792, dense));
  for (int64_t i = dense; i + 1 < static_cast<int64_t>(plan.order.size()); ++i) {
    EXPECT_LE(plan.order[static_cast<size_t>(i)].block,
              plan.order[static_cast<size_t>(i) + 1].block);
  }
}

TEST(PlannerTest, RandomKeepsTheDenseLayersFirstAndEveryBlockOnce) {
  const TransferPlanner planner = Planner(4);
  auto input = FourToOne(planner, 4, 2048, Mode::kRandom);
  input.seed = 7;
  const DeliveryPlan plan = planner.Plan(input);
  std::set<std::pair<int, int>> seen;
  for (size_t i = 0; i < plan.order.size(); ++i) {
    EXPECT_EQ(plan.order[i].layer < 2, i < 2048);
    seen.insert({plan.order[i].layer, plan.order[i].block});
  }
  EXPECT_EQ(seen.size(), 4u * 1024);
  input.seed = 8;
  EXPECT_NE(planner.Plan(input).order, plan.order);
}

TEST(PlannerTest, ALinkNobodyHasMeasuredGetsAStatedShare) {
  const TransferPlanner planner = Planner(32);
  TransferPlanner::Input input;
  input.tokens = 4096;
  input.mode = Mode::kSmartGen;
  const DeliveryPlan plan = planner.Plan(input);
  EXPECT_EQ(plan.budget_blocks, static_cast<int64_t>(0.2 * 32 * 1024));
  EXPECT_EQ(plan.prefill_seconds, 0);
  EXPECT_EQ(plan.transfer_seconds, 0);
}

TEST(PlannerTest, WithoutSpeculationNothingFollows) {
  const TransferPlanner planner = Planner(8);
  auto input = FourToOne(planner, 8, 4096, Mode::kSmartGen);
  input.transfer.speculation = false;
  EXPECT_FALSE(planner.Plan(input).deliver_rest);
}

TEST(TransferPlannerTest, ARequestsPlanFollowsTheProfileOfItsSelector) {
  // Two layers that are always sent and one whose important block is another for each selector.
  const auto profile = [](const std::string& selector, int block) {
    std::vector<transfer::Profile::Row> rows(3);
    rows[2][block] = 1;
    return *transfer::Profile::Create(std::move(rows), {.selector = selector});
  };
  const TransferPlanner planner({}, Layout(3), {profile("quest", 10), profile("infinigen", 20)});
  auto input = FourToOne(planner, 3, 2048, Mode::kSmartGen);
  const auto first_of_layer_two = [&](const std::string& selector) {
    input.transfer.selector = selector;
    return planner.Plan(input).order[2 * transfer::kBlocks].block;
  };
  EXPECT_EQ(first_of_layer_two("quest"), 10);
  EXPECT_EQ(first_of_layer_two("infinigen"), 20);
  EXPECT_EQ(first_of_layer_two("hata"), 10);  // none of its own: the first
}

}  // namespace
}  // namespace smartgen::prefill_server
