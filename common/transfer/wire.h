// The head of every message between TransferSender and TransferReceiver: a fixed part and a table
// of ranges. Little endian, checked field by field before use.
//
// A message carries KV of one layer, or bytes that mean nothing to the transfer (paths metadata and
// handover). The payload of a KV message is, for each range in order: all heads:
// KvSequence::Segments(layer, begin, end); some heads: Segments(layer, head, begin, end) of one
// head after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/channel/channel.h"

namespace smartgen::transfer {

inline constexpr uint32_t kWireMagic = 0x4e474d53;  // "SMGN"
inline constexpr uint16_t kWireVersion = 2;
inline constexpr size_t kWireFixedBytes = 88;
inline constexpr size_t kWireRangeBytes = 8;
// The channel's limit on heads is the limit on ranges: 501.
inline constexpr size_t kMaxWireRanges =
    (channel::kMaxHeadBytes - kWireFixedBytes) / kWireRangeBytes;
inline constexpr int64_t kMaxRangeTokens = UINT16_MAX;
// A head is named by a byte: layers with more KV heads travel with all heads at once.
inline constexpr int kMaxWireHeads = 256;
// Metadata or an answer, in one message. Metadata of a layer of 128 K tokens of Llama-3.1-8B, the
// largest kind (12.5 % of KV), is 64 MiB: its owner cuts it.
inline constexpr uint64_t kMaxOpaqueBytes = 16 << 20;

enum class Path : uint8_t {
  kFull = 0,
  kProactive = 1,
  kOnDemand = 2,
  kSpeculative = 3,
  kMetadata = 4,
  kHandover = 5
};
std::string_view PathName(Path path);
// True for paths whose payload is no KV.
constexpr bool IsOpaque(Path path) { return path == Path::kMetadata || path == Path::kHandover; }

enum WireFlags : uint16_t {
  kFlagChecksum = 1,  // `checksum` is set
  kFlagHeader = 2,    // path metadata: what the layer's metadata begins with
};
inline constexpr uint16_t kKnownWireFlags = kFlagChecksum | kFlagHeader;

// Absolute positions [begin, begin + count), of KV heads [first_head, first_head + head_count), or
// of all heads where head_count is 0.
struct WireRange {
  uint32_t begin = 0;
  uint16_t count = 0;
  uint8_t first_head = 0;
  uint8_t head_count = 0;
  int64_t end() const { return static_cast<int64_t>(begin) + count; }
  friend bool operator==(const WireRange&, const WireRange&) = default;
};

struct WireHead {
  uint16_t flags = 0;
  Path path = Path::kFull;
  base::TransferId transfer_id;
  uint64_t sender_incarnation = 0;
  uint64_t receiver_incarnation = 0;
  uint64_t sequence = 0;  // counts up from 1 within a transfer
  uint32_t layer = 0;
  uint64_t payload_bytes = 0;
  uint64_t checksum = 0;  // XXH3 over the payload
  uint64_t step = 0;      // path handover: which step or attend is answered
  uint32_t token_begin = 0;
  uint32_t token_end = 0;         // path metadata: of tokens [begin, end)
  std::vector<WireRange> ranges;  // of KV: at least one
};

// At most kMaxWireRanges ranges.
std::vector<std::byte> EncodeWireHead(const WireHead& head);
// InvalidArgument names the field: wrong size, magic, version, unknown flags or path, reserved
// bytes not zero, ranges that are none, fields that the path has no use for, zero ids. What depends
// on a transfer (layer, token and head limits, incarnations, payload size) the receiver checks.
absl::StatusOr<WireHead> DecodeWireHead(std::span<const std::byte> bytes);

}  // namespace smartgen::transfer
