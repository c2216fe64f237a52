#include "common/transfer/wire.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace smartgen::transfer {
namespace {

WireHead Sample() {
  return {.flags = kFlagChecksum,
          .path = Path::kOnDemand,
          .transfer_id = {.hi = 0x0102030405060708, .lo = 0x1112131415161718},
          .sender_incarnation = 21,
          .receiver_incarnation = 22,
          .sequence = 23,
          .layer = 24,
          .payload_bytes = 27,
          .checksum = 28,
          .ranges = {{.begin = 0x31323334, .count = 0x4142, .first_head = 3, .head_count = 2},
                     {.begin = 7, .count = 1}}};
}

WireHead SampleMetadata() {
  WireHead head = Sample();
  head.flags |= kFlagHeader;
  head.path = Path::kMetadata;
  head.token_begin = 16;
  head.token_end = 48;
  head.ranges.clear();
  return head;
}

WireHead SampleReply() {
  WireHead head = Sample();
  head.path = Path::kHandover;
  head.step = 0x5152535455565758;
  head.ranges.clear();
  return head;
}

TEST(WireHead, ComesBackAsItWas) {
  const auto decoded = DecodeWireHead(EncodeWireHead(Sample()));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(EncodeWireHead(*decoded), EncodeWireHead(Sample()));
  EXPECT_EQ(decoded->transfer_id, Sample().transfer_id);
  EXPECT_EQ(decoded->path, Path::kOnDemand);
  EXPECT_EQ(decoded->checksum, 28u);
  EXPECT_EQ(decoded->ranges, Sample().ranges);
}

TEST(WireHead, OfOpaqueBytesComesBackAsItWas) {
  const auto metadata = DecodeWireHead(EncodeWireHead(SampleMetadata()));
  ASSERT_TRUE(metadata.ok()) << metadata.status();
  EXPECT_EQ(metadata->token_begin, 16u);
  EXPECT_EQ(metadata->token_end, 48u);
  EXPECT_EQ(metadata->flags, kFlagChecksum | kFlagHeader);
  const auto reply = DecodeWireHead(EncodeWireHead(SampleReply()));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->step, 0x5152535455565758u);
}

TEST(WireHead, IsLittleEndianWithTheMagicFirst) {
  const auto bytes = EncodeWireHead(Sample());
  ASSERT_EQ(bytes.size(), 88u + 2 * 8);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), 4), "SMGN");
  EXPECT_EQ(bytes[4], std::byte{2});
  EXPECT_EQ(bytes[8], std::byte{0x08});
  EXPECT_EQ(bytes[48], std::byte{24});
  // A range: begin, count, first head, head count.
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()) + 88, 8), "4321BA\3\2");
}

TEST(WireHead, ATableOfTheLargestSizeFitsTheChannel) {
  WireHead head = Sample();
  head.ranges.assign(kMaxWireRanges, {.begin = 1, .count = 1});
  const auto bytes = EncodeWireHead(head);
  EXPECT_LE(bytes.size(), channel::kMaxHeadBytes);
  const auto decoded = DecodeWireHead(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->ranges.size(), 501u);
}

TEST(WireHead, OfAnotherSizeIsRefused) {
  const auto bytes = EncodeWireHead(Sample());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(DecodeWireHead(std::span(bytes).first(size)).ok());
  }
  std::vector<std::byte> longer(bytes.begin(), bytes.end());
  longer.push_back(std::byte{0});
  EXPECT_FALSE(DecodeWireHead(longer).ok());
}

TEST(WireHead, AFieldThatCannotBeIsNamed) {
  using Spoil = std::function<void(WireHead&)>;
  const std::vector<std::pair<Spoil, std::string>> cases = {
      {[](WireHead& h) { h.transfer_id = {}; }, "transfer_id"},
      {[](WireHead& h) { h.sender_incarnation = 0; }, "sender_incarnation"},
      {[](WireHead& h) { h.receiver_incarnation = 0; }, "receiver_incarnation"},
      {[](WireHead& h) { h.sequence = 0; }, "sequence"},
      {[](WireHead& h) { h.payload_bytes = 0; }, "payload_bytes"},
      {[](WireHead& h) { h.flags = 0; }, "checksum"},
      {[](WireHead& h) { h.flags = 4; }, "flags"},
      {[](WireHead& h) { h.flags |= kFlagHeader; }, "flags"},
      {[](WireHead& h) { h.path = static_cast<Path>(6); }, "path"},
      {[](WireHead& h) { h.ranges.clear(); }, "ranges"},
      {[](WireHead& h) { h.ranges[1].count = 0; }, "ranges"},
      {[](WireHead& h) { h.ranges[1].begin = UINT32_MAX; }, "ranges"},
      {[](WireHead& h) { h.ranges[1].first_head = 1; }, "ranges"},  // of all heads
      {[](WireHead& h) { h.ranges[0].first_head = 255; }, "ranges"},
      {[](WireHead& h) { h.step = 1; }, "step"},
      {[](WireHead& h) { h.token_end = 1; }, "tokens"},
      {[](WireHead& h) { h.path = Path::kHandover; }, "ranges"},
      {[](WireHead& h) {
         h = SampleMetadata();
         h.token_begin = 49;
       },
       "tokens"},
      {[](WireHead& h) {
         h = SampleReply();
         h.payload_bytes = kMaxOpaqueBytes + 1;
       },
       "payload_bytes"},
  };
  for (const auto& [spoil, field] : cases) {
    WireHead head = Sample();
    spoil(head);
    const auto decoded = DecodeWireHead(EncodeWireHead(head));
    ASSERT_TRUE(absl::IsInvalidArgument(decoded.status())) << field;
    EXPECT_NE(base::MessageOf(decoded.status()).find(field), std::string_view::npos)
        << field << ": " << decoded.status();
  }
}

TEST(WireHead, EveryByteOfMagicVersionRangeCountAndReserveCounts) {
  for (const size_t at : {0, 1, 2, 3, 4, 5, 52, 53, 55}) {
    auto bytes = EncodeWireHead(Sample());
    bytes[at] ^= std::byte{0x80};
    EXPECT_FALSE(DecodeWireHead(bytes).ok()) << at;
  }
}

}  // namespace
}  // namespace smartgen::transfer
