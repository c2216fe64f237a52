#include "common/transfer/wire.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace smartgen::transfer {
namespace {

WireHead Sample() {
  return {.flags = kFlagChecksum | kFlagLast,
          .path = Path::kOnDemand,
          .transfer_id = {.hi = 0x0102030405060708, .lo = 0x1112131415161718},
          .sender_incarnation = 21,
          .receiver_incarnation = 22,
          .sequence = 23,
          .layer = 24,
          .token_begin = 25,
          .token_end = 26,
          .payload_bytes = 27,
          .checksum = 28};
}

TEST(WireHead, ComesBackAsItWas) {
  const auto decoded = DecodeWireHead(EncodeWireHead(Sample()));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(EncodeWireHead(*decoded), EncodeWireHead(Sample()));
  EXPECT_EQ(decoded->transfer_id, Sample().transfer_id);
  EXPECT_EQ(decoded->path, Path::kOnDemand);
  EXPECT_EQ(decoded->token_end, 26u);
  EXPECT_EQ(decoded->checksum, 28u);
}

TEST(WireHead, IsLittleEndianWithTheMagicFirst) {
  const auto bytes = EncodeWireHead(Sample());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), 4), "SMGN");
  EXPECT_EQ(bytes[4], std::byte{1});
  EXPECT_EQ(bytes[8], std::byte{0x08});
  EXPECT_EQ(bytes[48], std::byte{24});
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
  const std::vector<std::pair<std::function<void(WireHead&)>, std::string>> cases = {
      {[](WireHead& h) { h.transfer_id = {}; }, "transfer_id"},
      {[](WireHead& h) { h.sender_incarnation = 0; }, "sender_incarnation"},
      {[](WireHead& h) { h.receiver_incarnation = 0; }, "receiver_incarnation"},
      {[](WireHead& h) { h.sequence = 0; }, "sequence"},
      {[](WireHead& h) { h.token_end = h.token_begin; }, "tokens"},
      {[](WireHead& h) { h.token_end = h.token_begin - 1; }, "tokens"},
      {[](WireHead& h) { h.payload_bytes = 0; }, "payload_bytes"},
      {[](WireHead& h) { h.flags = kFlagLast; }, "checksum"},
      {[](WireHead& h) { h.flags = 4; }, "flags"},
      {[](WireHead& h) { h.path = static_cast<Path>(5); }, "path"},
  };
  for (const auto& [spoil, field] : cases) {
    WireHead head = Sample();
    spoil(head);
    const auto decoded = DecodeWireHead(EncodeWireHead(head));
    ASSERT_TRUE(absl::IsInvalidArgument(decoded.status())) << field;
    EXPECT_NE(base::MessageOf(decoded.status()).find(field), std::string_view::npos)
        << decoded.status();
  }
}

TEST(WireHead, EveryByteOfMagicVersionAndReserveCounts) {
  for (const size_t at : {0, 1, 2, 3, 4, 5, 61, 62, 63}) {
    auto bytes = EncodeWireHead(Sample());
    bytes[at] ^= std::byte{0x80};
    EXPECT_FALSE(DecodeWireHead(bytes).ok()) << at;
  }
}

}  // namespace
}  // namespace smartgen::transfer
