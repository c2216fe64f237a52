#include "common/channel/nccl/interfaces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace smartgen::channel {
namespace {

using testing::HasSubstr;

std::string Why(const std::vector<std::string>& interfaces, std::string_view chosen) {
  const absl::Status status = CheckInterfaces(interfaces, chosen);
  return std::string(base::MessageOf(status));
}

TEST(NcclInterfaces, N5_OneRealInterfaceNeedsNoChoice) {
  EXPECT_EQ(Why({}, ""), "");
  EXPECT_EQ(Why({"eth0"}, ""), "");
  EXPECT_EQ(Why({"eth0", "docker0", "veth1a2b", "br-12ab", "virbr0", "cni0", "flannel.1"}, ""), "");
}

TEST(NcclInterfaces, N5_SeveralNeedAChoiceAndAreListed) {
  const std::string why = Why({"eth0", "docker0", "ens5"}, "");
  EXPECT_THAT(why, HasSubstr("(eth0, ens5)"));
  EXPECT_THAT(why, HasSubstr("NCCL_SOCKET_IFNAME=eth0"));
}

TEST(NcclInterfaces, N5_AChoiceMustLeaveAnInterface) {
  const std::vector<std::string> both = {"eth0", "ens5"};
  EXPECT_EQ(Why(both, "eth"), "");
  EXPECT_EQ(Why(both, "ib,ens"), "");
  EXPECT_EQ(Why(both, "=ens5"), "");
  EXPECT_EQ(Why(both, "^ens"), "");
  EXPECT_EQ(Why(both, "^=ens5"), "");
  EXPECT_THAT(Why(both, "=ens"), HasSubstr("no interface is left of eth0, ens5"));
  EXPECT_THAT(Why(both, "ib0"), HasSubstr("no interface is left"));
  EXPECT_THAT(Why(both, "^e"), HasSubstr("no interface is left"));
  EXPECT_THAT(Why({}, "eth0"), HasSubstr("no interface is left"));
}

TEST(NcclInterfaces, TheLoopbackNeedsNoChoiceAndMayBeChosen) {
  EXPECT_EQ(Why({"lo", "eth0"}, ""), "");
  EXPECT_EQ(Why({"lo", "eth0"}, "lo"), "");
  EXPECT_THAT(NetworkInterfaces(), testing::Contains("lo"));
}

}  // namespace
}  // namespace smartgen::channel
