#include "common/transfer/wire.h"

#include <cassert>

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
  kRangeCountAt = 52,           // u16
  kPathAt = 54,                 // u8
  kReservedAt = 55,             // u8, zero
  kPayloadBytesAt = 56,         // u64
  kChecksumAt = 64,             // u64
  kStepAt = 72,                 // u64
  kTokenBeginAt = 80,           // u32
  kTokenEndAt = 84,             // u32
};
static_assert(kTokenEndAt + sizeof(uint32_t) == kWireFixedBytes);

// Within a range.
enum RangeOffset : size_t {
  kBeginAt = 0,      // u32
  kCountAt = 4,      // u16
  kFirstHeadAt = 6,  // u8
  kHeadCountAt = 7,  // u8
};
static_assert(kHeadCountAt + sizeof(uint8_t) == kWireRangeBytes);

void Put(std::byte* at, uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) at[i] = static_cast<std::byte>(value >> (8 * i));
}

uint64_t Get(const std::byte* at, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value |= static_cast<uint64_t>(at[i]) << (8 * i);
  return value;
}

absl::Status CheckIds(const WireHead& head) {
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
  return absl::OkStatus();
}

absl::Status CheckFields(const WireHead& head) {
  RETURN_IF_ERROR(CheckIds(head));
  if (head.payload_bytes == 0) return base::InvalidArgument("wire head: payload_bytes is zero");
  if ((head.flags & kFlagChecksum) == 0 && head.checksum != 0) {
    return base::InvalidArgument("wire head: checksum without its flag");
  }
  if ((head.flags & kFlagHeader) != 0 && head.path != Path::kMetadata) {
    return base::InvalidArgument("wire head: flags: a header on path {}", PathName(head.path));
  }
  if (head.ranges.empty() != IsOpaque(head.path)) {
    return base::InvalidArgument("wire head: {} ranges on path {}", head.ranges.size(),
                                 PathName(head.path));
  }
  if (IsOpaque(head.path) && head.payload_bytes > kMaxOpaqueBytes) {
    return base::InvalidArgument("wire head: payload_bytes {} on path {}: want at most {}",
                                 head.payload_bytes, PathName(head.path), kMaxOpaqueBytes);
  }
  if (head.path != Path::kHandover && head.step != 0) {
    return base::InvalidArgument("wire head: step {} on path {}", head.step, PathName(head.path));
  }
  const bool tokens = head.token_begin != 0 || head.token_end != 0;
  if (tokens && (head.path != Path::kMetadata || head.token_begin > head.token_end)) {
    return base::InvalidArgument("wire head: tokens [{}, {}) on path {}", head.token_begin,
                                 head.token_end, PathName(head.path));
  }
  return absl::OkStatus();
}

absl::Status CheckRange(const WireRange& range) {
  const bool heads = range.head_count == 0 ? range.first_head == 0
                                           : range.first_head + range.head_count <= kMaxWireHeads;
  if (range.count > 0 && range.end() <= UINT32_MAX && heads) return absl::OkStatus();
  return base::InvalidArgument("wire head: ranges: {} tokens from {}, {} heads from {}: no range",
                               range.count, range.begin, range.head_count, range.first_head);
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
    case Path::kHandover:
      return "handover";
  }
  return "unknown";
}

std::vector<std::byte> EncodeWireHead(const WireHead& head) {
  assert(head.ranges.size() <= kMaxWireRanges);
  std::vector<std::byte> bytes(kWireFixedBytes + kWireRangeBytes * head.ranges.size());
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
  Put(at + kRangeCountAt, head.ranges.size(), 2);
  Put(at + kPathAt, static_cast<uint8_t>(head.path), 1);
  Put(at + kPayloadBytesAt, head.payload_bytes, 8);
  Put(at + kChecksumAt, head.checksum, 8);
  Put(at + kStepAt, head.step, 8);
  Put(at + kTokenBeginAt, head.token_begin, 4);
  Put(at + kTokenEndAt, head.token_end, 4);
  at += kWireFixedBytes;
  for (const WireRange& range : head.ranges) {
    Put(at + kBeginAt, range.begin, 4);
    Put(at + kCountAt, range.count, 2);
    Put(at + kFirstHeadAt, range.first_head, 1);
    Put(at + kHeadCountAt, range.head_count, 1);
    at += kWireRangeBytes;
  }
  return bytes;
}

namespace {

// Everything but the ranges.
absl::StatusOr<WireHead> DecodeFixed(const std::byte* at) {
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
  if (path > static_cast<uint64_t>(Path::kHandover)) {
    return base::InvalidArgument("wire head: path {} is unknown", path);
  }
  if (const uint64_t reserved = Get(at + kReservedAt, 1); reserved != 0) {
    return base::InvalidArgument("wire head: reserved byte: want 0, came {:02x}", reserved);
  }
  head.path = static_cast<Path>(path);
  head.transfer_id = {.hi = Get(at + kTransferHiAt, 8), .lo = Get(at + kTransferLoAt, 8)};
  head.sender_incarnation = Get(at + kSenderIncarnationAt, 8);
  head.receiver_incarnation = Get(at + kReceiverIncarnationAt, 8);
  head.sequence = Get(at + kSequenceAt, 8);
  head.layer = static_cast<uint32_t>(Get(at + kLayerAt, 4));
  head.payload_bytes = Get(at + kPayloadBytesAt, 8);
  head.checksum = Get(at + kChecksumAt, 8);
  head.step = Get(at + kStepAt, 8);
  head.token_begin = static_cast<uint32_t>(Get(at + kTokenBeginAt, 4));
  head.token_end = static_cast<uint32_t>(Get(at + kTokenEndAt, 4));
  return head;
}

}  // namespace

absl::StatusOr<WireHead> DecodeWireHead(std::span<const std::byte> bytes) {
  if (bytes.size() < kWireFixedBytes) {
    return base::InvalidArgument("wire head: want at least {} bytes, came {}", kWireFixedBytes,
                                 bytes.size());
  }
  ASSIGN_OR_RETURN(WireHead head, DecodeFixed(bytes.data()));
  const size_t count = Get(bytes.data() + kRangeCountAt, 2);
  const size_t want = kWireFixedBytes + kWireRangeBytes * count;
  if (count > kMaxWireRanges || bytes.size() != want) {
    return base::InvalidArgument("wire head: {} ranges (of at most {}) in {} bytes: want {}", count,
                                 kMaxWireRanges, bytes.size(), want);
  }
  head.ranges.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const std::byte* at = bytes.data() + kWireFixedBytes + i * kWireRangeBytes;
    const WireRange range{.begin = static_cast<uint32_t>(Get(at + kBeginAt, 4)),
                          .count = static_cast<uint16_t>(Get(at + kCountAt, 2)),
                          .first_head = static_cast<uint8_t>(Get(at + kFirstHeadAt, 1)),
                          .head_count = static_cast<uint8_t>(Get(at + kHeadCountAt, 1))};
    RETURN_IF_ERROR(CheckRange(range));
    head.ranges.push_back(range);
  }
  RETURN_IF_ERROR(CheckFields(head));
  return head;
}

}  // namespace smartgen::transfer
