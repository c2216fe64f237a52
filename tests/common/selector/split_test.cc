#include "common/selector/split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "tests/common/selector/selector_test_util.h"

namespace smartgen::selector {
namespace {

Selection RandomSelection(Random& random) {
  Selection s;
  s.kv_heads = 1 + static_cast<int>(random.Below(4));
  s.first = random.Below(50);
  s.length = s.first + 1 + random.Below(200);
  const int64_t visible = s.length - s.first;
  s.dense = random.Below(5) == 0;
  s.k = s.dense ? visible : 1 + random.Below(static_cast<uint32_t>(visible));
  for (int h = 0; h < s.kv_heads && !s.dense; ++h) {
    std::vector<int32_t> all(visible);
    std::iota(all.begin(), all.end(), static_cast<int32_t>(s.first));
    for (int64_t i = visible - 1; i > 0; --i) {
      std::swap(all[i], all[random.Below(static_cast<uint32_t>(i + 1))]);
    }
    std::sort(all.begin(), all.begin() + s.k);
    s.index.insert(s.index.end(), all.begin(), all.begin() + s.k);
  }
  return s;
}

TEST(SplitTest, EqualsANaiveLoopOnRandomMasks) {
  Random random(1);
  Split split;  // used again and again, as callers do
  for (int round = 0; round < 2000; ++round) {
    const Selection s = RandomSelection(random);
    std::vector<std::vector<bool>> mask(s.kv_heads, std::vector<bool>(s.length));
    const uint32_t share = random.Below(11);  // 0: all remote, 10: all local
    for (auto& row : mask) {
      for (size_t t = 0; t < row.size(); ++t) row[t] = random.Below(10) < share;
    }
    SplitByMask(
        s, [&](int h, int64_t t) { return mask[h][t]; }, split);
    int64_t remote_entries = 0;
    for (int h = 0; h < s.kv_heads; ++h) {
      std::vector<int32_t> row;
      if (s.dense) {
        for (int64_t t = s.first; t < s.length; ++t) row.push_back(static_cast<int32_t>(t));
      } else {
        row.assign(s.Row(h).begin(), s.Row(h).end());
      }
      std::vector<int32_t> local, remote;
      for (const int32_t t : row) (mask[h][t] ? local : remote).push_back(t);
      ASSERT_EQ(std::vector<int32_t>(split.Local(h).begin(), split.Local(h).end()), local);
      ASSERT_EQ(std::vector<int32_t>(split.Remote(h).begin(), split.Remote(h).end()), remote);
      std::vector<int32_t> from_ranges;
      int32_t previous_end = -1;
      for (const TokenRange& range : split.RemoteRanges(h)) {
        ASSERT_LT(range.begin, range.end);
        ASSERT_GT(range.begin, previous_end) << "adjacent ranges are merged";
        previous_end = range.end;
        for (int32_t t = range.begin; t < range.end; ++t) from_ranges.push_back(t);
      }
      ASSERT_EQ(from_ranges, remote);
      remote_entries += static_cast<int64_t>(remote.size());
    }
    ASSERT_EQ(split.remote_entries, remote_entries);
  }
}

TEST(SplitTest, FollowsTheSequencesMask) {
  const auto layout = LayoutOf(2, 2, 4, kv::DType::kBF16, 64);
  TestSequence sequence(layout, 48, 1);
  sequence->MarkLocal(1, 0, 20);
  sequence->MarkRemote(1, 20, 48);
  sequence->MarkLocal(1, 30, 32);
  Selection s{
      .first = 0, .length = 48, .kv_heads = 2, .k = 4, .index = {3, 19, 20, 21, 22, 30, 31, 47}};
  Split split;
  ASSERT_TRUE(SplitByMask(s, 1, *sequence, split).ok());
  EXPECT_EQ(split.index, (std::vector<int32_t>{3, 19, 20, 21, 30, 31, 22, 47}));
  EXPECT_EQ(split.local_count, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(split.ranges, (std::vector<TokenRange>{{20, 22}, {22, 23}, {47, 48}}));
  EXPECT_EQ(split.RemoteRanges(1).size(), 2u);
}

TEST(SplitTest, AHeadThatCameAloneIsLocalForThatHead) {
  const auto layout = LayoutOf(2, 2, 4, kv::DType::kBF16, 64);
  TestSequence sequence(layout, 48, 1);
  sequence->MarkRemote(1, 0, 48);
  sequence->MarkHeadLocal(1, 1, 5, 20);
  Selection s{.first = 0, .length = 48, .kv_heads = 2, .k = 2, .index = {4, 6, 4, 6}};
  Split split;
  ASSERT_TRUE(SplitByMask(s, 1, *sequence, split).ok());
  EXPECT_EQ(split.index, (std::vector<int32_t>{4, 6, 6, 4}));
  EXPECT_EQ(split.local_count, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(split.remote_entries, 3);
}

TEST(SplitTest, ATokenThatNobodyHasIsAnError) {
  const auto layout = LayoutOf(1, 1, 4, kv::DType::kBF16, 64);
  TestSequence sequence(layout, 32, 1);
  sequence->MarkLocal(0, 0, 10);
  Selection s{.first = 0, .length = 32, .kv_heads = 1, .k = 2, .index = {9, 10}};
  Split split;
  EXPECT_EQ(SplitByMask(s, 0, *sequence, split).code(), absl::StatusCode::kFailedPrecondition);
  s.length = 100;
  EXPECT_EQ(SplitByMask(s, 0, *sequence, split).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace smartgen::selector
