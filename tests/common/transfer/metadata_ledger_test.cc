#include "common/transfer/metadata_ledger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace smartgen::transfer {
namespace {

TEST(MetadataLedgerTest, AHeaderIsNewOnceInEachLayer) {
  MetadataLedger ledger(2, 100);
  EXPECT_EQ(ledger.Note(0, 0, 0, true, 7), 0u);
  EXPECT_EQ(ledger.Note(1, 0, 0, true, 7), 0u);
  EXPECT_EQ(ledger.Note(0, 0, 0, true, 7), 7u);
}

TEST(MetadataLedgerTest, OfTokensThatOverlapTheirShareIsOld) {
  MetadataLedger ledger(1, 100);
  EXPECT_EQ(ledger.Note(0, 0, 10, false, 100), 0u);
  EXPECT_EQ(ledger.Note(0, 20, 30, false, 100), 0u);
  EXPECT_EQ(ledger.Note(0, 5, 25, false, 200), 100u);  // 5 to 9 and 20 to 24
  EXPECT_EQ(ledger.Note(0, 0, 30, false, 300), 300u);
}

TEST(MetadataLedgerTest, TokensBeyondTheCapacityAreNotNoted) {
  MetadataLedger ledger(1, 100);
  EXPECT_EQ(ledger.Note(0, 100, 200, false, 100), 0u);
  EXPECT_EQ(ledger.Note(0, 100, 200, false, 100), 0u);
  EXPECT_EQ(ledger.Note(0, 90, 1'000'000'000'000, false, 10), 0u);
  EXPECT_EQ(ledger.Note(0, 90, 100, false, 10), 10u);
}

TEST(MetadataLedgerTest, AnyOrderCountsWhatATableOfTokensCounts) {
  std::mt19937 random(5);
  MetadataLedger ledger(1, 64);
  std::vector<bool> table(64);
  for (int i = 0; i < 500; ++i) {
    if (i % 50 == 0) {
      ledger = MetadataLedger(1, 64);
      table.assign(64, false);
    }
    const auto begin = static_cast<int64_t>(random() % 64);
    const auto end = begin + static_cast<int64_t>(random() % 8);
    uint64_t known = 0;
    uint64_t tokens = 0;
    for (int64_t t = begin; t < std::min<int64_t>(end, 64); ++t, ++tokens) {
      known += table[static_cast<size_t>(t)];
      table[static_cast<size_t>(t)] = true;
    }
    ASSERT_EQ(ledger.Note(0, begin, end, false, 3 * tokens), 3 * known) << begin << ' ' << end;
  }
}

}  // namespace
}  // namespace smartgen::transfer
