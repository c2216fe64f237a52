#include "common/kv/sequence.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "common/base/hash.h"
#include "tests/common/kv/kv_test_util.h"

namespace smartgen::kv {
namespace {

TEST(KvSequence, ReserveGrowsByWholePagesAndDestructionFreesThem) {
  const auto pool = MakePool(8);
  {
    KvSequence sequence(pool.get());
    EXPECT_EQ(sequence.capacity(), 0);
    ASSERT_TRUE(sequence.Reserve(17).ok());
    EXPECT_EQ(sequence.capacity(), 32);
    ASSERT_TRUE(sequence.Reserve(5).ok());
    EXPECT_EQ(sequence.capacity(), 32);
    ASSERT_TRUE(sequence.Reserve(33).ok());
    EXPECT_EQ(pool->free_pages(), 5);
  }
  EXPECT_EQ(pool->free_pages(), 8);
}

// Pages hold all layers: there is room for a token in every layer or in none.
TEST(KvSequence, W6_ReserveThatFailsChangesNothing) {
  const auto pool = MakePool(4);
  KvSequence sequence(pool.get());
  ASSERT_TRUE(sequence.Reserve(32).ok());
  EXPECT_EQ(sequence.Reserve(16 * 5).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(sequence.capacity(), 32);
  EXPECT_EQ(pool->free_pages(), 2);
  EXPECT_TRUE(sequence.Reserve(64).ok());
}

TEST(KvSequence, ReserveRefusesMoreThanTheTokenCapacity) {
  const auto pool = MakePool(100);
  KvSequence sequence(pool.get());
  EXPECT_EQ(sequence.Reserve(1025).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(sequence.Reserve(-1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(sequence.Reserve(1024).ok());
}

TEST(KvSequence, TakesOverThePrefixPagesReferences) {
  const auto pool = MakePool(8);
  {
    KvSequence sequence(pool.get(), *pool->Allocate(2));
    EXPECT_EQ(sequence.prefix_tokens(), 32);
    EXPECT_EQ(sequence.capacity(), 32);
    ASSERT_TRUE(sequence.Reserve(33).ok());
    EXPECT_EQ(sequence.pages().size(), 3u);
  }
  EXPECT_EQ(pool->free_pages(), 8);
}

TEST(KvSequence, ResidencyCrossesPages) {
  const auto pool = MakePool(8);
  KvSequence sequence(pool.get());
  ASSERT_TRUE(sequence.Reserve(64).ok());
  sequence.MarkLocal(1, 3, 40);
  EXPECT_TRUE(sequence.AllLocal(1, 3, 40));
  EXPECT_EQ(sequence.FirstNotLocal(1, 3, 64), 40);
  EXPECT_EQ(sequence.FirstNotLocal(1, 0, 64), 0);
  EXPECT_EQ(sequence.FirstNotLocal(1, 5, 20), 20);
  EXPECT_EQ(sequence.FirstNotLocal(0, 5, 20), 5);
  EXPECT_TRUE(sequence.AllLocal(0, 7, 7));
  sequence.MarkRemote(1, 0, 64);
  EXPECT_TRUE(sequence.AllLocal(1, 3, 40));
}

TEST(KvSequence, SequencesThatShareAPageShareItsResidency) {
  const auto pool = MakePool(8);
  KvSequence first(pool.get());
  ASSERT_TRUE(first.Reserve(16).ok());
  const PageId page = first.pages()[0];
  pool->AddRef(page);
  KvSequence second(pool.get(), {page});
  first.MarkLocal(0, 0, 16);
  EXPECT_TRUE(second.AllLocal(0, 0, 16));
}

TEST(KvSequence, NeighbouringWholePagesAreOneSegment) {
  const auto pool = MakePool(8);
  KvSequence sequence(pool.get());
  ASSERT_TRUE(sequence.Reserve(48).ok());
  const auto segments = sequence.Segments(1, 0, 48);
  ASSERT_EQ(segments.size(), 1u);
  EXPECT_EQ(segments[0].data(), sequence.Page(1, 0));
  EXPECT_EQ(segments[0].size(), 3u * 1024);
}

TEST(KvSequence, PartOfAPageIsKThenVOfEachHead) {
  const auto pool = MakePool(8);
  KvSequence sequence(pool.get());
  ASSERT_TRUE(sequence.Reserve(16).ok());
  const auto segments = sequence.Segments(0, 4, 7);
  ASSERT_EQ(segments.size(), 6u);
  for (int h = 0; h < 3; ++h) {
    EXPECT_EQ(segments[h].data(), sequence.Page(0, 0) + pool->layout().KOffset(0, h, 4));
    EXPECT_EQ(segments[3 + h].data(), sequence.Page(0, 0) + pool->layout().VOffset(0, h, 4));
    EXPECT_EQ(segments[h].size(), 3u * 8);
  }
}

TEST(KvSequence, MarksHeadsAcrossPages) {
  const auto pool = MakePool(4);
  KvSequence sequence(pool.get());
  ASSERT_TRUE(sequence.Reserve(48).ok());
  sequence.MarkHeadLocal(0, 1, 10, 35);
  EXPECT_FALSE(sequence.HeadLocal(0, 1, 9));
  EXPECT_TRUE(sequence.HeadLocal(0, 1, 10));
  EXPECT_TRUE(sequence.HeadLocal(0, 1, 34));
  EXPECT_FALSE(sequence.HeadLocal(0, 1, 35));
  EXPECT_FALSE(sequence.HeadLocal(0, 0, 20));
  sequence.MarkHeadLocal(0, 0, 0, 48);
  sequence.MarkHeadLocal(0, 2, 0, 48);
  EXPECT_FALSE(sequence.AllLocal(0, 9, 11));
  EXPECT_TRUE(sequence.AllLocal(0, 10, 35));
}

TEST(KvSequence, SegmentsOfAHeadAreItsRowsOfKThenOfVPageByPage) {
  const auto pool = MakePool(8);
  KvSequence sequence(pool.get());
  ASSERT_TRUE(sequence.Reserve(64).ok());
  const KvLayout& kv = pool->layout();
  const auto segments = sequence.Segments(1, 1, 14, 33);
  // Layer 1: 2 heads of 8 bf16 values; head 1 is the last of a page's K and of its V.
  const int64_t row = kv.RowBytes(1);
  ASSERT_EQ(row, 16);
  struct Want {
    int64_t page;
    bool v;
    int first, tokens;
  };
  const std::vector<Want> want = {{0, false, 14, 2}, {0, true, 14, 2}, {1, false, 0, 16},
                                  {1, true, 0, 16},  {2, false, 0, 1}, {2, true, 0, 1}};
  ASSERT_EQ(segments.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    const auto& [page, v, first, tokens] = want[i];
    EXPECT_EQ(segments[i].data(),
              sequence.Page(1, page) + (v ? kv.VOffset(1, 1, first) : kv.KOffset(1, 1, first)));
    EXPECT_EQ(segments[i].size(), static_cast<size_t>(tokens * row));
  }
}

// The wire format, token by token, as the header words it.
TEST(KvSequence, SegmentsHoldEveryByteOfTheRangeOnceInWireOrder) {
  const auto pool = MakePool(32);
  std::mt19937 random(5);
  // A gap in the free list: not all pages are neighbours.
  const auto hole = *pool->Allocate(3);
  KvSequence sequence(pool.get());
  ASSERT_TRUE(sequence.Reserve(32).ok());
  pool->Release(hole);
  ASSERT_TRUE(sequence.Reserve(128).ok());
  const KvLayout& kv = pool->layout();
  for (int round = 0; round < 300; ++round) {
    const int layer = static_cast<int>(random() % 2);
    int64_t begin = random() % 129, end = random() % 129;
    if (begin > end) std::swap(begin, end);
    std::vector<const std::byte*> want;
    for (int64_t page = begin / kPageTokens; page * kPageTokens < end; ++page) {
      for (const bool v : {false, true}) {
        for (int h = 0; h < kv.layers[layer].kv_heads; ++h) {
          for (int t = 0; t < kPageTokens; ++t) {
            const int64_t token = page * kPageTokens + t;
            if (token < begin || token >= end) continue;
            const int64_t offset = v ? kv.VOffset(layer, h, t) : kv.KOffset(layer, h, t);
            for (int64_t b = 0; b < kv.RowBytes(layer); ++b) {
              want.push_back(sequence.Page(layer, page) + offset + b);
            }
          }
        }
      }
    }
    std::vector<const std::byte*> got;
    const auto segments = sequence.Segments(layer, begin, end);
    for (size_t i = 0; i < segments.size(); ++i) {
      for (std::byte& b : segments[i]) got.push_back(&b);
      if (i == 0) continue;
      EXPECT_NE(segments[i - 1].data() + segments[i - 1].size(), segments[i].data());
    }
    ASSERT_EQ(got, want) << begin << " to " << end << " of layer " << layer;
  }
}

TEST(KvSequence, L11_PagesStayWhileAPostedSendHoldsTheSequence) {
  const auto pool = MakePool(4);
  auto owner = std::make_shared<KvSequence>(pool.get());
  ASSERT_TRUE(owner->Reserve(64).ok());
  std::memset(owner->Page(0, 3), 0x5a, 768);
  auto posted_send = owner;  // what a channel keeps until the bytes are out
  const auto segments = posted_send->Segments(0, 48, 64);
  owner.reset();  // abort, release, eviction: whatever ends the request
  EXPECT_EQ(pool->Allocate(1).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(segments[0][0], std::byte{0x5a});
  posted_send.reset();
  EXPECT_EQ(pool->free_pages(), 4);
}

TEST(KvSequence, L13_TenThousandTransfersWithFailuresLeaveNothingBehind) {
  const auto pool = MakePool(64);
  std::mt19937 random(13);
  std::vector<std::shared_ptr<KvSequence>> running;
  int64_t refused = 0;
  for (int transfer = 0; transfer < 10000; ++transfer) {
    auto sequence = std::make_shared<KvSequence>(pool.get());
    if (!sequence->Reserve(1 + random() % 300).ok()) {
      ++refused;
    } else if (random() % 10 != 0) {  // one in ten fails at once
      sequence->MarkLocal(0, 0, sequence->capacity());
      running.push_back(std::move(sequence));
    }
    if (running.size() > random() % 12) {
      running.erase(running.begin() + static_cast<int64_t>(random() % running.size()));
    }
  }
  EXPECT_GT(refused, 0);
  running.clear();
  EXPECT_EQ(pool->free_pages(), 64);
  EXPECT_EQ(pool->misuses(), 0);
}

// Pages change owners over and over; each owner's bytes stay its own from writing to release.
TEST(KvSequence, W3_BytesOfFiveHundredRequestsStayTheirOwn) {
  const auto pool = MakePool(40);
  std::mt19937 random(3);
  struct Live {
    std::unique_ptr<KvSequence> sequence;
    uint64_t checksum;
  };
  const auto checksum = [](KvSequence& sequence) {
    base::Hasher64 hasher;
    for (int layer = 0; layer < 2; ++layer) {
      for (const auto& segment : sequence.Segments(layer, 0, sequence.capacity())) {
        hasher.Update(segment);
      }
    }
    return hasher.Digest();
  };
  std::vector<Live> live;
  for (int request = 0; request < 500; ++request) {
    auto sequence = std::make_unique<KvSequence>(pool.get());
    const auto tokens = static_cast<int64_t>(1 + random() % 200);
    while (!sequence->Reserve(tokens).ok()) live.erase(live.begin());
    for (int layer = 0; layer < 2; ++layer) {
      for (const auto& segment : sequence->Segments(layer, 0, sequence->capacity())) {
        for (std::byte& b : segment) b = static_cast<std::byte>(random());
      }
    }
    const uint64_t sum = checksum(*sequence);
    live.push_back({std::move(sequence), sum});
    for (const Live& other : live) ASSERT_EQ(checksum(*other.sequence), other.checksum);
  }
}

}  // namespace
}  // namespace smartgen::kv
