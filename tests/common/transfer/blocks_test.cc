#include "common/transfer/blocks.h"

#include <gtest/gtest.h>

namespace smartgen::transfer {
namespace {

// The token at 1000 sees itself and the window's rest before it.
TEST(TravelTest, OfAWindowWhatItShowsToTheNextTokenTravels) {
  EXPECT_EQ(TravelBegin(100, 0, 1000), 901);
  EXPECT_EQ(TravelBegin(100, 950, 1000), 950);  // the other side has the rest
  EXPECT_EQ(TravelBegin(2000, 0, 1000), 0);     // wider than the prompt
  EXPECT_EQ(TravelBegin(0, 0, 1000), 0);        // none
  EXPECT_EQ(TravelBegin(1, 0, 1000), 999);      // itself alone: still something to complete
}

}  // namespace
}  // namespace smartgen::transfer
