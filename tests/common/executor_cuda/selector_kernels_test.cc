// The kernels of selection against common/selector: metadata bit for bit through
// KvSelector::Extend, whole selections through KvSelector::Select, top-k by itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "common/selector/kinds.h"
#include "common/selector/selector.h"
#include "common/selector/top_k.h"
#include "tests/common/executor_cuda/kernel_test_util.h"

namespace smartgen::executor::cuda {
namespace {

using selector::Extent;
using selector::Kind;
using selector::KvSelector;
using selector::MetadataStore;
using selector::Selection;

// A random model layer, its sequence, its CPU selector, and metadata made by both sides.
struct Case {
  Case(ShapeRandom& random, Kind kind, int most_tokens)
      : heads(random.Between(1, 3)),
        group(random.Between(1, 4)),
        dim(random.OneIn(8) ? 1 : random.Between(2, random.OneIn(10) ? 150 : 34)),
        tokens(random.OneIn(10) ? 1 : random.Between(1, most_tokens)),
        sequence(random, heads, dim, random.DType(), tokens) {
    selector::Options options;
    options.kind = kind;
    options.dense_layers = 0;
    options.dense_tokens = 0;
    options.budget_share = 0.05 + 0.9 * random.Between(0, 100) / 100;
    options.recent_tokens = random.Between(1, 20);
    options.hash_bits = 64 * random.Between(1, 2);
    options.hash_seed = random.Next();
    options.alpha = 0.1f * static_cast<float>(random.Between(1, 40));
    options.channel_share = 0.01 * random.Between(1, 100);
    selector::Parameters parameters;
    skewed = kind == Kind::kInfiniGen && random.OneIn(2);
    if (skewed) {
      auto& layers = parameters.skew.layers;
      layers.resize(1);
      layers[0].heads = heads;
      layers[0].rows = layers[0].columns = dim;
      // The selector wants orthogonal ones: reflections.
      for (int h = 0; h < heads; ++h) {
        const std::vector<float> axis = random.Normals(dim);
        double square = 0;
        for (const float x : axis) square += double{x} * x;
        for (int i = 0; i < dim; ++i) {
          for (int j = 0; j < dim; ++j) {
            const double value = (i == j ? 1 : 0) - 2 * double{axis[i]} * axis[j] / square;
            layers[0].values.push_back(static_cast<float>(value));
          }
        }
      }
      skew = layers[0].values;
    }
    auto made = KvSelector::Create(options, sequence->layout(), {heads * group}, parameters);
    EXPECT_TRUE(made.ok()) << made.status();
    cpu = std::move(made).value();
    store = std::make_unique<MetadataStore>(&cpu->metadata(), sequence->capacity());
    queries = random.Normals(int64_t{heads} * group * dim);
    EXPECT_TRUE(cpu->ChooseChannels(0, queries, *store).ok());
    const std::vector<std::byte> header = store->Header(0);
    channels.resize(header.size() / 2);
    if (!header.empty()) std::memcpy(channels.data(), header.data(), header.size());
    // In words of 8 bytes, for their alignment.
    units.resize(static_cast<size_t>(kv::KvPool::PagesFor(tokens) * UnitBytes() + 7) / 8);
    weights = selector::RandomHashWeights(dim, options.hash_bits, options.hash_seed);
    // In two pieces, so that a page is extended.
    cut = random.Between(0, tokens);
  }
  int64_t UnitBytes() const { return cpu->metadata().UnitBytes(0); }
  std::byte* Units() { return reinterpret_cast<std::byte*>(units.data()); }

  // The kernel's metadata of [0, tokens).
  LaunchError Encode() {
    for (const auto& [begin, end] : {std::pair{0, cut}, {cut, tokens}}) {
      if (const LaunchError error = EncodeRange(begin, end)) return error;
    }
    return nullptr;
  }
  LaunchError EncodeRange(int64_t begin, int64_t end) {
    const PagedLayer layer = sequence.Layer();
    switch (cpu->metadata().kind) {
      case Kind::kQuest:
        return QuestBounds({.layer = layer, .begin = begin, .end = end, .units = Units()}, nullptr);
      case Kind::kHata:
        return HataEncode({.layer = layer,
                           .begin = begin,
                           .end = end,
                           .weights = weights.data(),
                           .bits = cpu->options().hash_bits,
                           .units = Units()},
                          nullptr);
      default:
        return InfiniGenEncode({.layer = layer,
                                .begin = begin,
                                .end = end,
                                .skew = skewed ? skew.data() : nullptr,
                                .channels = channels.data(),
                                .count = cpu->metadata().layers[0].row,
                                .units = Units()},
                               nullptr);
    }
  }

  int heads, group, dim, tokens;
  PagedSequence sequence;
  bool skewed = false;
  std::vector<float> skew;
  std::unique_ptr<KvSelector> cpu;
  std::unique_ptr<MetadataStore> store;
  std::vector<float> queries;
  std::vector<uint16_t> channels;
  std::vector<uint64_t> units;
  std::vector<float> weights;
  int cut = 0;
};

void ExpectMetadataEqual(Kind kind, uint64_t seed) {
  ShapeRandom random(seed);
  for (int shape = 0; shape < kShapes; ++shape) {
    Case c(random, kind, 80);
    random.ShuffleThreads();
    ASSERT_LAUNCHED(c.Encode());
    ASSERT_TRUE(c.cpu->Extend(0, *c.sequence, 0, c.tokens, *c.store).ok());
    std::vector<std::byte> cpu;
    ASSERT_TRUE(c.store->Export(0, 0, c.tokens, cpu).ok());
    // The same bytes on the wire: put the kernel's units into a store of their own.
    MetadataStore gpu_store(&c.cpu->metadata(), c.sequence->capacity());
    if (!c.store->Header(0).empty()) {
      ASSERT_TRUE(gpu_store.PutHeader(0, c.store->Header(0)).ok());
    }
    const int64_t whole = kv::KvPool::PagesFor(c.tokens) * kPage;
    ASSERT_TRUE(
        gpu_store
            .Put(0, 0, whole,
                 {c.Units(), static_cast<size_t>(c.cpu->metadata().RangeBytes(0, 0, whole))})
            .ok());
    std::vector<std::byte> gpu;
    ASSERT_TRUE(gpu_store.Export(0, 0, c.tokens, gpu).ok());
    ASSERT_EQ(gpu, cpu) << "shape " << shape << ": " << c.heads << " heads, dim " << c.dim << ", "
                        << c.tokens << " tokens, cut at " << c.cut;
  }
}

TEST(QuestKernelTest, BoundsEqualTheCpusBitForBit) { ExpectMetadataEqual(Kind::kQuest, 1); }
TEST(HataKernelTest, CodesEqualTheCpusBitForBit) { ExpectMetadataEqual(Kind::kHata, 2); }
TEST(InfiniGenKernelTest, PartialKeysEqualTheCpusBitForBit) {
  ExpectMetadataEqual(Kind::kInfiniGen, 3);
}

// Selections of whole layers. `select` gives [heads][k].
template <typename Select>
void ExpectSelectionEqual(Kind kind, uint64_t seed, Select select) {
  ShapeRandom random(seed);
  int sparse = 0;
  while (sparse < kShapes) {
    Case c(random, kind, 120);
    const Extent extent = c.cpu->ExtentOf(0, c.tokens);
    if (extent.dense) continue;
    ++sparse;
    random.ShuffleThreads();
    ASSERT_TRUE(c.cpu->Extend(0, *c.sequence, 0, c.tokens, *c.store).ok());
    // The CPU's metadata, which the kernels' equals.
    ASSERT_TRUE(c.store
                    ->Read(0, 0, c.tokens,
                           [&](const MetadataStore::View& view) {
                             std::memcpy(c.Units(), view.units.data(), view.units.size());
                           })
                    .ok());
    Selection selection;
    ASSERT_TRUE(c.cpu->Select(0, *c.store, c.queries, c.tokens, selection).ok());
    std::vector<int32_t> index(selection.index.size(), -1);
    int64_t k = selection.k;
    select(c, extent, index, &k);
    if (testing::Test::HasFatalFailure()) return;
    ASSERT_EQ(k, selection.k);
    ASSERT_EQ(index, selection.index)
        << "shape " << sparse << ": " << c.heads << " heads, group " << c.group << ", dim " << c.dim
        << ", " << c.tokens << " tokens, k " << selection.k;
  }
}

TEST(QuestKernelTest, SelectionsEqualTheCpus) {
  ExpectSelectionEqual(
      Kind::kQuest, 4, [](Case& c, const Extent& extent, std::vector<int32_t>& index, int64_t* k) {
        const int64_t first_page = (extent.first + kPage - 1) / kPage;
        const int64_t cut = first_page * kPage - extent.first;
        const int64_t pages = extent.scored_end / kPage - first_page;
        const int64_t chosen = (extent.budget - cut - (extent.length - extent.scored_end)) / kPage;
        std::vector<float> scores(static_cast<size_t>(c.heads * pages));
        ASSERT_LAUNCHED(QuestScores({.units = c.Units(),
                                     .first_page = first_page,
                                     .pages = pages,
                                     .kv_heads = c.heads,
                                     .group = c.group,
                                     .head_dim = c.dim,
                                     .element = c.sequence.Layer().element,
                                     .queries = c.queries.data(),
                                     .scores = scores.data(),
                                     .score_stride = pages},
                                    nullptr));
        std::vector<int32_t> best(static_cast<size_t>(c.heads * chosen));
        ASSERT_LAUNCHED(TopK({.scores = scores.data(),
                              .stride = pages,
                              .n = pages,
                              .rows = c.heads,
                              .k = chosen,
                              .base = static_cast<int32_t>(first_page),
                              .out = best.data(),
                              .out_stride = chosen},
                             nullptr));
        ASSERT_LAUNCHED(QuestIndex({.pages = best.data(),
                                    .page_stride = chosen,
                                    .chosen = chosen,
                                    .kv_heads = c.heads,
                                    .first = extent.first,
                                    .cut_end = extent.first + cut,
                                    .recent = extent.scored_end,
                                    .length = extent.length,
                                    .index = index.data()},
                                   nullptr));
        *k = cut + chosen * kPage + extent.length - extent.scored_end;
      });
}

TEST(HataKernelTest, SelectionsEqualTheCpus) {
  ExpectSelectionEqual(
      Kind::kHata, 5, [](Case& c, const Extent& extent, std::vector<int32_t>& index, int64_t* k) {
        const int bits = c.cpu->options().hash_bits;
        std::vector<uint64_t> codes(static_cast<size_t>(c.heads * c.group * bits / 64));
        auto* code_bytes = reinterpret_cast<std::byte*>(codes.data());
        ASSERT_LAUNCHED(HataQueries({.queries = c.queries.data(),
                                     .kv_heads = c.heads,
                                     .group = c.group,
                                     .head_dim = c.dim,
                                     .weights = c.weights.data(),
                                     .bits = bits,
                                     .codes = code_bytes},
                                    nullptr));
        const int64_t older = extent.scored_end - extent.first;
        const int64_t recent = extent.length - extent.scored_end;
        std::vector<uint16_t> distances(static_cast<size_t>(c.heads * older));
        ASSERT_LAUNCHED(HataScores({.units = c.Units(),
                                    .first = extent.first,
                                    .tokens = older,
                                    .kv_heads = c.heads,
                                    .group = c.group,
                                    .bits = bits,
                                    .codes = code_bytes,
                                    .distances = distances.data(),
                                    .distance_stride = older},
                                   nullptr));
        ASSERT_LAUNCHED(TopK({.distances = distances.data(),
                              .stride = older,
                              .n = older,
                              .rows = c.heads,
                              .k = extent.budget - recent,
                              .base = static_cast<int32_t>(extent.first),
                              .tail_begin = static_cast<int32_t>(extent.scored_end),
                              .tail_count = recent,
                              .out = index.data(),
                              .out_stride = extent.budget},
                             nullptr));
        *k = extent.budget;
      });
}

TEST(InfiniGenKernelTest, SelectionsEqualTheCpus) {
  ExpectSelectionEqual(
      Kind::kInfiniGen, 6,
      [](Case& c, const Extent& extent, std::vector<int32_t>& index, int64_t* k) {
        const int64_t older = extent.scored_end - extent.first;
        const int64_t recent = extent.length - extent.scored_end;
        std::vector<float> scores(static_cast<size_t>(c.heads * older));
        ASSERT_LAUNCHED(InfiniGenScores({.units = c.Units(),
                                         .first = extent.first,
                                         .tokens = older,
                                         .kv_heads = c.heads,
                                         .group = c.group,
                                         .head_dim = c.dim,
                                         .element = c.sequence.Layer().element,
                                         .queries = c.queries.data(),
                                         .skew = c.skewed ? c.skew.data() : nullptr,
                                         .channels = c.channels.data(),
                                         .count = c.cpu->metadata().layers[0].row,
                                         .scores = scores.data(),
                                         .score_stride = older},
                                        nullptr));
        const float scale = 1.0f / std::sqrt(static_cast<float>(c.dim));
        int64_t chosen = -1;
        ASSERT_LAUNCHED(
            CountAbove({.scores = scores.data(),
                        .stride = older,
                        .n = older,
                        .kv_heads = c.heads,
                        .margin = c.cpu->options().alpha * static_cast<float>(c.group) / scale,
                        .most = extent.budget - recent,
                        .chosen = &chosen},
                       nullptr));
        std::vector<int32_t> rows(static_cast<size_t>(c.heads * extent.budget));
        ASSERT_LAUNCHED(TopK({.scores = scores.data(),
                              .stride = older,
                              .n = older,
                              .rows = c.heads,
                              .k = extent.budget - recent,
                              .device_k = &chosen,
                              .base = static_cast<int32_t>(extent.first),
                              .tail_begin = static_cast<int32_t>(extent.scored_end),
                              .tail_count = recent,
                              .out = rows.data(),
                              .out_stride = extent.budget},
                             nullptr));
        *k = chosen + recent;
        ASSERT_EQ(static_cast<int64_t>(index.size()), c.heads * *k);
        for (int h = 0; h < c.heads; ++h) {
          std::copy_n(rows.begin() + h * extent.budget, *k, index.begin() + h * *k);
        }
      });
}

TEST(TopKKernelTest, ScoresEqualTheCpusWithTiesSignsAndNoNumbers) {
  ShapeRandom random(7);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float special[] = {0.0f, -0.0f, kInfinity, -kInfinity, std::nanf(""), 1e-40f, -1.0f};
  for (int shape = 0; shape < kShapes; ++shape) {
    const int n = random.OneIn(10) ? random.Between(0, 1) : random.Between(0, 700);
    const int k = random.OneIn(5) ? n : random.Between(0, n);
    const int rows = random.Between(1, 3);
    const int stride = n + random.Between(0, 5);
    std::vector<float> scores = random.Normals(int64_t{rows} * stride);
    for (float& score : scores) {
      if (random.OneIn(3)) score = special[random.Below(7)];
      if (random.OneIn(3)) score = static_cast<float>(random.Between(-2, 2));
    }
    const int tail = random.Between(0, 3);
    std::vector<int32_t> want(static_cast<size_t>(rows * (k + tail)));
    std::vector<int32_t> got(want.size(), -1);
    for (int r = 0; r < rows; ++r) {
      const std::span<int32_t> row = std::span(want).subspan(r * (k + tail), k);
      selector::LargestK({scores.data() + r * stride, static_cast<size_t>(n)}, 5, row);
      for (int i = 0; i < tail; ++i) want[r * (k + tail) + k + i] = 900 + i;
    }
    random.ShuffleThreads();
    ASSERT_LAUNCHED(TopK({.scores = scores.data(),
                          .stride = stride,
                          .n = n,
                          .rows = rows,
                          .k = k,
                          .base = 5,
                          .tail_begin = 900,
                          .tail_count = tail,
                          .out = got.data(),
                          .out_stride = k + tail},
                         nullptr));
    ASSERT_EQ(got, want) << "shape " << shape << ": " << k << " of " << n;
  }
}

TEST(TopKKernelTest, DistancesEqualTheCpusWithTies) {
  ShapeRandom random(8);
  for (int shape = 0; shape < kShapes; ++shape) {
    const int n = random.OneIn(10) ? 1 : random.Between(1, 700);
    const int k = random.Between(0, n);
    const int most = random.OneIn(2) ? 65535 : random.Between(1, 40);
    std::vector<uint16_t> distances(static_cast<size_t>(n));
    for (uint16_t& d : distances) d = static_cast<uint16_t>(random.Between(0, most));
    std::vector<int32_t> want(static_cast<size_t>(k));
    std::vector<int32_t> got(want.size(), -1);
    selector::SmallestK(distances, 3, want);
    random.ShuffleThreads();
    ASSERT_LAUNCHED(TopK({.distances = distances.data(),
                          .stride = n,
                          .n = n,
                          .rows = 1,
                          .k = k,
                          .base = 3,
                          .out = got.data(),
                          .out_stride = k},
                         nullptr));
    ASSERT_EQ(got, want) << "shape " << shape << ": " << k << " of " << n;
  }
}

}  // namespace
}  // namespace smartgen::executor::cuda
