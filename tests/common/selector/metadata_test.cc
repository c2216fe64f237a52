#include "common/selector/metadata.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "tests/common/selector/selector_test_util.h"

namespace smartgen::selector {
namespace {

constexpr Kind kKinds[] = {Kind::kQuest, Kind::kHata, Kind::kInfiniGen};

Options OptionsOf(Kind kind) { return {.kind = kind, .dense_tokens = 0, .dense_layers = 1}; }

double ShareOfKv(Kind kind, int head_dim) {
  const auto layout = LayoutOf(3, 2, head_dim, kv::DType::kBF16, 4096);
  const auto selector = MakeSelector(OptionsOf(kind), layout, 1);
  return static_cast<double>(selector->metadata().RangeBytes(2, 0, 4096)) /
         static_cast<double>(4096 * layout.TokenBytes(2));
}

TEST(MetadataLayoutTest, SharesOfKvBytesAreThoseOfTheMethod) {
  EXPECT_DOUBLE_EQ(ShareOfKv(Kind::kQuest, 64), 0.0625);
  EXPECT_DOUBLE_EQ(ShareOfKv(Kind::kQuest, 128), 0.0625);
  EXPECT_DOUBLE_EQ(ShareOfKv(Kind::kHata, 128), 0.03125);
  EXPECT_DOUBLE_EQ(ShareOfKv(Kind::kHata, 64), 0.0625);
  EXPECT_DOUBLE_EQ(ShareOfKv(Kind::kInfiniGen, 64), 0.125);
  EXPECT_DOUBLE_EQ(ShareOfKv(Kind::kInfiniGen, 128), 0.125);
}

TEST(MetadataLayoutTest, DenseLayersHaveNoneAndHeadersAreCountedIn) {
  const auto layout = LayoutOf(3, 2, 64, kv::DType::kBF16, 4096);
  const auto selector = MakeSelector(OptionsOf(Kind::kInfiniGen), layout, 1);
  const MetadataLayout& m = selector->metadata();
  EXPECT_EQ(m.RangeBytes(0, 0, 100), 0);
  EXPECT_EQ(m.HeaderBytes(0), 0);
  EXPECT_EQ(m.HeaderBytes(1), 2 * 2 * 16);
  EXPECT_EQ(m.TotalBytes(0, 100), 2 * (64 + 100 * 2 * 16 * 2));
  EXPECT_EQ(MakeSelector(OptionsOf(Kind::kQuest), layout, 1)->metadata().RangeBytes(1, 15, 17),
            2 * 2 * 2 * 64 * 2);
  EXPECT_EQ(MakeSelector({.kind = Kind::kDense}, layout, 1)->metadata().TotalBytes(0, 100), 0);
}

void Choose(const KvSelector& selector, int layer, MetadataStore& store) {
  Random random(77);
  const auto& l = selector.metadata().layers[layer];
  ASSERT_TRUE(
      selector.ChooseChannels(layer, Normals(random, 5LL * l.kv_heads * l.head_dim), store).ok());
}

std::vector<std::byte> Exported(const MetadataStore& store, int layer, int64_t begin, int64_t end) {
  std::vector<std::byte> bytes;
  const absl::Status status = store.Export(layer, begin, end, bytes);
  EXPECT_TRUE(status.ok()) << status;
  return bytes;
}

TEST(MetadataStoreTest, AnyChunkingInAnyOrderThroughTheWireGivesTheSame) {
  Random random(1);
  for (const Kind kind : kKinds) {
    for (const kv::DType dtype : {kv::DType::kF32, kv::DType::kBF16, kv::DType::kF16}) {
      const auto layout = LayoutOf(2, 3, 20, dtype, 256);
      TestSequence sequence(layout, 150, 5);
      const auto selector = MakeSelector(OptionsOf(kind), layout, 1);
      MetadataStore at_once(&selector->metadata(), 256);
      Choose(*selector, 1, at_once);
      ASSERT_TRUE(selector->Extend(1, *sequence, 0, 150, at_once).ok());
      for (int round = 0; round < 20; ++round) {
        std::vector<std::pair<int64_t, int64_t>> chunks;
        for (int64_t at = 0; at < 150;) {
          const int64_t stop =
              round == 0 ? at + 1 : std::min<int64_t>(150, at + 1 + random.Below(40));
          chunks.emplace_back(at, stop);
          at = stop;
        }
        for (size_t i = chunks.size() - 1; i > 0; --i) {
          std::swap(chunks[i], chunks[random.Below(static_cast<uint32_t>(i + 1))]);
        }
        MetadataStore received(&selector->metadata(), 256);
        ASSERT_TRUE(received.PutHeader(1, at_once.Header(1)).ok());
        for (const auto& [begin, end] : chunks) {
          EXPECT_FALSE(received.Complete(1, 0, 150));
          std::vector<std::byte> wire;
          ASSERT_TRUE(selector->Encode(1, *sequence, begin, end, at_once.Header(1), wire).ok());
          ASSERT_EQ(static_cast<int64_t>(wire.size()),
                    selector->metadata().RangeBytes(1, begin, end));
          ASSERT_TRUE(received.Put(1, begin, end, wire).ok());
        }
        EXPECT_TRUE(received.Complete(1, 0, 150));
        ASSERT_EQ(Exported(received, 1, 0, 150), Exported(at_once, 1, 0, 150))
            << KindName(kind) << " " << kv::DTypeName(dtype);
      }
    }
  }
}

TEST(MetadataStoreTest, WholePagesTravelAsTheyLie) {
  for (const Kind kind : kKinds) {
    const auto layout = LayoutOf(2, 3, 20, kv::DType::kBF16, 256);
    TestSequence sequence(layout, 96, 5);
    const auto selector = MakeSelector(OptionsOf(kind), layout, 1);
    MetadataStore store(&selector->metadata(), 256);
    Choose(*selector, 1, store);
    ASSERT_TRUE(selector->Extend(1, *sequence, 0, 96, store).ok());
    const auto bytes = Exported(store, 1, 16, 64);
    const int64_t unit = selector->metadata().UnitBytes(1);
    ASSERT_TRUE(store
                    .Read(1, 16, 64,
                          [&](const MetadataStore::View& view) {
                            EXPECT_EQ(
                                0, std::memcmp(bytes.data(), view.units.data() + unit, 3 * unit));
                          })
                    .ok());
  }
}

TEST(MetadataStoreTest, QuestHoldsTheBoundsOfEachChannelOfAPartialPageToo) {
  const auto layout = LayoutOf(2, 2, 5, kv::DType::kF32, 64);
  TestSequence sequence(layout, 23, 9);
  const auto selector = MakeSelector(OptionsOf(Kind::kQuest), layout, 1);
  MetadataStore store(&selector->metadata(), 64);
  ASSERT_TRUE(selector->Extend(1, *sequence, 0, 23, store).ok());
  const auto bytes = Exported(store, 1, 0, 23);
  ASSERT_EQ(bytes.size(), 2u * 2 * 2 * 5 * 4);
  for (int page = 0; page < 2; ++page) {
    for (int h = 0; h < 2; ++h) {
      for (int c = 0; c < 5; ++c) {
        float low = 1e9f, high = -1e9f;
        for (int64_t t = 16 * page; t < std::min(23, 16 * page + 16); ++t) {
          low = std::min(low, sequence.Key(1, h, t)[c]);
          high = std::max(high, sequence.Key(1, h, t)[c]);
        }
        const std::byte* at = bytes.data() + ((page * 2 + h) * 2 * 5 + c) * 4;
        EXPECT_EQ(LoadElement(at, kv::DType::kF32), low);
        EXPECT_EQ(LoadElement(at + 5 * 4, kv::DType::kF32), high);
      }
    }
  }
}

TEST(MetadataStoreTest, CompletenessIsPerTokenRangeAndLayer) {
  const auto layout = LayoutOf(3, 1, 64, kv::DType::kBF16, 256);
  const auto selector = MakeSelector(OptionsOf(Kind::kHata), layout, 1);
  MetadataStore store(&selector->metadata(), 256);
  const auto put = [&](int layer, int64_t begin, int64_t end) {
    const std::vector<std::byte> bytes(selector->metadata().RangeBytes(layer, begin, end));
    ASSERT_TRUE(store.Put(layer, begin, end, bytes).ok());
  };
  EXPECT_TRUE(store.Complete(0, 0, 256));  // a dense layer needs nothing
  EXPECT_FALSE(store.Complete(1, 0, 1));
  EXPECT_TRUE(store.Complete(1, 0, 0));
  put(1, 0, 10);
  put(1, 20, 30);
  put(1, 40, 50);
  EXPECT_TRUE(store.Complete(1, 3, 10));
  EXPECT_TRUE(store.Complete(1, 20, 30));
  EXPECT_EQ(store.FirstMissing(1, 0, 50), 10);
  EXPECT_EQ(store.FirstMissing(1, 25, 50), 30);
  EXPECT_EQ(store.FirstMissing(1, 12, 15), 12);
  put(1, 5, 45);
  EXPECT_TRUE(store.Complete(1, 0, 50));
  EXPECT_FALSE(store.Complete(2, 0, 50));
  EXPECT_FALSE(store.Complete(0, 50));
  put(2, 0, 50);
  EXPECT_TRUE(store.Complete(0, 50));
  EXPECT_EQ(store.FirstMissing(1, 0, 51), 50);
}

TEST(MetadataStoreTest, RefusesWhatDoesNotFitAndStaysAsItWas) {
  const auto layout = LayoutOf(2, 2, 8, kv::DType::kBF16, 64);
  const auto selector = MakeSelector(OptionsOf(Kind::kInfiniGen), layout, 1);
  MetadataStore store(&selector->metadata(), 32);
  const std::vector<std::byte> bytes(1000);
  const std::span<const std::byte> all(bytes);
  EXPECT_EQ(store.Put(2, 0, 1, all.first(8)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store.Put(-1, 0, 1, all.first(8)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store.Put(1, 3, 2, all.first(0)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store.Put(1, -1, 2, all.first(24)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store.Put(1, 0, 2, all.first(15)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store.Put(1, 31, 33, all.first(16)).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(store.FirstMissing(1, 0, 32), 0);
  // Channels: 2 heads x 2 of 8.
  const auto header = [&](std::vector<uint16_t> channels) {
    return store.PutHeader(1, std::as_bytes(std::span<const uint16_t>(channels))).code();
  };
  EXPECT_EQ(header({0, 1, 2}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(header({0, 0, 1, 2}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(header({3, 2, 1, 2}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(header({0, 1, 1, 8}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(header({0, 1, 1, 7}), absl::StatusCode::kOk);
  EXPECT_EQ(header({0, 1, 1, 7}), absl::StatusCode::kOk);
  EXPECT_EQ(header({0, 1, 1, 6}), absl::StatusCode::kFailedPrecondition);
}

TEST(MetadataStoreTest, NothingIsCompleteWithoutTheHeader) {
  const auto layout = LayoutOf(2, 1, 8, kv::DType::kBF16, 64);
  TestSequence sequence(layout, 16, 1);
  const auto selector = MakeSelector(OptionsOf(Kind::kInfiniGen), layout, 1);
  MetadataStore store(&selector->metadata(), 32);
  EXPECT_EQ(selector->Extend(1, *sequence, 0, 16, store).code(),
            absl::StatusCode::kFailedPrecondition);
  const std::vector<std::byte> bytes(selector->metadata().RangeBytes(1, 0, 16));
  ASSERT_TRUE(store.Put(1, 0, 16, bytes).ok());
  EXPECT_FALSE(store.Complete(1, 0, 16));
  Choose(*selector, 1, store);
  EXPECT_TRUE(store.Complete(1, 0, 16));
}

TEST(MetadataStoreTest, ThreadsPutDisjointRangesWhileOthersRead) {
  const auto layout = LayoutOf(2, 2, 16, kv::DType::kBF16, 1024);
  TestSequence sequence(layout, 1024, 3);
  for (const Kind kind : {Kind::kQuest, Kind::kHata}) {
    const auto selector = MakeSelector(OptionsOf(kind), layout, 1);
    MetadataStore store(&selector->metadata(), 1024);
    std::vector<std::thread> threads;
    for (int worker = 0; worker < 3; ++worker) {
      threads.emplace_back([&, worker] {
        for (int64_t at = worker * 10; at < 1020; at += 30) {
          EXPECT_TRUE(selector->Extend(1, *sequence, at, at + 10, store).ok());
        }
      });
    }
    threads.emplace_back([&] {
      std::vector<std::byte> bytes;
      for (int i = 0; i < 200; ++i) {
        const int64_t end = store.FirstMissing(1, 0, 1020);
        EXPECT_TRUE(store.Export(1, 0, end, bytes).ok());
        bytes.clear();
      }
    });
    for (std::thread& thread : threads) thread.join();
    MetadataStore alone(&selector->metadata(), 1024);
    ASSERT_TRUE(selector->Extend(1, *sequence, 0, 1020, alone).ok());
    EXPECT_EQ(Exported(store, 1, 0, 1020), Exported(alone, 1, 0, 1020));
  }
}

}  // namespace
}  // namespace smartgen::selector
