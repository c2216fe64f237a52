// Similarity, on-demand ratios and summaries against values worked out by hand.
#include <gtest/gtest.h>

#include <cmath>

#include "tools/profile/miss.h"
#include "tools/profile/similarity.h"
#include "tools/profile/summary.h"

namespace smartgen::tools::profile {
namespace {

using transfer::kBlocks;
using Row = transfer::Profile::Row;

TEST(RankCorrelationTest, EqualsTheTextbook) {
  const std::vector<float> a = {106, 100, 86, 101, 99, 103, 97, 113, 112, 110};
  const std::vector<float> b = {7, 27, 2, 50, 28, 29, 20, 12, 6, 17};
  // The sum of squared rank differences is 194: 1 - 6 * 194 / (10 * 99).
  EXPECT_NEAR(RankCorrelation(a, b), 1 - 6.0 * 194 / 990, 1e-12);
  EXPECT_NEAR(RankCorrelation(a, a), 1, 1e-12);
}

TEST(RankCorrelationTest, EqualValuesShareTheirMeanRank) {
  // Ranks 0.5 0.5 2 against 0 1.5 1.5: deviations (-.5 -.5 1) and (-1 .5 .5).
  const std::vector<float> a = {1, 1, 2};
  const std::vector<float> b = {1, 2, 2};
  EXPECT_NEAR(RankCorrelation(a, b), 0.75 / 1.5, 1e-12);
}

TEST(RankCorrelationTest, IsZeroWhereNothingVaries) {
  const std::vector<float> a = {1, 1, 1};
  const std::vector<float> b = {1, 2, 3};
  EXPECT_EQ(RankCorrelation(a, b), 0);
}

TEST(RankCorrelationTest, LeavesOutWhatOneSideDoesNotHave) {
  const std::vector<float> a = {1, NAN, 2, 3};
  const std::vector<float> b = {1, 9, NAN, 3};
  EXPECT_NEAR(RankCorrelation(a, b), 1, 1e-12);
}

TEST(TopOverlapTest, IsTheShareOfTheBestThatBothHave) {
  const std::vector<float> a = {9, 8, 7, 6, 0, 0, 0, 0, 0, 0};
  const std::vector<float> b = {0, 9, 0, 8, 7, 6, 0, 0, 0, 0};
  EXPECT_DOUBLE_EQ(TopOverlap(a, b, 0.4), 0.5);
  EXPECT_DOUBLE_EQ(TopOverlap(a, a, 0.4), 1.0);
}

TEST(CompareAllTest, AsksForOtherLengthsOfATextAndOtherTextsOfALength) {
  const auto prompt = [](std::string text, int64_t length, int at) {
    BlockRows rows(3);
    rows[2][at] = 1;
    return PromptRows{std::move(text), length, rows};
  };
  const std::vector<PromptRows> prompts = {prompt("a", 100, 5), prompt("a", 200, 5),
                                           prompt("b", 100, 900), prompt("b", 200, 900)};
  const auto comparisons = CompareAll(prompts);
  ASSERT_EQ(comparisons.size(), 4u);
  EXPECT_EQ(comparisons[0].what, "100 against 200, same text");
  EXPECT_EQ(comparisons[0].pairs, 2);
  EXPECT_NEAR(comparisons[0].mean.rank_correlation, 1, 1e-9);
  EXPECT_EQ(comparisons[1].what, "100 against 200, all texts' mean");
  EXPECT_NEAR(comparisons[1].mean.rank_correlation, 1, 1e-9);
  EXPECT_EQ(comparisons[2].what, "100, different texts");
  EXPECT_EQ(comparisons[2].pairs, 1);
  EXPECT_LT(comparisons[2].mean.rank_correlation, 0);
  EXPECT_EQ(comparisons[3].what, "200, different texts");
}

// A prompt of 1024 tokens (a token a block), 4 layers. In layers 2 and 3 one KV head selects the
// tokens [begin, end).
SelectionCounts Counts(int begin, int end) {
  SelectionCounts counts(4, kBlocks);
  selector::Selection s;
  s.kv_heads = 1;
  s.length = kBlocks + 1;
  s.k = end - begin;
  for (int t = begin; t < end; ++t) s.index.push_back(t);
  counts.Add(2, s);
  counts.Add(3, s);
  return counts;
}

transfer::Profile ImportantFrom(int begin) {
  std::vector<Row> rows(4);
  for (Row& row : rows) {
    for (int block = begin; block < kBlocks; ++block) row[block] = 1;
  }
  return *transfer::Profile::Create(std::move(rows), {});
}

TEST(MissCounterTest, CountsWhatLiesOutsideOfThePushedBlocks) {
  const transfer::Profile profile = ImportantFrom(768);
  // Of 4 * 1024 blocks 5/8: both dense layers, and a quarter of each other layer.
  MissCounter counter(&profile, {}, {0.625});
  counter.Add(Counts(192, 1024));  // 832 tokens
  const auto rows = counter.Rows();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].length, 1024);
  // The profile brings the last 256, the order of positions tokens 192 to 255.
  EXPECT_DOUBLE_EQ(rows[0].ratios.profile, 1 - 256.0 / 832);
  EXPECT_DOUBLE_EQ(rows[0].ratios.sequential, 1 - 64.0 / 832);
  // A random quarter holds a quarter of whatever is selected; 10 draws of a share of 0.25.
  EXPECT_NEAR(rows[0].ratios.random, 0.75, 0.02);
  EXPECT_DOUBLE_EQ(rows[0].ratios.BelowSequential(), 1 - (576.0 / 832) / (768.0 / 832));
}

TEST(MissCounterTest, AllBlocksMissNothingAndTheDenseLayersAloneEverything) {
  const transfer::Profile profile = ImportantFrom(0);
  MissCounter counter(&profile, {}, {0.0, 1.0});
  counter.Add(Counts(0, 1024));
  const auto rows = counter.Rows();
  EXPECT_DOUBLE_EQ(rows[0].ratios.profile, 1);
  EXPECT_DOUBLE_EQ(rows[0].ratios.random, 1);
  EXPECT_DOUBLE_EQ(rows[1].ratios.profile, 0);
  EXPECT_DOUBLE_EQ(rows[1].ratios.sequential, 0);
  EXPECT_DOUBLE_EQ(rows[1].ratios.BelowSequential(), 0);
}

TEST(MissCounterTest, LengthsAreShownApartAndPooled) {
  const transfer::Profile profile = ImportantFrom(0);
  MissCounter counter(&profile, {}, {0.5});
  counter.Add(Counts(0, 10));
  counter.Add(SelectionCounts(4, 2048));
  const auto rows = counter.Rows();
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[1].length, 2048);
  EXPECT_EQ(rows[2].length, 0);
  EXPECT_EQ(rows[2].prompts, 2);
}

TEST(SummaryTest, SharesAreOfTheLayersOwnImportance) {
  std::vector<Row> rows(3);
  // 51 of 1024 blocks are 5 %.
  for (int block = 0; block < 51; ++block) rows[2][block] = 2;
  for (int block = kBlocks - 51; block < kBlocks; ++block) rows[2][block] = 1;
  rows[2][500] = 51;
  const auto profile = transfer::Profile::Create(std::move(rows), {});
  ASSERT_TRUE(profile.ok());
  const auto summary = Summarise(*profile);
  ASSERT_EQ(summary.size(), 1u);
  EXPECT_EQ(summary[0].layer, 2);
  EXPECT_NEAR(summary[0].first, 0.5, 1e-9);
  EXPECT_NEAR(summary[0].last, 0.25, 1e-9);
  EXPECT_NEAR(summary[0].middle, 0.25, 1e-9);
  EXPECT_NEAR(summary[0].top20, 1.0, 1e-9);
  EXPECT_NEAR(summary[0].mean, 204.0 / kBlocks, 1e-6);
  EXPECT_NEAR(Coverage(*profile, 1.0 / kBlocks), 0.25, 1e-9);
}

}  // namespace
}  // namespace smartgen::tools::profile
