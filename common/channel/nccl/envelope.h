// What an NcclChannel puts before the heads of the messages that it sends over its TCP channel. All
// integers are little endian.
//
//   plain    {0 u8} head                                        the payload follows over TCP
//   offer    {1 u8, lane u8, 0 u16, epoch u32, sequence u64, payload bytes u64} head
//   accept   {2 u8, 0 u8, 0 u16, epoch u32, sequence u64, pieces u64}
//   refuse   {3 u8, 0 u8, 0 u16, epoch u32, sequence u64, 0 u64}
//
// An offer announces a message whose payload goes over NCCL in pieces. Offers are numbered from 0
// (the warm-up, which has no head) and their pieces go in this order. "accept" says that receives
// have been issued for the first `pieces` pieces of a message and all of those before it; "refuse"
// that none will be: nothing of it is sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/channel/channel.h"

namespace smartgen::channel {

enum class EnvelopeKind : uint8_t { kPlain = 0, kOffer = 1, kAccept = 2, kRefuse = 3 };
inline constexpr size_t kPlainBytes = 1;
inline constexpr size_t kEnvelopeBytes = 24;
static_assert(kEnvelopeBytes <= kMaxEnvelopeBytes);

struct Envelope {
  EnvelopeKind kind = EnvelopeKind::kPlain;
  Lane lane = Lane::kProactive;     // kOffer: kProactive or kSpeculative
  uint32_t epoch = 0;               // of the pairing; all but kPlain
  uint64_t sequence = 0;            // of the message; all but kPlain
  uint64_t amount = 0;              // kOffer: payload bytes; kAccept: pieces
  std::span<const std::byte> head;  // kPlain, kOffer: what was wrapped
};

std::vector<std::byte> Wrap(const Envelope& envelope);
// `head` in the result points into `bytes`. InvalidArgument names the field.
absl::StatusOr<Envelope> Unwrap(std::span<const std::byte> bytes);

// How many pieces a payload has.
inline uint64_t PieceCount(uint64_t payload_bytes, uint64_t piece_bytes) {
  return (payload_bytes + piece_bytes - 1) / piece_bytes;
}

}  // namespace smartgen::channel
