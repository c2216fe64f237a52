#include "common/kv/prefix_cache.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "common/base/clock.h"
#include "tests/common/kv/kv_test_util.h"

namespace smartgen::kv {
namespace {

using Pages = std::vector<PageId>;

class PrefixCacheTest : public testing::Test {
 protected:
  // Runs a request over `tokens` as a daemon does and returns its pages.
  Pages Serve(PrefixCache& cache, const std::vector<int32_t>& tokens) {
    const auto count = static_cast<int64_t>(tokens.size());
    KvSequence sequence(pool_.get(), cache.Lookup(tokens, count - 1));
    EXPECT_TRUE(sequence.Reserve(count).ok());
    MarkAllLocal(sequence, count);
    cache.Insert(tokens, sequence);
    return Pages(sequence.pages().begin(), sequence.pages().end());
  }
  // Pages that Lookup would give, without keeping them.
  Pages Peek(PrefixCache& cache, const std::vector<int32_t>& tokens, int64_t max_tokens = 1 << 20) {
    const Pages pages = cache.Lookup(tokens, max_tokens);
    pool_->Release(pages);
    return pages;
  }

  std::unique_ptr<KvPool> pool_ = MakePool(32);
  PrefixCache cache_{pool_.get(), {.salt = "model a"}};
};

TEST_F(PrefixCacheTest, FindsTheLongestPrefixOfWholePages) {
  const Pages pages = Serve(cache_, Tokens(70));  // four whole pages and a part
  EXPECT_EQ(Peek(cache_, Tokens(70)), Pages(pages.begin(), pages.begin() + 4));
  EXPECT_EQ(Peek(cache_, Tokens(40)), Pages(pages.begin(), pages.begin() + 2));
  EXPECT_EQ(Peek(cache_, Tokens(15)), Pages{});
  EXPECT_EQ(Peek(cache_, Tokens(70, 1)), Pages{});
  // A prompt of whole pages still computes its last token: the caller says so by max_tokens.
  EXPECT_EQ(Peek(cache_, Tokens(64), 63), Pages(pages.begin(), pages.begin() + 3));
  EXPECT_EQ(cache_.stats().pages, 4);
  EXPECT_EQ(pool_->free_pages(), 28);
}

TEST_F(PrefixCacheTest, W12_TurnTwoThatDiffersInsideABlockMatchesUpToTheLastEqualWholeBlock) {
  const Pages pages = Serve(cache_, Tokens(64));
  std::vector<int32_t> turn_two = Tokens(96);
  turn_two[40] = 9999;  // in the middle of the third page
  EXPECT_EQ(Peek(cache_, turn_two), Pages(pages.begin(), pages.begin() + 2));
  // Equal blocks behind the difference are another context and do not count.
  turn_two[0] = 9999;
  EXPECT_EQ(Peek(cache_, turn_two), Pages{});
}

TEST_F(PrefixCacheTest, L6_AbortBetweenLookupAndAllocationReturnsEveryReference) {
  const Pages pages = Serve(cache_, Tokens(64));
  for (const PageId page : pages) EXPECT_EQ(pool_->ref_count(page), 1);
  {
    // The pages are in the sequence's hands at once; an abort before Reserve drops it.
    KvSequence aborted(pool_.get(), cache_.Lookup(Tokens(64), 64));
    for (const PageId page : pages) EXPECT_EQ(pool_->ref_count(page), 2);
  }
  {
    // The same where allocation itself fails.
    KvSequence refused(pool_.get(), cache_.Lookup(Tokens(64), 64));
    EXPECT_FALSE(refused.Reserve(33 * kPageTokens).ok());
  }
  for (const PageId page : pages) EXPECT_EQ(pool_->ref_count(page), 1);
  cache_.Clear();
  EXPECT_EQ(pool_->free_pages(), 32);
}

TEST_F(PrefixCacheTest, SaltsKeepModelsApart) {
  const auto other_pool = MakePool(8);
  PrefixCache other(other_pool.get(), {.salt = "model b"});
  Serve(cache_, Tokens(32));
  EXPECT_TRUE(other.Lookup(Tokens(32), 32).empty());
}

TEST_F(PrefixCacheTest, W7_PagesThatAreNotLocalInAllLayersStayOut) {
  KvSequence sequence(pool_.get());
  ASSERT_TRUE(sequence.Reserve(64).ok());
  MarkAllLocal(sequence, 16);
  sequence.MarkLocal(0, 16, 64);
  sequence.MarkLocal(1, 16, 31);  // one token of layer 1 never came
  sequence.MarkLocal(1, 32, 64);
  cache_.Insert(Tokens(64), sequence);
  EXPECT_EQ(Peek(cache_, Tokens(64)), Pages{sequence.pages()[0]});
}

TEST_F(PrefixCacheTest, W7_ADamagedPageGoesWithAllThatFollowIt) {
  const Pages first = Serve(cache_, Tokens(64));
  std::vector<int32_t> branch = Tokens(80);
  branch[50] = 9999;  // shares three pages
  Serve(cache_, branch);
  EXPECT_EQ(cache_.stats().pages, 6);
  KvSequence sharer(pool_.get(), cache_.Lookup(branch, 80));
  cache_.Remove(first[1]);
  EXPECT_EQ(cache_.stats().pages, 1);
  EXPECT_EQ(Peek(cache_, Tokens(64)), Pages{first[0]});
  EXPECT_EQ(Peek(cache_, branch), Pages{first[0]});
  // Whoever holds the pages keeps them until it is done with them.
  EXPECT_EQ(pool_->ref_count(first[1]), 1);
  cache_.Remove(first[1]);  // again: harmless
  cache_.Remove(first[0]);
  EXPECT_EQ(cache_.stats().pages, 0);
}

TEST_F(PrefixCacheTest, TheCachedPageWinsOverALaterCopy) {
  const Pages first = Serve(cache_, Tokens(32));
  // A request that started before the first one had finished has its own copies.
  KvSequence twin(pool_.get());
  ASSERT_TRUE(twin.Reserve(48).ok());
  MarkAllLocal(twin, 48);
  cache_.Insert(Tokens(48), twin);
  EXPECT_EQ(Peek(cache_, Tokens(48)), (Pages{first[0], first[1], twin.pages()[2]}));
  EXPECT_EQ(pool_->ref_count(twin.pages()[0]), 1);
}

TEST_F(PrefixCacheTest, APageOfferedUnderOtherTokensIsRefused) {
  KvSequence sequence(pool_.get());
  ASSERT_TRUE(sequence.Reserve(32).ok());
  MarkAllLocal(sequence, 32);
  cache_.Insert(Tokens(32), sequence);
  cache_.Insert(Tokens(32, 500), sequence);
  EXPECT_EQ(cache_.stats().pages, 2);
  EXPECT_EQ(Peek(cache_, Tokens(32, 500)), Pages{});
}

TEST_F(PrefixCacheTest, LeastRecentlyUsedLeavesGoFirst) {
  const Pages a = Serve(cache_, Tokens(48, 0));
  const Pages b = Serve(cache_, Tokens(48, 1000));
  Peek(cache_, Tokens(48, 0));  // a is now the younger one
  EXPECT_EQ(cache_.Evict(2), 2);
  EXPECT_EQ(Peek(cache_, Tokens(48, 1000)), Pages{b[0]});
  EXPECT_EQ(Peek(cache_, Tokens(48, 0)), a);
  EXPECT_EQ(cache_.stats().evicted_pages, 2);
}

TEST_F(PrefixCacheTest, AParentUsedLatelyOutlivesOtherLeaves) {
  const Pages a = Serve(cache_, Tokens(48, 0));
  const Pages b = Serve(cache_, Tokens(48, 1000));
  Peek(cache_, Tokens(16, 0));  // only the first page of a
  // a's last two pages are the oldest, then all of b; a's first page is the youngest.
  EXPECT_EQ(cache_.Evict(5), 5);
  EXPECT_EQ(Peek(cache_, Tokens(48, 0)), Pages{a[0]});
  EXPECT_EQ(Peek(cache_, Tokens(48, 1000)), Pages{});
}

TEST_F(PrefixCacheTest, L11_PagesThatSomebodyHoldsAreNeverEvicted) {
  Serve(cache_, Tokens(64));
  auto posted_send = std::make_shared<KvSequence>(pool_.get(), cache_.Lookup(Tokens(48), 48));
  EXPECT_EQ(cache_.Evict(100), 1);
  EXPECT_EQ(cache_.Evict(100), 0);
  posted_send.reset();
  EXPECT_EQ(cache_.Evict(100), 3);
  EXPECT_EQ(pool_->free_pages(), 32);
}

TEST_F(PrefixCacheTest, ThePoolTakesPagesBackWhenItIsShort) {
  Serve(cache_, Tokens(256, 0));
  Serve(cache_, Tokens(256, 1000));
  EXPECT_EQ(pool_->free_pages(), 0);
  KvSequence sequence(pool_.get());
  ASSERT_TRUE(sequence.Reserve(20 * kPageTokens).ok());
  EXPECT_EQ(cache_.stats().pages, 12);
  EXPECT_EQ(Peek(cache_, Tokens(256, 1000)).size(), 12u);
  EXPECT_FALSE(sequence.Reserve(33 * kPageTokens).ok());
}

TEST_F(PrefixCacheTest, CountsTokensAskedForAndFound) {
  Serve(cache_, Tokens(64));  // looks up 64, finds none
  Peek(cache_, Tokens(40));
  const PrefixCache::Stats stats = cache_.stats();
  EXPECT_EQ(stats.lookup_tokens, 104);
  EXPECT_EQ(stats.hit_tokens, 32);
}

TEST(PrefixCache, KeepsToItsShareOfThePool) {
  const auto pool = MakePool(32);
  PrefixCache cache(pool.get(), {.max_share = 0.25});
  for (int i = 0; i < 4; ++i) {
    KvSequence sequence(pool.get());
    ASSERT_TRUE(sequence.Reserve(80).ok());
    MarkAllLocal(sequence, 80);
    cache.Insert(Tokens(80, i * 1000), sequence);
    EXPECT_LE(cache.stats().pages, 8);
  }
  // The newest is there as a whole.
  const auto pages = cache.Lookup(Tokens(80, 3000), 80);
  EXPECT_EQ(pages.size(), 5u);
  pool->Release(pages);
}

TEST(PrefixCache, AChainLongerThanTheShareNeverEvictsItself) {
  const auto pool = MakePool(32);
  PrefixCache cache(pool.get(), {.max_share = 0.25});
  {
    KvSequence sequence(pool.get());
    ASSERT_TRUE(sequence.Reserve(256).ok());
    MarkAllLocal(sequence, 256);
    cache.Insert(Tokens(256), sequence);
  }
  const auto pages = cache.Lookup(Tokens(256), 256);
  EXPECT_EQ(pages.size(), 8u);
  pool->Release(pages);
}

TEST(PrefixCache, DisabledItHoldsNothing) {
  const auto pool = MakePool(8);
  PrefixCache cache(pool.get(), {.enabled = false});
  KvSequence sequence(pool.get());
  ASSERT_TRUE(sequence.Reserve(32).ok());
  MarkAllLocal(sequence, 32);
  cache.Insert(Tokens(32), sequence);
  EXPECT_TRUE(cache.Lookup(Tokens(32), 32).empty());
  EXPECT_EQ(cache.stats().pages, 0);
}

TEST(PrefixCache, GivesAllPagesBackWhenDestroyed) {
  const auto pool = MakePool(8);
  {
    PrefixCache cache(pool.get(), {});
    KvSequence sequence(pool.get());
    ASSERT_TRUE(sequence.Reserve(128).ok());
    MarkAllLocal(sequence, 128);
    cache.Insert(Tokens(128), sequence);
  }
  EXPECT_EQ(pool->free_pages(), 8);
  EXPECT_TRUE(pool->Allocate(8).ok());
  EXPECT_FALSE(pool->Allocate(1).ok());  // and does not ask a cache that is gone
}

// Against a plain model: a set of prefixes. Whatever Lookup gives must be what was stored for
// exactly those tokens (each page carries a stamp of its content).
TEST(PrefixCache, RandomConversationsNeverGetForeignPages) {
  const auto pool = MakePool(64);
  PrefixCache cache(pool.get(), {.max_share = 0.8});
  std::mt19937 random(11);
  const auto stamp = [](std::span<const int32_t> tokens) {
    uint64_t h = 1;
    for (const int32_t token : tokens) h = (h ^ static_cast<uint32_t>(token)) * 1099511628211U;
    return h;
  };
  int64_t hits = 0;
  for (int round = 0; round < 4000; ++round) {
    // Few distinct values a page: prefixes are shared often.
    std::vector<int32_t> tokens(16 * (1 + random() % 12));
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = i % 16 == 0 ? static_cast<int32_t>(random() % 3) : 7;
    }
    const auto count = static_cast<int64_t>(tokens.size());
    auto prefix = cache.Lookup(tokens, count);
    hits += static_cast<int64_t>(prefix.size());
    KvSequence sequence(pool.get(), std::move(prefix));
    ASSERT_TRUE(sequence.Reserve(count).ok());
    for (int64_t page = 0; page < count / 16; ++page) {
      const uint64_t want = stamp(std::span(tokens).first(static_cast<size_t>(page + 1) * 16));
      auto* data = reinterpret_cast<uint64_t*>(sequence.Page(0, page));
      if (page * 16 < sequence.prefix_tokens()) {
        ASSERT_EQ(*data, want);
      }
      *data = want;
    }
    MarkAllLocal(sequence, count);
    cache.Insert(tokens, sequence);
    if (random() % 50 == 0) cache.Remove(static_cast<PageId>(random() % 64));
  }
  EXPECT_GT(hits, 1000);
  cache.Clear();
  EXPECT_EQ(pool->free_pages(), 64);
  EXPECT_EQ(pool->misuses(), 0);
}

TEST(PrefixCache, ManyThreadsShareOneCacheUnderPressure) {
  const auto pool = MakePool(48);
  {
    PrefixCache cache(pool.get(), {});
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937 random(t);
        for (int round = 0; round < 500; ++round) {
          const auto tokens = Tokens(16 * (1 + random() % 10), static_cast<int32_t>(random() % 5));
          const auto count = static_cast<int64_t>(tokens.size());
          KvSequence sequence(pool.get(), cache.Lookup(tokens, count - 1));
          if (!sequence.Reserve(count).ok()) continue;
          MarkAllLocal(sequence, count);
          cache.Insert(tokens, sequence);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(pool->free_pages(), 48);
  EXPECT_EQ(pool->misuses(), 0);
}

// Eviction that looked at every entry for each page would need 5e9 steps here; the bound is loose
// enough for a sanitizer build on a busy machine.
TEST(PrefixCache, EvictionDoesNotScanTheCache) {
  constexpr int64_t kPages = 100000;
  const KvLayout layout{.layers = {{.kv_heads = 1, .head_dim = 1}},
                        .token_capacity = kPages * kPageTokens};
  const auto pool = MakePool(kPages, layout);
  PrefixCache cache(pool.get(), {});
  for (int chain = 0; chain < 100; ++chain) {
    KvSequence sequence(pool.get());
    ASSERT_TRUE(sequence.Reserve(kPages / 100 * kPageTokens).ok());
    MarkAllLocal(sequence, sequence.capacity());
    cache.Insert(Tokens(sequence.capacity(), chain * 1000000), sequence);
  }
  ASSERT_EQ(pool->free_pages(), 0);
  const base::TimePoint start = base::Clock::Real()->Now();
  for (int64_t i = 0; i < kPages; ++i) ASSERT_TRUE(pool->Allocate(1).ok());
  EXPECT_LT(base::ToSeconds(base::Clock::Real()->Now() - start), 60.0);
}

}  // namespace
}  // namespace smartgen::kv
