#include "common/kv/pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <set>
#include <thread>

#include "tests/common/kv/kv_test_util.h"

namespace smartgen::kv {
namespace {

TEST(KvPool, HoldsAsManyPagesAsFitTheBytes) {
  const int64_t page = SmallLayout().PageBytesTotal();
  const auto pool = KvPool::Create(SmallLayout(), {.bytes = 10 * page - 1});
  ASSERT_TRUE(pool.ok());
  EXPECT_EQ((*pool)->total_pages(), 9);
  EXPECT_EQ((*pool)->free_pages(), 9);
}

TEST(KvPool, RefusesLessThanOnePage) {
  const auto pool = KvPool::Create(SmallLayout(), {.bytes = SmallLayout().PageBytesTotal() - 1});
  EXPECT_EQ(pool.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(KvPool, RefusesWhatCannotBeMapped) {
  const KvLayout huge{
      .layers = std::vector<LayerLayout>(1024, {.kv_heads = 1024, .head_dim = 1024}),
      .dtype = DType::kF32,
      .token_capacity = 1024};
  const auto pool = KvPool::Create(huge, {.bytes = int64_t{1} << 52});
  EXPECT_EQ(pool.status().code(), absl::StatusCode::kResourceExhausted) << pool.status().ToString();
}

TEST(KvPool, RefusesMorePagesThanIdsExist) {
  const KvLayout tiny{.layers = {{.kv_heads = 1, .head_dim = 1}}, .token_capacity = 16};
  const auto pool = KvPool::Create(tiny, {.bytes = std::numeric_limits<int64_t>::max()});
  EXPECT_EQ(pool.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(KvPool, ALargePoolTakesNoMemoryUntilItIsWritten) {
  const KvLayout layout{.layers = std::vector<LayerLayout>(8, {.kv_heads = 8, .head_dim = 128}),
                        .token_capacity = 1024};
  const auto pool = KvPool::Create(layout, {.bytes = int64_t{64} << 30});
  ASSERT_TRUE(pool.ok()) << pool.status().ToString();
  const auto pages = (*pool)->Allocate((*pool)->total_pages());
  ASSERT_TRUE(pages.ok());
  std::byte* last = (*pool)->Data(7, pages->back());
  std::memset(last, 1, static_cast<size_t>(layout.PageBytes(7)));
  EXPECT_EQ(last[layout.PageBytes(7) - 1], std::byte{1});
}

TEST(KvPool, AllocateIsAllOrNothing) {
  const auto pool = MakePool(4);
  const auto three = pool->Allocate(3);
  ASSERT_TRUE(three.ok());
  const auto two = pool->Allocate(2);
  EXPECT_EQ(two.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(base::MessageOf(two.status()), "KV pool: want 2 pages, free 1 of 4");
  EXPECT_EQ(pool->free_pages(), 1);
  EXPECT_EQ(pool->Allocate(std::numeric_limits<int64_t>::max()).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pool->Allocate(-1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(pool->Allocate(0).ok());
}

TEST(KvPool, TheLastReferenceFreesThePage) {
  const auto pool = MakePool(2);
  const PageId page = pool->Allocate(1)->front();
  pool->AddRef(page);
  EXPECT_EQ(pool->ref_count(page), 2);
  pool->Release(page);
  EXPECT_EQ(pool->free_pages(), 1);
  pool->Release(page);
  EXPECT_EQ(pool->ref_count(page), 0);
  EXPECT_EQ(pool->free_pages(), 2);
}

TEST(KvPool, PagesOfAFreshPoolAreNeighboursInAscendingOrder) {
  const auto pool = MakePool(8);
  EXPECT_EQ(*pool->Allocate(4), (std::vector<PageId>{0, 1, 2, 3}));
}

TEST(KvPool, PagesDoNotOverlap) {
  const auto pool = MakePool(16);
  const auto pages = pool->Allocate(16);
  ASSERT_TRUE(pages.ok());
  for (int layer = 0; layer < 2; ++layer) {
    for (const PageId page : *pages) {
      std::memset(pool->Data(layer, page), page * 2 + layer,
                  static_cast<size_t>(pool->layout().PageBytes(layer)));
    }
  }
  for (int layer = 0; layer < 2; ++layer) {
    for (const PageId page : *pages) {
      const std::byte want{static_cast<uint8_t>(page * 2 + layer)};
      EXPECT_EQ(pool->Data(layer, page)[0], want);
      EXPECT_EQ(pool->Data(layer, page)[pool->layout().PageBytes(layer) - 1], want);
    }
  }
}

TEST(KvPool, APageHandedOutAnewHasNothing) {
  const auto pool = MakePool(1);
  const PageId page = pool->Allocate(1)->front();
  pool->residency().MarkLocal(page, 1, 0, kPageTokens);
  pool->Release(page);
  ASSERT_TRUE(pool->Allocate(1).ok());
  for (int token = 0; token < kPageTokens; ++token) {
    EXPECT_EQ(pool->residency().Get(page, 1, token), Residency::kNothing);
  }
}

#ifdef NDEBUG
TEST(KvPool, AReleaseTooManyIsCountedAndChangesNothing) {
  const auto pool = MakePool(2);
  const PageId page = pool->Allocate(1)->front();
  pool->Release(page);
  pool->Release(page);
  EXPECT_EQ(pool->misuses(), 1);
  EXPECT_EQ(pool->free_pages(), 2);
  // No page has two owners.
  const auto pages = pool->Allocate(2);
  ASSERT_TRUE(pages.ok());
  EXPECT_NE((*pages)[0], (*pages)[1]);
  EXPECT_FALSE(pool->Allocate(1).ok());
}

TEST(KvPool, PagesThatDoNotExistAreCountedToo) {
  const auto pool = MakePool(2);
  pool->Release(PageId{-1});
  pool->Release(PageId{2});
  pool->AddRef(PageId{1});
  EXPECT_EQ(pool->misuses(), 3);
  EXPECT_EQ(pool->free_pages(), 2);
}
#else
TEST(KvPoolDeathTest, AReleaseTooManyAbortsDebugBuilds) {
  const auto pool = MakePool(2);
  const PageId page = pool->Allocate(1)->front();
  pool->Release(page);
  EXPECT_DEATH(pool->Release(page), "");
}
#endif

TEST(KvPool, AsksTheEvictorForWhatIsMissing) {
  const auto pool = MakePool(4);
  auto held = *pool->Allocate(4);
  std::vector<int64_t> asked;
  pool->SetEvictor([&](int64_t pages) {
    asked.push_back(pages);
    if (held.empty()) return int64_t{0};
    pool->Release(held.back());
    held.pop_back();
    return int64_t{1};
  });
  ASSERT_TRUE(pool->Allocate(2).ok());
  EXPECT_EQ(asked, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(pool->Allocate(3).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pool->free_pages(), 2);
  // More than the pool has: nobody's pages are thrown out for it.
  asked.clear();
  EXPECT_FALSE(pool->Allocate(5).ok());
  EXPECT_TRUE(asked.empty());
  pool->SetEvictor(nullptr);
}

TEST(KvPool, ManyThreadsNeverGetTheSamePage) {
  const auto pool = MakePool(64);
  std::vector<std::atomic<int>> owners(64);
  std::vector<std::thread> threads;
  std::atomic<int> clashes{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 2000; ++round) {
        auto pages = pool->Allocate(1 + (round * 7 + t) % 24);
        if (!pages.ok()) continue;
        for (const PageId page : *pages) clashes += owners[page].fetch_add(1);
        for (const PageId page : *pages) owners[page].fetch_sub(1);
        pool->Release(*pages);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(clashes, 0);
  EXPECT_EQ(pool->free_pages(), 64);
  EXPECT_EQ(pool->misuses(), 0);
}

TEST(ResidencyMask, AllowsOnlyTheWrittenTransitions) {
  ResidencyMask mask(2, SmallLayout().layers);
  mask.MarkRemote(1, 0, 2, 6);
  EXPECT_EQ(mask.Get(1, 0, 1), Residency::kNothing);
  EXPECT_EQ(mask.Get(1, 0, 2), Residency::kRemote);
  mask.MarkLocal(1, 0, 4, 8);
  EXPECT_EQ(mask.Get(1, 0, 3), Residency::kRemote);
  EXPECT_EQ(mask.Get(1, 0, 4), Residency::kLocal);
  EXPECT_EQ(mask.Get(1, 0, 8), Residency::kNothing);
  mask.MarkRemote(1, 0, 0, kPageTokens);
  EXPECT_EQ(mask.Get(1, 0, 4), Residency::kLocal);
  EXPECT_TRUE(mask.AllLocal(1, 0, 4, 8));
  EXPECT_FALSE(mask.AllLocal(1, 0, 3, 8));
  // Neither the other layer nor the other page is touched.
  EXPECT_EQ(mask.Get(1, 1, 4), Residency::kNothing);
  EXPECT_EQ(mask.Get(0, 0, 4), Residency::kNothing);
  mask.Reset(1);
  EXPECT_EQ(mask.Get(1, 0, 4), Residency::kNothing);
}

TEST(ResidencyMask, ATokenBecomesLocalWithItsLastHead) {
  ResidencyMask mask(2, SmallLayout().layers);  // 3 heads, then 2
  mask.MarkRemote(1, 0, 0, kPageTokens);
  mask.MarkHeadLocal(1, 0, 2, 0, 10);
  mask.MarkHeadLocal(1, 0, 0, 4, kPageTokens);
  EXPECT_TRUE(mask.HeadLocal(1, 0, 2, 9));
  EXPECT_FALSE(mask.HeadLocal(1, 0, 2, 10));
  EXPECT_FALSE(mask.HeadLocal(1, 0, 1, 5));
  EXPECT_EQ(mask.Get(1, 0, 5), Residency::kRemote);
  mask.MarkHeadLocal(1, 0, 1, 3, 6);
  EXPECT_EQ(mask.Get(1, 0, 3), Residency::kRemote);  // head 0 is missing
  EXPECT_EQ(mask.Get(1, 0, 4), Residency::kLocal);
  EXPECT_EQ(mask.Get(1, 0, 5), Residency::kLocal);
  EXPECT_EQ(mask.Get(1, 0, 6), Residency::kRemote);
}

TEST(ResidencyMask, HeadBitsBelongToTheirPageAndLayer) {
  ResidencyMask mask(2, SmallLayout().layers);
  mask.MarkHeadLocal(1, 0, 2, 0, kPageTokens);
  for (int head = 0; head < 2; ++head) EXPECT_FALSE(mask.HeadLocal(1, 1, head, 0));
  for (int head = 0; head < 3; ++head) EXPECT_FALSE(mask.HeadLocal(0, 0, head, 0));
  mask.MarkHeadLocal(1, 0, 1, 3, 3);  // no token
  EXPECT_FALSE(mask.HeadLocal(1, 0, 1, 3));
}

TEST(ResidencyMask, AllHeadsOfALocalTokenAreLocal) {
  ResidencyMask mask(1, SmallLayout().layers);
  mask.MarkLocal(0, 1, 7, 8);
  EXPECT_TRUE(mask.HeadLocal(0, 1, 0, 7));
  EXPECT_TRUE(mask.HeadLocal(0, 1, 1, 7));
  EXPECT_FALSE(mask.HeadLocal(0, 1, 1, 6));
}

TEST(ResidencyMask, APageHandedOutAnewHasNoHeadsEither) {
  ResidencyMask mask(2, SmallLayout().layers);
  mask.MarkHeadLocal(0, 0, 0, 0, 4);
  mask.MarkHeadLocal(1, 1, 1, 0, 4);
  mask.Reset(1);
  EXPECT_FALSE(mask.HeadLocal(1, 1, 1, 0));
  EXPECT_TRUE(mask.HeadLocal(0, 0, 0, 0));
}

// 100,000 blocks (of one page and layer) are written and marked by one thread while two others read
// the bytes of all that they see as local, and a fourth marks the rest as remote.
TEST(ResidencyMask, StressAReaderThatSeesLocalReadsFinalBytes) {
  constexpr int64_t kPages = 50000;
  const KvLayout layout{.layers = {{.kv_heads = 1, .head_dim = 2}, {.kv_heads = 1, .head_dim = 2}},
                        .dtype = DType::kF32,
                        .token_capacity = kPages * kPageTokens};
  const auto pool = MakePool(kPages, layout);
  KvSequence sequence(pool.get());
  ASSERT_TRUE(sequence.Reserve(kPages * kPageTokens).ok());
  const auto value = [](int layer, int64_t page) {
    return static_cast<uint32_t>((page * 2 + layer) * 2654435761U | 1U);
  };
  std::atomic<int64_t> wrong{0};
  std::atomic<int64_t> seen{0};
  const auto read = [&](int64_t first, int64_t step) {
    for (int64_t done = 0; done < kPages * 2; ++done) {
      const int64_t at = (first + done * step) % (kPages * 2);
      const int layer = static_cast<int>(at & 1);
      const int64_t page = at >> 1;
      if (!sequence.AllLocal(layer, page * kPageTokens, (page + 1) * kPageTokens)) continue;
      ++seen;
      uint32_t words[2];
      const std::byte* data = sequence.Page(layer, page);
      std::memcpy(&words[0], data, 4);
      std::memcpy(&words[1], data + layout.PageBytes(layer) - 4, 4);
      if (words[0] != value(layer, page) || words[1] != value(layer, page)) ++wrong;
    }
  };
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    for (int64_t page = 0; page < kPages; ++page) {
      for (int layer = 0; layer < 2; ++layer) {
        const uint32_t word = value(layer, page);
        std::byte* data = sequence.Page(layer, page);
        for (int64_t i = 0; i < layout.PageBytes(layer); i += 4) std::memcpy(data + i, &word, 4);
        sequence.MarkLocal(layer, page * kPageTokens, (page + 1) * kPageTokens);
      }
    }
  });
  threads.emplace_back([&] { read(0, 1); });
  threads.emplace_back([&] { read(0, 99991); });
  threads.emplace_back([&] {
    for (int layer = 0; layer < 2; ++layer) sequence.MarkRemote(layer, 0, sequence.capacity());
  });
  for (std::thread& thread : threads) thread.join();
  read(0, 1);
  EXPECT_EQ(wrong, 0);
  EXPECT_GE(seen, kPages * 2);
  EXPECT_TRUE(sequence.AllLocal(0, 0, sequence.capacity()));
  EXPECT_TRUE(sequence.AllLocal(1, 0, sequence.capacity()));
}

// Each head of a block is written and marked by a thread of its own, in an order of its own; two
// more read every head that they see as local, and all heads of what they see as a local token.
TEST(ResidencyMask, StressAReaderThatSeesAHeadReadsItsFinalBytes) {
  constexpr int64_t kPages = 50000;
  constexpr int kHeads = 2;
  const KvLayout layout{.layers = std::vector<LayerLayout>(2, {.kv_heads = kHeads, .head_dim = 1}),
                        .dtype = DType::kF32,
                        .token_capacity = kPages * kPageTokens};
  const auto pool = MakePool(kPages, layout);
  KvSequence sequence(pool.get());
  ASSERT_TRUE(sequence.Reserve(kPages * kPageTokens).ok());
  const auto value = [](int layer, int head, int64_t token) {
    return static_cast<uint32_t>(((token * 2 + layer) * kHeads + head) * 2654435761U | 1U);
  };
  const auto at = [&](int layer, int head, int64_t token, bool v) {
    const int row = static_cast<int>(token % kPageTokens);
    return sequence.Page(layer, token / kPageTokens) +
           (v ? layout.VOffset(layer, head, row) : layout.KOffset(layer, head, row));
  };
  std::atomic<int64_t> wrong{0};
  std::atomic<int64_t> seen{0};
  const auto read = [&](int64_t first, int64_t step) {
    for (int64_t done = 0; done < kPages * 2; ++done) {
      const int64_t block = (first + done * step) % (kPages * 2);
      const int layer = static_cast<int>(block & 1);
      const int64_t token = (block >> 1) * kPageTokens + done % kPageTokens;
      const bool whole = sequence.AllLocal(layer, token, token + 1);
      for (int head = 0; head < kHeads; ++head) {
        if (!whole && !sequence.HeadLocal(layer, head, token)) continue;
        ++seen;
        uint32_t k, v;
        std::memcpy(&k, at(layer, head, token, false), 4);
        std::memcpy(&v, at(layer, head, token, true), 4);
        if (k != value(layer, head, token) || v != k) ++wrong;
      }
    }
  };
  const auto write = [&](int head) {
    for (int64_t i = 0; i < kPages * 2; ++i) {
      const int64_t block = head == 0 ? i : (i * 99991) % (kPages * 2);
      const int layer = static_cast<int>(block & 1);
      const int64_t begin = (block >> 1) * kPageTokens;
      for (int64_t token = begin; token < begin + kPageTokens; ++token) {
        const uint32_t word = value(layer, head, token);
        std::memcpy(at(layer, head, token, false), &word, 4);
        std::memcpy(at(layer, head, token, true), &word, 4);
      }
      sequence.MarkHeadLocal(layer, head, begin, begin + kPageTokens);
    }
  };
  std::vector<std::thread> threads;
  threads.emplace_back([&] { write(0); });
  threads.emplace_back([&] { write(1); });
  threads.emplace_back([&] { read(0, 1); });
  threads.emplace_back([&] { read(0, 99991); });
  for (std::thread& thread : threads) thread.join();
  read(0, 1);
  EXPECT_EQ(wrong, 0);
  EXPECT_GE(seen, kPages * 2 * kHeads);
  // No token was left behind by two heads that came at the same time.
  EXPECT_TRUE(sequence.AllLocal(0, 0, sequence.capacity()));
  EXPECT_TRUE(sequence.AllLocal(1, 0, sequence.capacity()));
}

}  // namespace
}  // namespace smartgen::kv
