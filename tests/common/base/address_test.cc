#include "common/base/address.h"

#include <gtest/gtest.h>

namespace smartgen::base {
namespace {

TEST(AddressTest, AHostIsWhatCanBeResolved) {
  EXPECT_EQ(HostOf("10.0.0.3:7100"), "10.0.0.3");
  EXPECT_EQ(HostOf("prefill-1.example.com:7100"), "prefill-1.example.com");
  EXPECT_EQ(HostOf("[fd00::1]:7100"), "fd00::1");
  EXPECT_EQ(HostOf("[::1]:0"), "::1");
}

TEST(AddressTest, WhatIsNoAddressGivesNoMoreThanIsThere) {
  for (const std::string_view text : {"", ":", "[", "[]", ":7100", "[:", "x"}) {
    EXPECT_EQ(HostOf(text), text == "[:" ? "[" : "") << text;
  }
  EXPECT_EQ(HostOf("[]:1"), "");
}

}  // namespace
}  // namespace smartgen::base
