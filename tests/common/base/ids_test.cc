#include "common/base/ids.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace smartgen::base {
namespace {

TEST(TransferId, PrintsAs32HexDigits) {
  EXPECT_EQ((TransferId{0x1, 0xab}).ToString(), "000000000000000100000000000000ab");
}

TEST(TransferId, IsOrderedByAllBits) {
  EXPECT_LT((TransferId{1, 9}), (TransferId{2, 0}));
  EXPECT_LT((TransferId{1, 1}), (TransferId{1, 2}));
}

TEST(Ids, AreNewEachTime) {
  std::set<std::string> transfers;
  std::set<uint64_t> incarnations;
  for (int i = 0; i < 1000; ++i) {
    transfers.insert(NewTransferId().ToString());
    incarnations.insert(NewIncarnationId());
  }
  EXPECT_EQ(transfers.size(), 1000u);
  EXPECT_EQ(incarnations.size(), 1000u);
  EXPECT_EQ(incarnations.count(0), 0u);
  EXPECT_NE(NewChannelKey(), NewChannelKey());
}

TEST(RequestId, IsThePrefixAnd24HexDigits) {
  const std::string id = NewRequestId("chatcmpl-");
  ASSERT_EQ(id.size(), 9u + 24u);
  EXPECT_EQ(id.substr(0, 9), "chatcmpl-");
  EXPECT_EQ(id.find_first_not_of("0123456789abcdef", 9), std::string::npos);
}

}  // namespace
}  // namespace smartgen::base
