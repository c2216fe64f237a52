// Random identifiers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace smartgen::base {

// 128 random bits from the operating system. Names one transfer everywhere: both daemons, the wire,
// logs. No daemon ever maps it to an id of its own that travels.
struct TransferId {
  uint64_t hi = 0;
  uint64_t lo = 0;
  friend auto operator<=>(const TransferId&, const TransferId&) = default;
  std::string ToString() const;  // 32 hex digits
  template <typename H>
  friend H AbslHashValue(H h, const TransferId& id) {
    return H::combine(std::move(h), id.hi, id.lo);
  }
};

TransferId NewTransferId();
// Non-zero. A daemon draws one at each start; messages from an earlier life are refused by it.
uint64_t NewIncarnationId();
// Also used to draw a seed where a request has none.
uint64_t RandomUint64();
using ChannelKey = std::array<std::byte, 32>;
// The one-time key that every data socket of a pairing presents.
ChannelKey NewChannelKey();
// "chatcmpl-" and the like followed by 24 hex digits.
std::string NewRequestId(const char* prefix);

}  // namespace smartgen::base
