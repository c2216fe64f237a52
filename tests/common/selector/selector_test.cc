#include "common/selector/selector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "tests/common/selector/selector_test_util.h"

namespace smartgen::selector {
namespace {

constexpr Kind kKinds[] = {Kind::kQuest, Kind::kHata, Kind::kInfiniGen};

// A sequence with its metadata, and queries.
struct Case {
  Case(const Options& options, const kv::KvLayout& layout, int group, int64_t tokens, uint64_t seed,
       const Parameters& parameters = {})
      : group(group),
        selector(MakeSelector(options, layout, group, parameters)),
        sequence(layout, tokens, seed),
        store(&selector->metadata(), tokens) {
    Random random(seed + 1);
    const int layer = layout.num_layers() - 1;
    queries = Normals(random, static_cast<int64_t>(layout.layers[layer].kv_heads) * group *
                                  layout.layers[layer].head_dim);
    EXPECT_TRUE(selector->ChooseChannels(layer, queries, store).ok());
    EXPECT_TRUE(selector->Extend(layer, *sequence, 0, tokens, store).ok());
    const absl::Status status = selector->Select(layer, store, queries, tokens, selection);
    EXPECT_TRUE(status.ok()) << status;
  }
  // Sum of q over the group, channel by channel.
  std::vector<float> SummedQuery(int head, int dim) const {
    std::vector<float> sum(dim);
    for (int g = 0; g < group; ++g) {
      for (int c = 0; c < dim; ++c) sum[c] += queries[(head * group + g) * dim + c];
    }
    return sum;
  }
  int group;
  std::unique_ptr<KvSelector> selector;
  TestSequence sequence;
  MetadataStore store;
  std::vector<float> queries;
  Selection selection;
};

TEST(SelectorTest, RowsAreWellFormedForAllKindsLengthsAndWindows) {
  Random random(1);
  for (int round = 0; round < 400; ++round) {
    Options options{.kind = kKinds[random.Below(3)], .dense_tokens = 0, .dense_layers = 0};
    options.budget_share = 0.05 + 0.01 * random.Below(60);
    const int window = random.Below(2) == 0 ? 0 : 1 + static_cast<int>(random.Below(200));
    const int64_t length = 1 + random.Below(400);
    const auto layout =
        LayoutOf(1, 1 + static_cast<int>(random.Below(3)), 8, kv::DType::kBF16, 512, window);
    Case c(options, layout, 1 + static_cast<int>(random.Below(3)), length, round);
    const Selection& s = c.selection;
    const int64_t first = window > 0 ? std::max<int64_t>(0, length - window) : 0;
    EXPECT_EQ(s.first, first);
    EXPECT_EQ(s.length, length);
    const Extent extent = c.selector->ExtentOf(0, length);
    ASSERT_EQ(s.dense, extent.dense);
    if (s.dense) {
      EXPECT_EQ(s.k, length - first);
      continue;
    }
    const int64_t visible = length - first;
    const auto budget = std::max<int64_t>(
        1, static_cast<int64_t>(options.budget_share * static_cast<double>(visible) + 1e-6));
    // Quest's floor is three pages.
    EXPECT_LE(s.k, options.kind == Kind::kQuest ? std::max<int64_t>(48, budget) : budget);
    EXPECT_LE(s.k, extent.budget);
    EXPECT_LT(s.k, visible);
    for (int h = 0; h < s.kv_heads; ++h) {
      const auto row = s.Row(h);
      EXPECT_TRUE(std::adjacent_find(row.begin(), row.end(), std::greater_equal<int32_t>()) ==
                  row.end());
      EXPECT_GE(row.front(), first);
      EXPECT_EQ(row.back(), length - 1);
      for (int64_t t = extent.scored_end; t < length; ++t) {
        EXPECT_TRUE(std::binary_search(row.begin(), row.end(), t));
      }
    }
  }
}

TEST(SelectorTest, QuestTakesTheBestPagesByTheBoundOfTheScore) {
  for (int round = 0; round < 60; ++round) {
    const int window = round % 3 == 2 ? 301 : 0;
    const auto layout =
        LayoutOf(1, 2, 24, round % 2 == 0 ? kv::DType::kF32 : kv::DType::kBF16, 512, window);
    const int64_t length = 400 + round;
    Case c({.kind = Kind::kQuest, .dense_tokens = 0, .dense_layers = 0}, layout, 3, length, round);
    ASSERT_FALSE(c.selection.dense);
    const int64_t first = c.selection.first;
    for (int h = 0; h < 2; ++h) {
      const auto row = c.selection.Row(h);
      const std::set<int32_t> chosen(row.begin(), row.end());
      double worst_in = 1e30, best_out = -1e30;
      int whole_pages = 0;
      for (int64_t page = first / 16; page <= (length - 1) / 16; ++page) {
        const int64_t begin = std::max(first, page * 16), end = std::min(length, page * 16 + 16);
        const bool in = chosen.count(static_cast<int32_t>(begin)) > 0;
        for (int64_t t = begin; t < end; ++t) {
          ASSERT_EQ(chosen.count(static_cast<int32_t>(t)) > 0, in) << "a page is taken as a whole";
        }
        whole_pages += in ? 1 : 0;
        if (begin > page * 16 || page == (length - 1) / 16) {
          EXPECT_TRUE(in) << "the newest page, and one that the window cuts, are always in";
          continue;
        }
        double score = 0;
        for (int g = 0; g < 3; ++g) {
          for (int ch = 0; ch < 24; ++ch) {
            double low = 1e30, high = -1e30;
            for (int64_t t = begin; t < end; ++t) {
              const double k = c.sequence.Key(0, h, t)[ch];
              low = std::min(low, k);
              high = std::max(high, k);
            }
            const double q = c.queries[(h * 3 + g) * 24 + ch];
            score += std::max(q * low, q * high);
          }
        }
        (in ? worst_in : best_out) = in ? std::min(worst_in, score) : std::max(best_out, score);
      }
      const auto budget = static_cast<int64_t>(0.2 * static_cast<double>(length - first) + 1e-6);
      EXPECT_EQ(whole_pages, std::max<int64_t>(3, budget / 16));
      EXPECT_GE(worst_in, best_out - 1e-3);
    }
  }
}

TEST(SelectorTest, HataTakesTheSmallestHammingDistancesAndTheNewest) {
  for (int round = 0; round < 30; ++round) {
    const int bits = round % 2 == 0 ? 128 : 64;
    const int window = round % 3 == 2 ? 250 : 0;
    const auto layout = LayoutOf(1, 2, 24, kv::DType::kBF16, 512, window);
    const Options options{.kind = Kind::kHata,
                          .dense_tokens = 0,
                          .dense_layers = 0,
                          .hash_bits = bits,
                          .hash_seed = 11};
    const int64_t length = 300 + round;
    Case c(options, layout, 3, length, round);
    const auto weights = RandomHashWeights(24, bits, 11);
    const auto code = [&](const float* x) {
      std::vector<bool> signs(bits);
      for (int b = 0; b < bits; ++b) {
        float sum = 0;
        for (int i = 0; i < 24; ++i) {
          sum += Product(x[i], weights[i * bits + b]);
        }
        signs[b] = sum > 0;
      }
      return signs;
    };
    for (int h = 0; h < 2; ++h) {
      const int64_t first = c.selection.first;
      std::vector<std::pair<int, int32_t>> order;
      for (int64_t t = first; t < length - 16; ++t) {
        const auto key = code(c.sequence.Key(0, h, t).data());
        int distance = 0;
        for (int g = 0; g < 3; ++g) {
          const auto query = code(c.queries.data() + (h * 3 + g) * 24);
          for (int b = 0; b < bits; ++b) distance += query[b] != key[b] ? 1 : 0;
        }
        order.emplace_back(distance, static_cast<int32_t>(t));
      }
      std::sort(order.begin(), order.end());
      const auto k = static_cast<int64_t>(0.2 * static_cast<double>(length - first) + 1e-6);
      std::vector<int32_t> want;
      for (int64_t i = 0; i < k - 16; ++i) want.push_back(order[i].second);
      for (int64_t t = length - 16; t < length; ++t) want.push_back(static_cast<int32_t>(t));
      std::sort(want.begin(), want.end());
      const auto row = c.selection.Row(h);
      EXPECT_EQ(std::vector<int32_t>(row.begin(), row.end()), want) << "round " << round;
    }
  }
}

TEST(SelectorTest, InfiniGenTakesAsManyAsAreWithinAlphaOnAverage) {
  int below_budget = 0;
  for (int round = 0; round < 40; ++round) {
    const int dim = 16;
    const auto layout = LayoutOf(1, 2, dim, kv::DType::kF32, 512);
    const Options options{.kind = Kind::kInfiniGen,
                          .budget_share = 0.4,
                          .dense_tokens = 0,
                          .dense_layers = 0,
                          .recent_tokens = 8,
                          .alpha = 0.5f,
                          .channel_share = 1.0};
    const int64_t length = 300;
    Case c(options, layout, 3, length, round);
    int64_t above = 0;
    std::vector<std::vector<std::pair<float, int32_t>>> order(2);
    for (int h = 0; h < 2; ++h) {
      const auto query = c.SummedQuery(h, dim);
      float best = -1e30f;
      for (int64_t t = 0; t < length - 8; ++t) {
        const auto key = c.sequence.Key(0, h, t);
        float score = 0;
        for (int i = 0; i < dim; ++i) {
          score += Product(query[i], key[i]);
        }
        best = std::max(best, score);
        order[h].emplace_back(-score, static_cast<int32_t>(t));
      }
      // Mean over the group of q k / sqrt(16) within 0.5: the sum within 0.5 * 3 * 4.
      for (const auto& [minus, t] : order[h]) above += -minus > best - 6.0f ? 1 : 0;
      std::sort(order[h].begin(), order[h].end());
    }
    const int64_t chosen = std::min<int64_t>((above + 1) / 2, 120 - 8);
    below_budget += chosen < 112 ? 1 : 0;
    ASSERT_EQ(c.selection.k, chosen + 8);
    for (int h = 0; h < 2; ++h) {
      std::vector<int32_t> want;
      for (int64_t i = 0; i < chosen; ++i) want.push_back(order[h][i].second);
      for (int64_t t = length - 8; t < length; ++t) want.push_back(static_cast<int32_t>(t));
      std::sort(want.begin(), want.end());
      const auto row = c.selection.Row(h);
      EXPECT_EQ(std::vector<int32_t>(row.begin(), row.end()), want);
    }
  }
  EXPECT_GT(below_budget, 30);
}

// A rotation by 90 degrees of the channels (0, 1), (2, 3), ...: orthogonal and not the identity.
HeadMatrices PairRotation(int layers, int heads, int dim) {
  HeadMatrices skew{.purpose = HeadMatrices::Purpose::kSkew};
  HeadMatrices::Layer layer{.heads = heads, .rows = dim, .columns = dim};
  layer.values.resize(static_cast<size_t>(heads) * dim * dim);
  for (int h = 0; h < heads; ++h) {
    for (int i = 0; i < dim; ++i) {
      layer.values[(h * dim + i) * dim + (i ^ 1)] = i % 2 == 0 ? 1.0f : -1.0f;
    }
  }
  skew.layers.assign(layers, layer);
  return skew;
}

TEST(SelectorTest, ASkewOfAllChannelsSelectsTheSameTokens) {
  const auto layout = LayoutOf(1, 2, 16, kv::DType::kF32, 512);
  const Options options{
      .kind = Kind::kInfiniGen, .dense_tokens = 0, .dense_layers = 0, .channel_share = 1.0};
  Case plain(options, layout, 2, 333, 4);
  Case skewed(options, layout, 2, 333, 4, {.skew = PairRotation(1, 2, 16)});
  EXPECT_EQ(plain.selection.index, skewed.selection.index);
  EXPECT_NE(plain.selector->fingerprint(), skewed.selector->fingerprint());
}

TEST(SelectorTest, InfiniGenChoosesTheChannelsWithTheLargestQueries) {
  const auto layout = LayoutOf(1, 2, 8, kv::DType::kF32, 64);
  for (const bool skew : {false, true}) {
    const auto selector =
        MakeSelector({.kind = Kind::kInfiniGen, .dense_layers = 0}, layout, 2,
                     skew ? Parameters{.skew = PairRotation(1, 2, 8)} : Parameters{});
    MetadataStore store(&selector->metadata(), 64);
    // Two tokens, four query heads of 8: channel 5 and 2 are large in head 0, 0 and 7 in head 1.
    std::vector<float> queries(2 * 4 * 8, 0.1f);
    queries[0 * 8 + 5] = -9;
    queries[(4 + 1) * 8 + 2] = 7;
    queries[2 * 8 + 0] = 5;
    queries[(4 + 3) * 8 + 7] = -6;
    ASSERT_TRUE(selector->ChooseChannels(0, queries, store).ok());
    const auto header = store.Header(0);
    std::vector<uint16_t> channels(header.size() / 2);
    std::memcpy(channels.data(), header.data(), header.size());
    EXPECT_EQ(channels,
              skew ? (std::vector<uint16_t>{3, 4, 1, 6}) : (std::vector<uint16_t>{2, 5, 0, 7}));
  }
}

TEST(SelectorTest, IsDenseForTheFirstLayersShortContextsAndAFullBudget) {
  const auto layout = LayoutOf(4, 2, 8, kv::DType::kBF16, 4096);
  for (const Kind kind : kKinds) {
    const auto selector = MakeSelector({.kind = kind}, layout, 1);
    EXPECT_TRUE(selector->ExtentOf(0, 4096).dense);
    EXPECT_TRUE(selector->ExtentOf(1, 4096).dense);
    EXPECT_FALSE(selector->ExtentOf(2, 4096).dense);
    EXPECT_TRUE(selector->ExtentOf(2, 512).dense);
    EXPECT_FALSE(selector->ExtentOf(2, 513).dense);
    EXPECT_TRUE(
        MakeSelector({.kind = kind, .budget_share = 1.0}, layout, 1)->ExtentOf(3, 4096).dense);
  }
  EXPECT_TRUE(MakeSelector({.kind = Kind::kDense}, layout, 1)->ExtentOf(3, 4096).dense);
}

TEST(SelectorTest, ADenseAnswerNeedsNoMetadata) {
  const auto layout = LayoutOf(3, 2, 8, kv::DType::kBF16, 4096, 100);
  const auto selector = MakeSelector({.kind = Kind::kDense}, layout, 1);
  MetadataStore store(&selector->metadata(), 4096);
  Selection s;
  ASSERT_TRUE(selector->Select(2, store, std::vector<float>(16), 1000, s).ok());
  EXPECT_TRUE(s.dense);
  EXPECT_EQ(s.first, 900);
  EXPECT_EQ(s.k, 100);
}

TEST(SelectorTest, SaysWhichMetadataIsMissingAndNeedsNoneOfTheNewestTokens) {
  const auto layout = LayoutOf(1, 2, 8, kv::DType::kBF16, 1024);
  TestSequence sequence(layout, 1000, 1);
  for (const Kind kind : kKinds) {
    const auto selector =
        MakeSelector({.kind = kind, .dense_tokens = 0, .dense_layers = 0}, layout, 1);
    MetadataStore store(&selector->metadata(), 1024);
    const std::vector<float> queries(16, 1.0f);
    ASSERT_TRUE(selector->ChooseChannels(0, queries, store).ok());
    const int64_t scored = selector->ExtentOf(0, 1000).scored_end;
    EXPECT_LT(scored, 1000);
    ASSERT_TRUE(selector->Extend(0, *sequence, 0, scored - 1, store).ok());
    EXPECT_FALSE(selector->Ready(0, store, 1000));
    Selection selection;
    const absl::Status status = selector->Select(0, store, queries, 1000, selection);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(base::MessageOf(status).find(std::to_string(scored - 1) + " is missing"),
              std::string_view::npos)
        << status;
    ASSERT_TRUE(selector->Extend(0, *sequence, scored - 1, scored, store).ok());
    EXPECT_TRUE(selector->Ready(0, store, 1000));
    EXPECT_TRUE(selector->Select(0, store, queries, 1000, selection).ok());
  }
}

TEST(SelectorTest, MetadataOfTheNewestTokensChangesNothing) {
  const auto layout = LayoutOf(1, 2, 8, kv::DType::kBF16, 1024);
  for (const Kind kind : kKinds) {
    Case with({.kind = kind, .dense_tokens = 0, .dense_layers = 0}, layout, 2, 600, 8);
    MetadataStore without(&with.selector->metadata(), 600);
    ASSERT_TRUE(with.selector->ChooseChannels(0, with.queries, without).ok());
    ASSERT_TRUE(
        with.selector
            ->Extend(0, *with.sequence, 0, with.selector->ExtentOf(0, 600).scored_end, without)
            .ok());
    Selection selection;
    ASSERT_TRUE(with.selector->Select(0, without, with.queries, 600, selection).ok());
    EXPECT_EQ(selection.index, with.selection.index);
  }
}

TEST(SelectorTest, HostileMetadataAndQueriesGiveSomeValidAnswer) {
  const auto layout = LayoutOf(1, 2, 8, kv::DType::kBF16, 1024);
  Random random(3);
  for (const Kind kind : kKinds) {
    const auto selector =
        MakeSelector({.kind = kind, .dense_tokens = 0, .dense_layers = 0}, layout, 2);
    for (int round = 0; round < 50; ++round) {
      MetadataStore store(&selector->metadata(), 1024);
      std::vector<float> queries(32, round % 2 == 0 ? std::numeric_limits<float>::quiet_NaN()
                                                    : std::numeric_limits<float>::infinity());
      ASSERT_TRUE(selector->ChooseChannels(0, queries, store).ok());
      std::vector<std::byte> bytes(selector->metadata().RangeBytes(0, 0, 777));
      for (std::byte& b : bytes) {
        b = round < 25 ? static_cast<std::byte>(0xff) : static_cast<std::byte>(random.Next());
      }
      ASSERT_TRUE(store.Put(0, 0, 777, bytes).ok());
      Selection s;
      ASSERT_TRUE(selector->Select(0, store, queries, 777, s).ok());
      for (int h = 0; h < 2; ++h) {
        const auto row = s.Row(h);
        EXPECT_TRUE(std::is_sorted(row.begin(), row.end()));
        EXPECT_GE(row.front(), 0);
        EXPECT_EQ(row.back(), 776);
      }
    }
  }
}

absl::Status Refusal(Options options, std::vector<int> query_heads = {4, 4},
                     const Parameters& parameters = {}) {
  const auto layout = LayoutOf(2, 2, 16, kv::DType::kBF16, 64);
  options.dense_layers = 0;
  return KvSelector::Create(options, layout, std::move(query_heads), parameters).status();
}

TEST(SelectorTest, RefusesOptionsAndParametersThatMakeNoSense) {
  const auto bad = absl::StatusCode::kInvalidArgument;
  EXPECT_TRUE(Refusal({}).ok());
  EXPECT_EQ(Refusal({.budget_share = 0}).code(), bad);
  EXPECT_EQ(Refusal({.budget_share = std::nan("")}).code(), bad);
  EXPECT_EQ(Refusal({.recent_tokens = 0}).code(), bad);
  EXPECT_EQ(Refusal({.kind = Kind::kHata, .hash_bits = 100}).code(), bad);
  EXPECT_EQ(Refusal({.kind = Kind::kHata, .hash_bits = 1024}).code(), bad);
  EXPECT_EQ(Refusal({.alpha = -1}).code(), bad);
  EXPECT_EQ(Refusal({.channel_share = 1.5}).code(), bad);
  EXPECT_EQ(Refusal({}, {4}).code(), bad);
  EXPECT_EQ(Refusal({}, {4, 3}).code(), bad);
  EXPECT_TRUE(Refusal({}, {4, 4}, {.skew = PairRotation(2, 2, 16)}).ok());
  EXPECT_EQ(Refusal({}, {4, 4}, {.skew = PairRotation(1, 2, 16)}).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Refusal({}, {4, 4}, {.skew = PairRotation(2, 2, 8)}).code(),
            absl::StatusCode::kFailedPrecondition);
  auto crooked = PairRotation(2, 2, 16);
  crooked.layers[1].values[3] = 0.5f;
  EXPECT_EQ(Refusal({}, {4, 4}, {.skew = crooked}).code(), bad);
}

TEST(SelectorTest, FingerprintsTellOptionsApartThatBothSidesMustShare) {
  const auto layout = LayoutOf(1, 2, 16, kv::DType::kBF16, 64);
  const Options base{.kind = Kind::kHata};
  Options seed = base;
  seed.hash_seed = 1;
  Options share = base;
  share.budget_share = 0.1;
  const auto print = [&](const Options& o) { return MakeSelector(o, layout, 1)->fingerprint(); };
  EXPECT_EQ(print(base), print(base));
  EXPECT_NE(print(base), print(seed));
  EXPECT_NE(print(base), print(share));
}

}  // namespace
}  // namespace smartgen::selector
