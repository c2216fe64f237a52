// The kernels that move KV rows, keep the residency mask and merge, against common/kv and
// common/selector.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "common/selector/merge.h"
#include "common/selector/split.h"
#include "tests/common/executor_cuda/kernel_test_util.h"

namespace smartgen::executor::cuda {
namespace {

int SomeTokens(ShapeRandom& random) {
  return random.OneIn(8) ? 1 : random.Between(1, random.OneIn(10) ? 700 : 90);
}

// Marks random ranges local, remote, and local for a head, on both sides.
void MarkBoth(ShapeRandom& random, PagedSequence& sequence, DeviceMask& mask, int tokens) {
  const int heads = sequence.Layer().kv_heads;
  const auto mark = [&](const std::vector<MarkRange>& ranges, MarkAs as) {
    int64_t most = 0;
    for (const MarkRange& range : ranges) {
      most = std::max<int64_t>(most, range.end - range.begin);
      if (as == MarkAs::kRemote) {
        sequence->MarkRemote(0, range.begin, range.end);
      } else if (range.head < 0) {
        sequence->MarkLocal(0, range.begin, range.end);
      } else {
        sequence->MarkHeadLocal(0, range.head, range.begin, range.end);
      }
    }
    ASSERT_LAUNCHED(MarkRanges({.mask = mask.View(),
                                .pages = sequence->pages().data(),
                                .ranges = ranges.data(),
                                .count = static_cast<int>(ranges.size()),
                                .most_tokens = most,
                                .as = as},
                               nullptr));
  };
  const auto some = [&](int head) {
    const int begin = random.Between(0, tokens);
    return MarkRange{head, begin, random.Between(begin, tokens)};
  };
  if (random.OneIn(2)) mark({some(-1)}, MarkAs::kLocal);
  for (int i = random.Between(0, 2); i > 0; --i) {
    std::vector<MarkRange> ranges;
    for (int h = 0; h < heads; ++h) ranges.push_back(some(h));
    mark(ranges, MarkAs::kLocal);
  }
  mark({some(-1), some(-1)}, MarkAs::kRemote);
  if (random.OneIn(2)) mark({{-1, 0, tokens}}, MarkAs::kRemote);
  if (random.OneIn(3)) mark({some(random.Between(0, heads - 1))}, MarkAs::kLocal);
}

TEST(MarkRangesKernelTest, TheMaskEqualsTheCpus) {
  ShapeRandom random(1);
  for (int shape = 0; shape < kShapes; ++shape) {
    const int tokens = SomeTokens(random);
    const int heads = random.Between(1, 5);
    PagedSequence sequence(random, heads, 1, kv::DType::kBF16, tokens);
    DeviceMask device(sequence);
    random.ShuffleThreads();
    MarkBoth(random, sequence, device, tokens);
    if (HasFatalFailure()) return;
    const Mask mask = device.View();
    const kv::ResidencyMask& cpu = sequence.pool().residency();
    for (int64_t page = 0; page < sequence.pool().total_pages(); ++page) {
      for (int row = 0; row < kPage; ++row) {
        const auto id = static_cast<kv::PageId>(page);
        const int8_t cell = mask.cells[page * kPage + row];
        ASSERT_EQ(cell, static_cast<int8_t>(cpu.Get(id, 0, row))) << "shape " << shape;
        for (int h = 0; h < heads; ++h) {
          const bool bit = ((mask.heads[page * heads + h] >> row) & 1) != 0;
          ASSERT_EQ(cell == 1 || bit, cpu.HeadLocal(id, 0, h, row)) << "shape " << shape;
        }
      }
    }
  }
}

selector::Selection RandomSelection(ShapeRandom& random, int heads, int tokens) {
  selector::Selection selection;
  selection.kv_heads = heads;
  selection.length = tokens;
  selection.dense = random.OneIn(3);
  if (selection.dense) {
    selection.first = random.Between(0, tokens);
    selection.k = tokens - selection.first;
    return selection;
  }
  selection.k = random.OneIn(8) ? 0 : random.Between(0, tokens);
  for (int h = 0; h < heads; ++h) {
    int64_t wanted = selection.k;
    for (int t = 0; t < tokens; ++t) {  // each k of the tokens is as likely
      if (random.Below(static_cast<uint32_t>(tokens - t)) >= wanted) continue;
      selection.index.push_back(t);
      --wanted;
    }
  }
  return selection;
}

TEST(SplitByMaskKernelTest, SplitsAndRemoteRangesEqualTheCpus) {
  ShapeRandom random(2);
  for (int shape = 0; shape < kShapes; ++shape) {
    const int tokens = SomeTokens(random);
    const int heads = random.Between(1, 4);
    PagedSequence sequence(random, heads, 1, kv::DType::kBF16, tokens);
    DeviceMask device(sequence);
    random.ShuffleThreads();
    MarkBoth(random, sequence, device, tokens);
    if (HasFatalFailure()) return;
    const selector::Selection selection = RandomSelection(random, heads, tokens);
    selector::Split want;
    const absl::Status status = selector::SplitByMask(selection, 0, *sequence, want);
    const int64_t k = selection.k;
    std::vector<int32_t> index(static_cast<size_t>(heads * k), -1);
    std::vector<int32_t> locals(heads), nowhere(heads), ends(heads, static_cast<int32_t>(k));
    ASSERT_LAUNCHED(SplitByMask({.index = selection.dense ? nullptr : selection.index.data(),
                                 .k = k,
                                 .first = static_cast<int32_t>(selection.first),
                                 .pages = sequence->pages().data(),
                                 .mask = device.View(),
                                 .out = index.data(),
                                 .local_count = locals.data(),
                                 .nowhere = nowhere.data()},
                                nullptr));
    ASSERT_EQ(index, want.index) << "shape " << shape;
    std::vector<Range> ranges(static_cast<size_t>(heads * k));
    std::vector<int32_t> counts(heads);
    ASSERT_LAUNCHED(MergeRanges({.tokens = index.data(),
                                 .stride = k,
                                 .begins = locals.data(),
                                 .ends = ends.data(),
                                 .rows = heads,
                                 .ranges = ranges.data(),
                                 .range_stride = k,
                                 .range_counts = counts.data()},
                                nullptr));
    std::string missing;
    for (int h = 0; h < heads; ++h) {
      ASSERT_EQ(locals[h], want.local_count[h]);
      const auto cpu = want.RemoteRanges(h);
      ASSERT_EQ(counts[h], static_cast<int>(cpu.size())) << "shape " << shape << " head " << h;
      for (int i = 0; i < counts[h]; ++i) {
        ASSERT_EQ(ranges[h * k + i].begin, cpu[i].begin);
        ASSERT_EQ(ranges[h * k + i].end, cpu[i].end);
      }
      if (nowhere[h] >= 0) missing = "token " + std::to_string(nowhere[h]) + " is neither";
    }
    ASSERT_EQ(status.ok(), missing.empty()) << status;
    ASSERT_NE(status.ToString().find(missing), std::string::npos) << status << " vs " << missing;
  }
}

TEST(SortTokensKernelTest, RowsAreSortedWithoutDoubles) {
  ShapeRandom random(3);
  for (int shape = 0; shape < kShapes; ++shape) {
    const int capacity = random.OneIn(10) ? random.Between(8192, 20000) : random.Between(1, 600);
    const int rows = random.Between(1, 3);
    const int stride = random.Between(1, 400);
    std::vector<int32_t> tokens(static_cast<size_t>(rows * stride));
    std::vector<int32_t> counts(rows);
    std::vector<std::vector<int32_t>> want(rows);
    for (int r = 0; r < rows; ++r) {
      counts[r] = random.OneIn(5) ? 0 : random.Between(0, stride);
      for (int i = 0; i < counts[r]; ++i) {
        tokens[r * stride + i] = random.Between(0, capacity - 1);
      }
      const auto begin = tokens.begin() + r * stride;
      const std::set<int32_t> sorted(begin, begin + counts[r]);
      want[r].assign(sorted.begin(), sorted.end());
    }
    std::vector<uint32_t> scratch(static_cast<size_t>(rows * SortScratchWords(capacity)),
                                  0xa5a5a5a5);
    random.ShuffleThreads();
    ASSERT_LAUNCHED(SortTokens({.tokens = tokens.data(),
                                .stride = stride,
                                .counts = counts.data(),
                                .rows = rows,
                                .capacity = capacity,
                                .scratch = scratch.data()},
                               nullptr));
    for (int r = 0; r < rows; ++r) {
      const auto begin = tokens.begin() + r * stride;
      ASSERT_EQ(std::vector<int32_t>(begin, begin + counts[r]), want[r]) << "shape " << shape;
    }
  }
}

TEST(MergeRangesKernelTest, RangesCoverExactlyTheTokensAndDoNotTouch) {
  ShapeRandom random(4);
  for (int shape = 0; shape < kShapes; ++shape) {
    const int n = random.OneIn(8) ? random.Between(0, 1) : random.Between(0, 600);
    std::vector<int32_t> tokens;
    int32_t next = random.Between(0, 5);
    for (int i = 0; i < n; ++i, ++next) {
      if (random.OneIn(4)) next += random.Between(1, 9);
      tokens.push_back(next);
    }
    std::vector<Range> ranges(static_cast<size_t>(n));
    int32_t count = -1;
    random.ShuffleThreads();
    ASSERT_LAUNCHED(MergeRanges({.tokens = tokens.data(),
                                 .stride = n,
                                 .limit = n,
                                 .rows = 1,
                                 .ranges = ranges.data(),
                                 .range_stride = n,
                                 .range_counts = &count},
                                nullptr));
    std::vector<int32_t> covered;
    for (int i = 0; i < count; ++i) {
      ASSERT_LT(ranges[i].begin, ranges[i].end);
      if (i > 0) {
        ASSERT_GT(ranges[i].begin, ranges[i - 1].end);
      }
      for (int32_t t = ranges[i].begin; t < ranges[i].end; ++t) covered.push_back(t);
    }
    ASSERT_EQ(covered, tokens) << "shape " << shape;
  }
}

// Disjoint ranges of one sequence, each of all heads or of one, packed one behind the other.
struct Staged {
  std::vector<StagedRange> ranges;
  std::vector<std::span<std::byte>> segments;
  int64_t bytes = 0;
  int64_t most = 0;
};
Staged RandomRanges(ShapeRandom& random, PagedSequence& sequence, int tokens) {
  Staged staged;
  for (int at = random.Between(0, tokens); at < tokens || random.OneIn(4);) {
    const int end = random.Between(at, tokens);
    const int head = random.OneIn(2) ? -1 : random.Between(0, sequence.Layer().kv_heads - 1);
    staged.ranges.push_back({head, at, end, staged.bytes});
    staged.most = std::max<int64_t>(staged.most, end - at);
    const auto segments =
        head < 0 ? sequence->Segments(0, at, end) : sequence->Segments(0, head, at, end);
    for (const auto& segment : segments) {
      staged.segments.push_back(segment);
      staged.bytes += static_cast<int64_t>(segment.size());
    }
    at = end + random.Between(0, 5);
    if (at > tokens) break;
  }
  return staged;
}

std::vector<std::byte> PoolBytes(PagedSequence& sequence) {
  const std::byte* base = sequence.pool().Data(0, 0);
  return {base, base + sequence.pool().total_pages() * sequence.pool().layout().PageBytes(0)};
}

TEST(CopyRangesKernelTest, GatherAndScatterFollowTheWiresOrder) {
  ShapeRandom random(5);
  for (int shape = 0; shape < kShapes; ++shape) {
    const int tokens = SomeTokens(random) % 50 + 1;
    PagedSequence sequence(random, random.Between(1, 3),
                           random.OneIn(2) ? 8 * random.Between(1, 5) : random.Between(1, 40),
                           random.DType(), tokens);
    const Staged staged = RandomRanges(random, sequence, tokens);
    std::vector<std::byte> want;
    for (const auto& segment : staged.segments) {
      want.insert(want.end(), segment.begin(), segment.end());
    }
    std::vector<std::byte> got(want.size());
    CopyRangesArgs args{.layer = sequence.Layer(),
                        .ranges = staged.ranges.data(),
                        .count = static_cast<int>(staged.ranges.size()),
                        .most_tokens = staged.most,
                        .staging = got.data()};
    random.ShuffleThreads();
    ASSERT_LAUNCHED(CopyRanges(args, nullptr));
    ASSERT_EQ(got, want) << "shape " << shape;

    // Back, with other bytes: where the segments are, and nowhere else.
    for (std::byte& byte : got) byte = static_cast<std::byte>(random.Next());
    const std::vector<std::byte> before = PoolBytes(sequence);
    args.direction = Direction::kScatter;
    ASSERT_LAUNCHED(CopyRanges(args, nullptr));
    const std::vector<std::byte> after = PoolBytes(sequence);
    std::vector<std::byte> expected = before;
    size_t from = 0;
    for (const auto& segment : staged.segments) {
      std::memcpy(expected.data() + (segment.data() - sequence.pool().Data(0, 0)),
                  got.data() + from, segment.size());
      from += segment.size();
    }
    ASSERT_EQ(after, expected) << "shape " << shape;
  }
}

TEST(CopyEntriesKernelTest, EachEntryIsItsHeadsRowOfItsToken) {
  ShapeRandom random(6);
  for (int shape = 0; shape < kShapes; ++shape) {
    const int tokens = SomeTokens(random) % 100 + 1;
    const int heads = random.Between(1, 3);
    PagedSequence sequence(random, heads, random.OneIn(2) ? 8 : random.Between(1, 40),
                           random.DType(), tokens);
    const kv::KvLayout& layout = sequence.pool().layout();
    selector::Selection selection = RandomSelection(random, heads, tokens);
    if (selection.dense) continue;
    const int64_t k = selection.k;
    const auto row = static_cast<size_t>(layout.RowBytes(0));
    std::vector<int32_t> from(heads), to(heads);
    for (int h = 0; h < heads; ++h) {
      from[h] = random.Between(0, static_cast<int>(k));
      to[h] = random.Between(from[h], static_cast<int>(k));
    }
    std::vector<std::byte> want[2], got[2];
    for (int v = 0; v < 2; ++v) {
      want[v].resize(static_cast<size_t>(heads * k) * row);
      got[v] = want[v];
      for (int h = 0; h < heads; ++h) {
        for (int64_t i = from[h]; i < to[h]; ++i) {
          const int32_t token = selection.Row(h)[i];
          const int in_page = token % kPage;
          std::memcpy(want[v].data() + static_cast<size_t>(h * k + i) * row,
                      sequence->Page(0, token / kPage) +
                          (v == 0 ? layout.KOffset(0, h, in_page) : layout.VOffset(0, h, in_page)),
                      row);
        }
      }
    }
    CopyEntriesArgs args{.layer = sequence.Layer(),
                         .index = selection.index.data(),
                         .k = k,
                         .from = from.data(),
                         .to = to.data(),
                         .keys = got[0].data(),
                         .values = got[1].data()};
    random.ShuffleThreads();
    ASSERT_LAUNCHED(CopyEntries(args, nullptr));
    ASSERT_EQ(got[0], want[0]) << "shape " << shape;
    ASSERT_EQ(got[1], want[1]) << "shape " << shape;

    // Back into cleared pages: gathering again gives the same.
    const std::vector<std::byte> before = PoolBytes(sequence);
    for (int h = 0; h < heads; ++h) {
      for (int64_t i = from[h]; i < to[h]; ++i) {
        const int32_t token = selection.Row(h)[i];
        std::byte* page = sequence->Page(0, token / kPage);
        std::memset(page + layout.KOffset(0, h, token % kPage), 0, row);
        std::memset(page + layout.VOffset(0, h, token % kPage), 0, row);
      }
    }
    args.direction = Direction::kScatter;
    ASSERT_LAUNCHED(CopyEntries(args, nullptr));
    ASSERT_EQ(PoolBytes(sequence), before) << "shape " << shape;
  }
}

TEST(MergePartialsKernelTest, MergesEqualTheCpus) {
  ShapeRandom random(7);
  constexpr float kEmpty = -std::numeric_limits<float>::infinity();
  for (int shape = 0; shape < kShapes; ++shape) {
    const int rows = random.OneIn(8) ? random.Between(0, 1) : random.Between(0, 5);
    const int dim = random.OneIn(8) ? 1 : random.Between(1, 200);
    const kv::DType dtype = random.DType();
    const int bytes = kv::DTypeBytes(dtype);
    std::vector<std::byte> values = Elements(random, int64_t{rows} * dim, dtype);
    const std::vector<std::byte> others = Elements(random, int64_t{rows} * dim, dtype);
    std::vector<float> lse = random.Normals(rows);
    std::vector<float> other_lse = random.Normals(rows);
    for (float& s : lse) s = random.OneIn(5) ? kEmpty : s * 20;
    for (float& s : other_lse) s = random.OneIn(5) ? kEmpty : s * 20;
    std::vector<float> want(static_cast<size_t>(rows * dim)), other(want.size());
    if (rows > 0) {
      selector::LoadRow(values.data(), rows * dim, dtype, want.data());
      selector::LoadRow(others.data(), rows * dim, dtype, other.data());
    }
    std::vector<float> want_lse = lse;
    for (int r = 0; r < rows; ++r) {
      selector::MergePartial({want.data() + r * dim, static_cast<size_t>(dim)}, want_lse[r],
                             {other.data() + r * dim, static_cast<size_t>(dim)}, other_lse[r]);
    }
    random.ShuffleThreads();
    ASSERT_LAUNCHED(MergePartials({.values = values.data(),
                                   .lse = lse.data(),
                                   .other_values = others.data(),
                                   .other_lse = other_lse.data(),
                                   .element = static_cast<Element>(dtype),
                                   .rows = rows,
                                   .dim = dim},
                                  nullptr));
    const float tolerance = dtype == kv::DType::kF32 ? 1e-5f : 1e-2f;
    for (int i = 0; i < rows * dim; ++i) {
      const float got = selector::LoadElement(values.data() + i * bytes, dtype);
      ASSERT_NEAR(got, want[i], tolerance * (1e-3f + std::fabs(want[i]))) << "shape " << shape;
    }
    for (int r = 0; r < rows; ++r) {
      if (want_lse[r] == kEmpty) {
        ASSERT_EQ(lse[r], kEmpty);
      } else {
        ASSERT_NEAR(lse[r], want_lse[r], 1e-5f * (1 + std::fabs(want_lse[r])));
      }
    }
  }
}

TEST(LaunchersTest, WhatDoesNotFitTheLayoutIsRefusedBeforeAnythingRuns) {
  ShapeRandom random(8);
  PagedSequence sequence(random, 2, 4, kv::DType::kF32, 20);
  PagedLayer layer = sequence.Layer();
  layer.head_dim = 5;
  EXPECT_NE(QuestBounds({.layer = layer, .begin = 0, .end = 20}, nullptr), nullptr);
  EXPECT_NE(CopyRanges({.layer = layer, .count = 1, .most_tokens = 1}, nullptr), nullptr);
  EXPECT_NE(HataEncode({.layer = sequence.Layer(), .begin = 0, .end = 1, .bits = 100}, nullptr),
            nullptr);
  EXPECT_NE(TopK({.n = 3, .rows = 1, .k = 4}, nullptr), nullptr);
  EXPECT_NE(
      InfiniGenScores({.tokens = 1, .kv_heads = 1, .group = 1, .head_dim = 4, .count = 5}, nullptr),
      nullptr);
}

}  // namespace
}  // namespace smartgen::executor::cuda
