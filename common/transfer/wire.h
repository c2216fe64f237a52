// The head of every KV message. Fixed size, little endian, checked field by field before use.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "common/base/ids.h"
#include "common/base/status.h"

namespace smartgen::transfer {

inline constexpr uint32_t kWireMagic = 0x4e474d53;  // "SMGN"
inline constexpr uint16_t kWireVersion = 1;
inline constexpr size_t kWireHeadBytes = 80;

enum class Path : uint8_t {
  kFull = 0,
  kProactive = 1,
  kOnDemand = 2,
  kSpeculative = 3,
  kMetadata = 4
};
std::string_view PathName(Path path);

enum WireFlags : uint16_t {
  kFlagChecksum = 1,  // `checksum` is set
  kFlagLast = 2,      // the sender has handed out all that it planned
};
inline constexpr uint16_t kKnownWireFlags = kFlagChecksum | kFlagLast;

struct WireHead {
  uint16_t flags = 0;
  Path path = Path::kFull;
  base::TransferId transfer_id;
  uint64_t sender_incarnation = 0;
  uint64_t receiver_incarnation = 0;
  uint64_t sequence = 0;  // counts up from 1 within a transfer
  uint32_t layer = 0;
  uint32_t token_begin = 0;  // absolute positions [begin, end)
  uint32_t token_end = 0;
  uint64_t payload_bytes = 0;
  uint64_t checksum = 0;  // XXH3 over the payload
};

std::array<std::byte, kWireHeadBytes> EncodeWireHead(const WireHead& head);
// InvalidArgument names the field: wrong size, magic, version, unknown flags or path, reserved
// bytes not zero, empty or inverted range, zero ids. What depends on a transfer (layer and token
// limits, incarnations, payload size) the receiver checks.
absl::StatusOr<WireHead> DecodeWireHead(std::span<const std::byte> bytes);

}  // namespace smartgen::transfer
