#include <gtest/gtest.h>

#include <cmath>

#include "common/transfer/plan.h"
#include "tools/profile/selection_counts.h"

namespace smartgen::tools::profile {
namespace {

using transfer::kBlocks;

// The same tokens for both of 2 KV heads.
selector::Selection Selected(std::vector<int32_t> tokens, int64_t length) {
  selector::Selection s;
  s.length = length;
  s.kv_heads = 2;
  s.k = static_cast<int64_t>(tokens.size());
  for (int head = 0; head < 2; ++head) s.index.insert(s.index.end(), tokens.begin(), tokens.end());
  return s;
}

TEST(SelectionCountsTest, AFrequencyIsTheShareOfHeadsAndSteps) {
  SelectionCounts counts(4, 2048);
  counts.Add(3, Selected({0, 7}, 2049));
  counts.Add(3, Selected({7, 9}, 2050));
  selector::Selection one_head = Selected({}, 2051);
  one_head.k = 1;
  one_head.index = {5, 7};  // head 0: token 5, head 1: token 7
  counts.Add(3, one_head);
  EXPECT_EQ(counts.Count(3, 7), 5);
  EXPECT_DOUBLE_EQ(counts.Frequency(3, 7), 5.0 / 6);
  EXPECT_DOUBLE_EQ(counts.Frequency(3, 5), 1.0 / 6);
  EXPECT_DOUBLE_EQ(counts.Frequency(3, 0), 2.0 / 6);
  EXPECT_DOUBLE_EQ(counts.Frequency(2, 7), 0);
}

TEST(SelectionCountsTest, TokensThatWereGeneratedAfterThePromptDoNotCount) {
  SelectionCounts counts(4, 2000);
  counts.Add(2, Selected({1999, 2000, 2001}, 2002));
  EXPECT_EQ(counts.Count(2), 2);  // token 1999, two heads
}

TEST(SelectionCountsTest, ABlocksFrequencyIsTheMeanOverItsTokens) {
  SelectionCounts counts(4, 4096);  // 4 tokens a block
  counts.Add(2, Selected({8, 11}, 4097));
  const auto blocks = counts.BlockFrequencies(2);
  EXPECT_FLOAT_EQ(blocks[2], 0.5f);
  EXPECT_FLOAT_EQ(blocks[1], 0.0f);
}

TEST(SelectionCountsTest, BlocksWithoutTokensHaveNoFrequency) {
  const auto blocks = SelectionCounts(4, 512).BlockFrequencies(2);
  // Block m holds tokens [floor(m / 2), floor((m + 1) / 2)).
  EXPECT_TRUE(std::isnan(blocks[0]));
  EXPECT_FALSE(std::isnan(blocks[1]));
}

TEST(ProfileBuilderTest, EveryPromptCountsTheSameWhateverItsLength) {
  ProfileBuilder builder(4);
  SelectionCounts all(4, 1024);
  all.Add(2, Selected({100}, 1025));
  builder.Add(all);
  SelectionCounts none(4, 8192);
  none.Add(2, Selected({0}, 8193));
  builder.Add(none);
  const auto rows = builder.Rows();
  EXPECT_FLOAT_EQ(rows[2][100], 0.5f);
  EXPECT_FLOAT_EQ(rows[2][0], 0.5f / 8);  // one of the block's 8 tokens, in one of two prompts
  EXPECT_FLOAT_EQ(rows[0][500], 1.0f);    // always sent
}

TEST(ProfileBuilderTest, ABlockThatNoPromptFillsTakesTheNearestOnesValue) {
  ProfileBuilder builder(4);
  SelectionCounts counts(4, 512);
  counts.Add(2, Selected({3}, 513));
  builder.Add(counts);
  const auto rows = builder.Rows();
  EXPECT_FLOAT_EQ(rows[2][7], 1.0f);  // holds token 3
  EXPECT_FLOAT_EQ(rows[2][8], 1.0f);  // between tokens 3 and 4
  EXPECT_FLOAT_EQ(rows[2][9], 0.0f);
}

TEST(ProfileBuilderTest, SmoothingReachesTheFurtherTheFurtherFromTheEnds) {
  ProfileBuilder builder(4);
  SelectionCounts counts(4, 1024);
  counts.Add(2, Selected({1, 512, 1023}, 1025));
  builder.Add(counts);
  const auto rows = builder.Rows(0.125);
  EXPECT_FLOAT_EQ(rows[2][1], 1.0f);  // 1 / 8 of a block: none
  EXPECT_FLOAT_EQ(rows[2][1023], 1.0f);
  // Block 512 is 511 from the end: 63 blocks to both sides.
  EXPECT_FLOAT_EQ(rows[2][512], 1.0f / 127);
  EXPECT_FLOAT_EQ(rows[2][456], 1.0f / 115);  // reaches 57: to 513
  EXPECT_FLOAT_EQ(rows[2][400], 0.0f);        // reaches 50
  EXPECT_FLOAT_EQ(rows[0][400], 1.0f);
}

TEST(ProfileBuilderTest, CountsOfA4KPromptChooseTheSameRelativePlacesOf16K) {
  SelectionCounts counts(4, 4096);
  std::vector<int32_t> last_eighth;
  for (int32_t t = 3584; t < 4096; ++t) last_eighth.push_back(t);
  counts.Add(2, Selected(last_eighth, 4097));
  ProfileBuilder builder(4);
  builder.Add(counts);
  const auto profile = transfer::Profile::Create(builder.Rows(), {});
  ASSERT_TRUE(profile.ok());
  transfer::PlanInput input;
  input.tokens = 16384;
  input.push_blocks = 2 * kBlocks + kBlocks / 8;  // the dense layers and an eighth of a layer
  const auto plan = transfer::MakePlan(*profile, input);
  int64_t tokens = 0;
  for (int64_t i = 2 * kBlocks; i < plan.pushed; ++i) {
    EXPECT_EQ(plan.order[i].layer, 2);
    const auto range = transfer::SentTokens(plan.order[i], input);
    EXPECT_GE(range.begin, 16384 * 7 / 8);
    tokens += range.end - range.begin;
  }
  EXPECT_EQ(tokens, 16384 / 8);
}

}  // namespace
}  // namespace smartgen::tools::profile
