#include "decode_server/policy.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace smartgen::decode_server {
namespace {

TEST(PolicyTest, TheYoungestGivesWay) {
  const std::vector<uint64_t> serials = {4, 9, 2};
  EXPECT_EQ(ChooseVictim(serials), 1u);
  EXPECT_EQ(ChooseVictim({}), std::nullopt);
}

TEST(PolicyTest, WhatRunsKeepsAPageEachToGrowInto) {
  EXPECT_EQ(HeadroomPages(0), 0);
  EXPECT_EQ(HeadroomPages(1), 2);
  EXPECT_EQ(HeadroomPages(10), 11);
}

TEST(PolicyTest, ALeaseIsAlwaysATimeThatCanBeKept) {
  EXPECT_EQ(BelievableLease(30), 30);
  EXPECT_EQ(BelievableLease(0), 0.1);
  EXPECT_EQ(BelievableLease(-std::numeric_limits<double>::infinity()), 0.1);
  EXPECT_EQ(BelievableLease(std::numeric_limits<double>::quiet_NaN()), 0.1);
  EXPECT_EQ(BelievableLease(std::numeric_limits<double>::infinity()), 24 * 3600);
}

}  // namespace
}  // namespace smartgen::decode_server
