#include "common/channel/transport_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace smartgen::channel {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(TransportOptions, NamesWhatHelloOffersInOrder) {
  TransportOptions options;
  EXPECT_THAT(options.Transports(), ElementsAre("tcp"));
  options.channel = "nccl";
  EXPECT_THAT(options.Transports(), ElementsAre("nccl"));
  options.channel = "nccl_or_tcp";
  EXPECT_THAT(options.Transports(), ElementsAre("nccl", "tcp"));
}

TEST(TransportOptions, SizesOutOfRangeAreNamed) {
  TransportOptions options;
  EXPECT_TRUE(options.Check().ok());
  const auto why = [](const TransportOptions& wrong) {
    return std::string(base::MessageOf(wrong.Check()));
  };
  options.device = -1;
  EXPECT_THAT(why(options), HasSubstr("nccl.device: want at least 0, got -1"));
  options = {};
  options.piece_bytes = 1;
  EXPECT_THAT(why(options), HasSubstr("nccl.piece_bytes: want 65536 to 1073741824, got 1"));
  options.piece_bytes = int64_t{1} << 40;
  EXPECT_THAT(why(options), HasSubstr("nccl.piece_bytes"));
  options = {};
  options.max_pairs = 0;
  EXPECT_THAT(why(options), HasSubstr("nccl.max_pairs: want at least 1, got 0"));
}

TEST(TransportOptions, TheFirstOfTheirsThatIsOursIsChosen) {
  EXPECT_EQ(*ChooseTransport({"tcp", "nccl"}, {"nccl", "tcp"}), "nccl");
  EXPECT_EQ(*ChooseTransport({"tcp"}, {"nccl", "tcp"}), "tcp");
  EXPECT_EQ(ChooseTransport({"tcp"}, {"nccl"}).status().message(),
            "transports: ours tcp, theirs nccl (option channel on both sides)");
}

}  // namespace
}  // namespace smartgen::channel
