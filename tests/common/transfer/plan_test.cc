#include "common/transfer/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <set>
#include <utility>

#include "common/transfer/budget.h"
#include "common/transfer/built_in_profiles.h"
#include "tests/fakes/temp_folder.h"

namespace smartgen::transfer {
namespace {

Profile RandomProfile(int layers, uint32_t seed, int distinct_values) {
  std::mt19937 rng(seed);
  std::vector<Profile::Row> rows(layers);
  for (auto& row : rows) {
    for (float& value : row) value = static_cast<float>(rng() % distinct_values) / distinct_values;
  }
  return *Profile::Create(std::move(rows), {.model_fingerprint = "f", .model_name = "m"});
}

TEST(BlocksTest, CoverEveryTokenOnceAtAnyLength) {
  for (int64_t tokens : {1, 2, 15, 1000, 1023, 1024, 1025, 4096, 16000}) {
    int64_t next = 0;
    for (int block = 0; block < kBlocks; ++block) {
      const TokenRange range = BlockTokens(block, tokens);
      ASSERT_EQ(range.begin, next);
      ASSERT_GE(range.end, range.begin);
      for (int64_t t = range.begin; t < range.end; ++t) ASSERT_EQ(BlockOf(t, tokens), block);
      next = range.end;
    }
    EXPECT_EQ(next, tokens);
  }
}

TEST(BudgetTest, EqualsThePapersEquation) {
  // 32 * 1024 * (1 / 4) * (31 / 32)
  const Budget budget = ComputeBudget({.layers = 32,
                                       .blocks_per_layer = 1024,
                                       .prefill_seconds = 1.0,
                                       .transfer_seconds = 4.0,
                                       .first_ready_share = 1.0 / 32});
  EXPECT_EQ(budget.total_blocks, 7936);
  EXPECT_EQ(budget.push_blocks, 7936);
  EXPECT_FALSE(budget.full);
  EXPECT_EQ(budget.dense_overrun_blocks, 0);
}

TEST(BudgetTest, MetadataComesOutOfTheBudget) {
  const Budget budget = ComputeBudget({.layers = 32,
                                       .blocks_per_layer = 1024,
                                       .prefill_seconds = 1.0,
                                       .transfer_seconds = 4.0,
                                       .first_ready_share = 1.0 / 32,
                                       .metadata_blocks = 2048});
  EXPECT_EQ(budget.total_blocks, 7936);
  EXPECT_EQ(budget.push_blocks, 7936 - 2048);
}

TEST(BudgetTest, AFastLinkCarriesAll) {
  BudgetInput input{.layers = 32,
                    .blocks_per_layer = 1024,
                    .prefill_seconds = 1.0,
                    .transfer_seconds = 31.0 / 32,
                    .first_ready_share = 1.0 / 32};
  EXPECT_TRUE(ComputeBudget(input).full);
  EXPECT_EQ(ComputeBudget(input).total_blocks, 32 * 1024);
  input.transfer_seconds = 1.0;
  EXPECT_FALSE(ComputeBudget(input).full);
  input.transfer_seconds = 0;
  EXPECT_TRUE(ComputeBudget(input).full);
}

TEST(BudgetTest, ASlowLinkOverrunsByTheDenseLayers) {
  const Budget budget = ComputeBudget({.layers = 30,
                                       .blocks_per_layer = 1024,
                                       .prefill_seconds = 1.0,
                                       .transfer_seconds = 20.0,
                                       .first_ready_share = 0});
  EXPECT_EQ(budget.total_blocks, 1536);  // 30 * 1024 / 20
  EXPECT_EQ(budget.dense_overrun_blocks, 2 * 1024 - 1536);
}

TEST(BudgetTest, NoPrefillTimeNoBudget) {
  EXPECT_EQ(
      ComputeBudget({.layers = 2, .blocks_per_layer = 10, .transfer_seconds = 1}).total_blocks, 0);
}

// The plan by brute force: repeatedly the best block that is left.
std::vector<BlockId> BruteForce(const Profile& profile, const PlanInput& input) {
  std::vector<BlockId> order;
  std::set<std::pair<int, int>> taken;
  for (;;) {
    BlockId best{-1, -1};
    for (int l = 0; l < profile.layers(); ++l) {
      for (int b = 0; b < kBlocks; ++b) {
        if (taken.count({l, b}) || SentTokens({l, b}, input).empty()) continue;
        if (best.layer < 0 ||
            profile.Importance(l, b) > profile.Importance(best.layer, best.block)) {
          best = {l, b};
        }
      }
    }
    if (best.layer < 0) return order;
    taken.insert({best.layer, best.block});
    order.push_back(best);
  }
}

TEST(PlanTest, EqualsBruteForceAlsoWithTies) {
  const Profile profile = RandomProfile(3, 7, 5);
  for (int64_t tokens : {40, 700}) {
    const PlanInput input{.tokens = tokens, .decode_cached = 16, .push_blocks = 100};
    EXPECT_EQ(MakePlan(profile, input).order, BruteForce(profile, input)) << tokens;
  }
}

TEST(PlanTest, DenseLayersComeFirstAndAlwaysGo) {
  const PlanInput input{.tokens = 2048, .push_blocks = 5};
  const TransferPlan plan = MakePlan(RandomProfile(4, 1, 1000), input);
  EXPECT_EQ(plan.pushed, 2 * kBlocks);
  for (int64_t i = 0; i < plan.pushed; ++i) EXPECT_LT(plan.order[i].layer, kDenseLayers);
}

TEST(PlanTest, SendsEachTokenThatTheDecodeSideLacksOnce) {
  const PlanInput input{
      .tokens = 3000, .decode_cached = 1008, .windows = {0, 0, 512}, .push_blocks = 1 << 20};
  const TransferPlan plan = MakePlan(RandomProfile(3, 2, 100), input);
  std::vector<std::set<int64_t>> tokens(3);
  for (const BlockId& id : plan.order) {
    const TokenRange range = SentTokens(id, input);
    for (int64_t t = range.begin; t < range.end; ++t) {
      EXPECT_TRUE(tokens[id.layer].insert(t).second);
    }
  }
  EXPECT_EQ(tokens[0].size(), 3000u - 1008);
  EXPECT_EQ(*tokens[0].begin(), 1008);
  EXPECT_EQ(tokens[2].size(), 511u);  // positions the next token sees, itself aside
  EXPECT_EQ(*tokens[2].begin(), 3000 - 511);
}

TEST(PlanTest, AProfileMadeAt4KServes16KByRelativePosition) {
  const Profile profile = RandomProfile(4, 3, 1 << 20);
  const auto at4k = MakePlan(profile, {.tokens = 4096, .push_blocks = 3000});
  const auto at16k = MakePlan(profile, {.tokens = 16384, .push_blocks = 3000});
  EXPECT_EQ(at4k.order, at16k.order);
  EXPECT_EQ(at4k.hash, at16k.hash);
}

TEST(PlanTest, HashTellsPlansApart) {
  const Profile profile = RandomProfile(4, 3, 1 << 20);
  EXPECT_NE(MakePlan(profile, {.tokens = 4096, .push_blocks = 3000}).hash,
            MakePlan(profile, {.tokens = 4096, .push_blocks = 3001}).hash);
}

TEST(PlanTest, TheBaselinesOrderTheSameBlocksDenseLayersFirst) {
  const PlanInput input{
      .tokens = 3000, .decode_cached = 1008, .windows = {0, 0, 512, 0}, .push_blocks = 1};
  const auto sorted = [](std::vector<BlockId> order) {
    std::sort(order.begin(), order.end(), [](const BlockId& a, const BlockId& b) {
      return std::pair(a.layer, a.block) < std::pair(b.layer, b.block);
    });
    return order;
  };
  const TransferPlan plan = MakePlan(RandomProfile(4, 2, 100), input);
  const auto by_position = PositionOrder(4, input);
  const auto at_random = RandomOrder(4, input, 1);
  EXPECT_EQ(sorted(by_position), sorted(plan.order));
  EXPECT_EQ(sorted(at_random), sorted(plan.order));
  EXPECT_EQ(RandomOrder(4, input, 1), at_random);
  EXPECT_NE(RandomOrder(4, input, 2), at_random);
  for (int64_t i = 0; i < plan.pushed; ++i) {
    EXPECT_LT(by_position[i].layer, kDenseLayers);
    EXPECT_LT(at_random[i].layer, kDenseLayers);
  }
  for (size_t i = static_cast<size_t>(plan.pushed) + 1; i < by_position.size(); ++i) {
    EXPECT_GE(by_position[i].block, by_position[i - 1].block);
    EXPECT_GE(at_random[i].layer, kDenseLayers);
  }
}

class ProfileFileTest : public ::testing::Test {
 protected:
  fakes::TempFolder folder_;
  std::string path_ = folder_.path() + "/p.pb";
  void Write(const std::string& bytes) { std::ofstream(path_, std::ios::binary) << bytes; }
  std::string Read() {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

TEST_F(ProfileFileTest, ComesBackAsItWas) {
  const Profile profile = RandomProfile(5, 9, 1000);
  ASSERT_TRUE(profile.Save(path_).ok());
  const auto loaded = Profile::Load(path_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  for (int l = 0; l < 5; ++l) {
    for (int b = 0; b < kBlocks; ++b) {
      ASSERT_EQ(loaded->Importance(l, b), profile.Importance(l, b));
    }
  }
  EXPECT_EQ(loaded->origin().model_fingerprint, "f");
}

TEST_F(ProfileFileTest, IsRefusedForAnotherModelWithBothNamed) {
  const Profile profile = RandomProfile(5, 9, 1000);
  EXPECT_TRUE(profile.CheckFor("f", 5).ok());
  EXPECT_NE(base::MessageOf(profile.CheckFor("g", 5)).find("this model is g"), std::string::npos);
  EXPECT_NE(base::MessageOf(profile.CheckFor("f", 6)).find("has 5 layers, the model has 6"),
            std::string::npos);
  EXPECT_TRUE(Profile::Prior(6).CheckFor("anything", 6).ok());
}

TEST_F(ProfileFileTest, DamagedFilesAreRefused) {
  EXPECT_EQ(Profile::Load(path_ + ".no").status().code(), absl::StatusCode::kNotFound);
  Write("");
  EXPECT_EQ(Profile::Load(path_).status().code(), absl::StatusCode::kInvalidArgument);
  Write("GGUF and other things");
  EXPECT_EQ(Profile::Load(path_).status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(RandomProfile(2, 1, 10).Save(path_).ok());
  const std::string bytes = Read();
  for (size_t cut : {size_t{1}, bytes.size() / 2, bytes.size() - 1}) {
    Write(bytes.substr(0, cut));
    EXPECT_FALSE(Profile::Load(path_).ok()) << cut;
  }
}

TEST(BuiltInProfilesTest, EachIsFoundByTheModelThatItWasMadeFor) {
  for (const std::string_view bytes : BuiltInProfileFiles()) {
    const auto profile = Profile::Parse(bytes, "built in");
    ASSERT_TRUE(profile.ok()) << profile.status();
    const Profile::Origin& origin = profile->origin();
    const auto found = BuiltInProfiles(origin.model_fingerprint, profile->layers());
    EXPECT_EQ(
        std::count_if(found.begin(), found.end(),
                      [&](const Profile& p) { return p.origin().selector == origin.selector; }),
        1)
        << "for each model and selector one";
    EXPECT_TRUE(BuiltInProfiles(origin.model_fingerprint, profile->layers() + 1).empty());
  }
  EXPECT_TRUE(BuiltInProfiles("of no model", 30).empty());
}

TEST(ProfileTest, RefusesWhatIsNoFrequency) {
  std::vector<Profile::Row> rows(2);
  rows[1][5] = -1;
  const auto status = Profile::Create(rows, {}).status();
  EXPECT_NE(base::MessageOf(status).find("layer 1 block 5"), std::string::npos);
}

TEST(ProfileTest, ThePriorPutsSinksAndRecencyBeforeTheMiddle) {
  const Profile prior = Profile::Prior(4);
  EXPECT_TRUE(prior.IsPrior());
  EXPECT_GT(prior.Importance(2, 0), prior.Importance(2, 500));
  EXPECT_GT(prior.Importance(2, 1023), prior.Importance(2, 500));
}

}  // namespace
}  // namespace smartgen::transfer
