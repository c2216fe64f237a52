#include "common/transfer/wire.h"

#include <concepts>

namespace smartgen::transfer {
namespace {

// Byte offsets of the fields.
enum Offset : size_t {
  kMagicAt = 0,                 // u32
  kVersionAt = 4,               // u16
  kFlagsAt = 6,                 // u16
  kTransferHiAt = 8,            // u64
  kTransferLoAt = 16,           // u64
  kSenderIncarnationAt = 24,    // u64
  kReceiverIncarnationAt = 32,  // u64
  kSequenceAt = 40,             // u64
  kLayerAt = 48,                // u32
  kTokenBeginAt = 52,           // u32
  kTokenEndAt = 56,             // u32
  kPathAt = 60,                 // u8
  kReservedAt = 61,             // 3 bytes, zero
  kPayloadBytesAt = 64,         // u64
  kChecksumAt = 72,             // u64
};
static_assert(kChecksumAt + sizeof(uint64_t) == kWireHeadBytes);

void Put(std::byte* at, uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) at[i] = static_cast<std::byte>(value >> (8 * i));
}

uint64_t Get(const std::byte* at, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value |= static_cast<uint64_t>(at[i]) << (8 * i);
  return value;
}

absl::Status CheckFields(const WireHead& head) {
  if (head.transfer_id == base::TransferId{}) {
    return base::InvalidArgument("wire head: transfer_id is zero");
  }
  if (head.sender_incarnation == 0) {
    return base::InvalidArgument("wire head: sender_incarnation is zero");
  }
  if (head.receiver_incarnation == 0) {
    return base::InvalidArgument("wire head: receiver_incarnation is zero");
  }
  if (head.sequence == 0) return base::InvalidArgument("wire head: sequence is zero");
  if (head.token_begin >= head.token_end) {
    return base::InvalidArgument("wire head: tokens [{}, {}) are no range", head.token_begin,
                                 head.token_end);
  }
  if (head.payload_bytes == 0) return base::InvalidArgument("wire head: payload_bytes is zero");
  if ((head.flags & kFlagChecksum) == 0 && head.checksum != 0) {
    return base::InvalidArgument("wire head: checksum without its flag");
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view PathName(Path path) {
  switch (path) {
    case Path::kFull:
      return "full";
    case Path::kProactive:
      return "proactive";
    case Path::kOnDemand:
      return "ondemand";
    case Path::kSpeculative:
      return "speculative";
    case Path::kMetadata:
      return "metadata";
  }
  return "unknown";
}

std::array<std::byte, kWireHeadBytes> EncodeWireHead(const WireHead& head) {
  std::array<std::byte, kWireHeadBytes> bytes{};
  std::byte* at = bytes.data();
  Put(at + kMagicAt, kWireMagic, 4);
  Put(at + kVersionAt, kWireVersion, 2);
  Put(at + kFlagsAt, head.flags, 2);
  Put(at + kTransferHiAt, head.transfer_id.hi, 8);
  Put(at + kTransferLoAt, head.transfer_id.lo, 8);
  Put(at + kSenderIncarnationAt, head.sender_incarnation, 8);
  Put(at + kReceiverIncarnationAt, head.receiver_incarnation, 8);
  Put(at + kSequenceAt, head.sequence, 8);
  Put(at + kLayerAt, head.layer, 4);
  Put(at + kPathAt, static_cast<uint8_t>(head.path), 1);
  Put(at + kTokenBeginAt, head.token_begin, 4);
  Put(at + kTokenEndAt, head.token_end, 4);
  Put(at + kPayloadBytesAt, head.payload_bytes, 8);
  Put(at + kChecksumAt, head.checksum, 8);
  return bytes;
}

absl::StatusOr<WireHead> DecodeWireHead(std::span<const std::byte> bytes) {
  if (bytes.size() != kWireHeadBytes) {
    return base::InvalidArgument("wire head: want {} bytes, came {}", kWireHeadBytes, bytes.size());
  }
  const std::byte* at = bytes.data();
  if (const uint64_t magic = Get(at + kMagicAt, 4); magic != kWireMagic) {
    return base::InvalidArgument("wire head: magic: want {:08x}, came {:08x}", kWireMagic, magic);
  }
  if (const uint64_t version = Get(at + kVersionAt, 2); version != kWireVersion) {
    return base::InvalidArgument("wire head: version: ours {}, theirs {}", kWireVersion, version);
  }
  WireHead head;
  head.flags = static_cast<uint16_t>(Get(at + kFlagsAt, 2));
  if ((head.flags & ~kKnownWireFlags) != 0) {
    return base::InvalidArgument("wire head: flags {:04x}: known are {:04x}", head.flags,
                                 kKnownWireFlags);
  }
  const uint64_t path = Get(at + kPathAt, 1);
  if (path > static_cast<uint64_t>(Path::kMetadata)) {
    return base::InvalidArgument("wire head: path {} is unknown", path);
  }
  if (const uint64_t reserved = Get(at + kReservedAt, 3); reserved != 0) {
    return base::InvalidArgument("wire head: reserved bytes: want 0, came {:06x}", reserved);
  }
  head.path = static_cast<Path>(path);
  head.transfer_id = {.hi = Get(at + kTransferHiAt, 8), .lo = Get(at + kTransferLoAt, 8)};
  head.sender_incarnation = Get(at + kSenderIncarnationAt, 8);
  head.receiver_incarnation = Get(at + kReceiverIncarnationAt, 8);
  head.sequence = Get(at + kSequenceAt, 8);
  head.layer = static_cast<uint32_t>(Get(at + kLayerAt, 4));
  head.token_begin = static_cast<uint32_t>(Get(at + kTokenBeginAt, 4));
  head.token_end = static_cast<uint32_t>(Get(at + kTokenEndAt, 4));
  head.payload_bytes = Get(at + kPayloadBytesAt, 8);
  head.checksum = Get(at + kChecksumAt, 8);
  RETURN_IF_ERROR(CheckFields(head));
  return head;
}

}  // namespace smartgen::transfer
