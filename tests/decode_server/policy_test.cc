#include "decode_server/policy.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace smartgen::decode_server
