#include "tools/bench/figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/bench/network.h"

namespace smartgen::tools::bench {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

kv::KvLayout Layout(std::vector<int> windows) {
  kv::KvLayout layout;
  for (const int window : windows) layout.layers.push_back({3, 64, window});
  layout.dtype = kv::DType::kBF16;
  return layout;
}

TEST(FiguresTest, KvOfSmolLm2Is23040BytesAToken) {
  // 30 layers, 3 KV heads of 64: 2 * 30 * 3 * 64 * 2.
  EXPECT_EQ(KvBytes(Layout(std::vector<int>(30, 0)), 1000), 23'040'000);
}

TEST(FiguresTest, TokensOutsideASlidingWindowDoNotTravel) {
  EXPECT_EQ(KvBytes(Layout({0, 100}), 1000), 768 * (1000 + 100));
  EXPECT_EQ(KvBytes(Layout({0, 100}), 50), 768 * (50 + 50));
}

TEST(FiguresTest, AtTheRateForRKvTakesRTimesThePrefill) {
  // 100 MB in 4 * 2.5 s.
  EXPECT_DOUBLE_EQ(RateForRatio(100'000'000, 2.5, 4), 1e7);
}

TEST(FiguresTest, PercentilesInterpolateBetweenTheClosestRanks) {
  EXPECT_DOUBLE_EQ(Percentile({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(Percentile({1, 2, 3}, 0), 1);
  EXPECT_DOUBLE_EQ(Percentile({1, 2, 3}, 1), 3);
  std::vector<double> values;
  for (int i = 0; i <= 100; ++i) values.push_back(i);
  EXPECT_DOUBLE_EQ(Percentile(values, 0.99), 99);
  EXPECT_DOUBLE_EQ(Percentile({}, 0.5), 0);
}

TEST(FiguresTest, ASpreadIsMedianLeastAndMost) {
  const auto spread = SpreadOf({5, 1, 2});
  ASSERT_TRUE(spread.has_value());
  EXPECT_EQ(spread->median, 2);
  EXPECT_EQ(spread->min, 1);
  EXPECT_EQ(spread->max, 5);
  EXPECT_FALSE(SpreadOf({}).has_value());
}

TEST(FiguresTest, TimesOfAStream) {
  const TokenTimes times = TimesOf(std::vector<double>{1, 3, 3.5, 4.5});
  EXPECT_EQ(times.ttft, 1);
  EXPECT_EQ(times.gap, 2);
  EXPECT_EQ(times.e2e, 3);
  EXPECT_THAT(times.steps, ElementsAre(2, 0.5, 1));
  EXPECT_THAT(times.between, ElementsAre(0.5, 1));  // without the time to the second token
}

TEST(FiguresTest, OneTokenHasNoTimeToTheSecond) {
  const TokenTimes times = TimesOf(std::vector<double>{1});
  EXPECT_FALSE(times.gap.has_value());
  EXPECT_FALSE(times.e2e.has_value());
  EXPECT_THAT(times.steps, IsEmpty());
}

TEST(FiguresTest, WhereStreamsDiffer) {
  const std::vector<int32_t> a = {1, 2, 3};
  EXPECT_EQ(FirstDifference(a, a), -1);
  EXPECT_EQ(FirstDifference(a, std::vector<int32_t>{1, 5, 3}), 1);
  EXPECT_EQ(FirstDifference(a, std::vector<int32_t>{1, 2}), 2);
}

TEST(FiguresTest, AFastLinkHidesAllButTheLastLayer) {
  // T_p 10, T_t 5, 10 layers: max(1 + 5, 10 + 0.5) + 0.1.
  EXPECT_DOUBLE_EQ(PredictFull(10, 5, 10, 0.1), 10.6);
}

TEST(FiguresTest, ASlowLinkIsBusyFromTheFirstLayerOn) {
  // T_p 10, T_t 40, 10 layers: max(1 + 40, 10 + 4) + 0.1.
  EXPECT_DOUBLE_EQ(PredictFull(10, 40, 10, 0.1), 41.1);
  EXPECT_DOUBLE_EQ(PredictUnhindered(10, 0.1), 10.1);
}

TEST(FiguresTest, AtTheCrossoverBothAreAsSoon) {
  // Prefill side 4 s, here 10 s, 8 pieces: T_t = min(10 - 0.5, 8 * 6) = 9.5 s.
  const auto rate = CrossoverRate(95'000'000, 4, 10, 8);
  ASSERT_TRUE(rate.has_value());
  EXPECT_DOUBLE_EQ(*rate, 1e7);
  EXPECT_DOUBLE_EQ(PredictFull(4, 95e6 / *rate, 8, 0.1), PredictUnhindered(10, 0.1));
}

TEST(FiguresTest, WithoutAFasterPrefillSideNoLinkIsFastEnough) {
  EXPECT_FALSE(CrossoverRate(1000, 10, 10, 8).has_value());
}

TEST(NetworkTest, TheFilterCountsFramesSoItsRateIsHigherThanThePayloads) {
  const TokenBucket bucket = BucketFor(1e6);
  EXPECT_THAT(static_cast<double>(bucket.rate_bits_per_second), DoubleNear(8e6 * 1514 / 1448, 1));
}

TEST(NetworkTest, TheBucketHoldsAMillisecondButNeverLessThanSomeFrames) {
  EXPECT_EQ(BucketFor(1e6).burst_bytes, 16 << 10);
  EXPECT_EQ(BucketFor(1e9).burst_bytes, static_cast<int64_t>(1e9 * 1514 / 1448 * 1e-3));
}

TEST(NetworkTest, AnUnknownKindIsRefused) {
  EXPECT_FALSE(Network::ParseKind("wifi").ok());
  EXPECT_EQ(*Network::ParseKind("auto"), Network::Kind::kAuto);
}

TEST(NetworkTest, LoopbackCannotBeShapedAndSaysSo) {
  const auto network = Network::Create(Network::Kind::kLoopback);
  ASSERT_TRUE(network.ok());
  EXPECT_FALSE((*network)->shaped());
  EXPECT_TRUE((*network)->SetRate(0).ok());
  EXPECT_FALSE((*network)->SetRate(1e6).ok());
  const auto rate = (*network)->MeasureRate(std::chrono::milliseconds(50));
  ASSERT_TRUE(rate.ok()) << rate.status();
  EXPECT_GT(*rate, 0);
}

}  // namespace
}  // namespace smartgen::tools::bench
