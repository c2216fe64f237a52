#include "common/channel/nccl/envelope.h"

#include <algorithm>

#include "common/channel/bytes.h"

namespace smartgen::channel {

std::vector<std::byte> Wrap(const Envelope& envelope) {
  const size_t size = envelope.kind == EnvelopeKind::kPlain ? kPlainBytes : kEnvelopeBytes;
  std::vector<std::byte> bytes(size + envelope.head.size());
  Put<uint8_t>(bytes.data(), static_cast<uint8_t>(envelope.kind));
  std::copy(envelope.head.begin(), envelope.head.end(),
            bytes.begin() + static_cast<ptrdiff_t>(size));
  if (envelope.kind == EnvelopeKind::kPlain) return bytes;
  const bool offer = envelope.kind == EnvelopeKind::kOffer;
  Put<uint8_t>(&bytes[1], offer ? static_cast<uint8_t>(envelope.lane) : uint8_t{0});
  Put<uint32_t>(&bytes[4], envelope.epoch);
  Put<uint64_t>(&bytes[8], envelope.sequence);
  Put<uint64_t>(&bytes[16], envelope.amount);
  return bytes;
}

absl::StatusOr<Envelope> Unwrap(std::span<const std::byte> bytes) {
  if (bytes.empty()) return base::InvalidArgument("envelope: want at least 1 byte, came 0");
  const auto kind = Get<uint8_t>(bytes.data());
  Envelope envelope;
  if (kind == static_cast<uint8_t>(EnvelopeKind::kPlain)) {
    if (bytes.size() == kPlainBytes) return base::InvalidArgument("envelope: no head in it");
    envelope.head = bytes.subspan(kPlainBytes);
    if (envelope.head.size() <= kMaxHeadBytes) return envelope;
    return base::InvalidArgument("envelope: head: want at most {} bytes, came {}", kMaxHeadBytes,
                                 envelope.head.size());
  }
  if (kind > static_cast<uint8_t>(EnvelopeKind::kRefuse)) {
    return base::InvalidArgument("envelope: kind: want 0 to 3, came {}", kind);
  }
  if (bytes.size() < kEnvelopeBytes) {
    return base::InvalidArgument("envelope: want {} bytes, came {}", kEnvelopeBytes, bytes.size());
  }
  envelope.kind = static_cast<EnvelopeKind>(kind);
  const auto lane = Get<uint8_t>(&bytes[1]);
  if (const auto reserved = Get<uint16_t>(&bytes[2]); reserved != 0) {
    return base::InvalidArgument("envelope: reserved bytes: want 0, came {}", reserved);
  }
  envelope.epoch = Get<uint32_t>(&bytes[4]);
  envelope.sequence = Get<uint64_t>(&bytes[8]);
  envelope.amount = Get<uint64_t>(&bytes[16]);
  envelope.head = bytes.subspan(kEnvelopeBytes);
  if (envelope.kind != EnvelopeKind::kOffer) {
    if (!envelope.head.empty()) {
      return base::InvalidArgument("envelope: {} bytes too many", envelope.head.size());
    }
    if (envelope.kind == EnvelopeKind::kRefuse && envelope.amount != 0) {
      return base::InvalidArgument("refusal: amount: want 0, came {}", envelope.amount);
    }
    return envelope;
  }
  envelope.lane = static_cast<Lane>(lane);
  if (envelope.lane != Lane::kProactive && envelope.lane != Lane::kSpeculative) {
    return base::InvalidArgument("offer: lane: want {} or {}, came {}",
                                 static_cast<int>(Lane::kProactive),
                                 static_cast<int>(Lane::kSpeculative), lane);
  }
  if (envelope.amount > kMaxPayloadBytes) {
    return base::InvalidArgument("offer: payload: want at most {} bytes, came {}", kMaxPayloadBytes,
                                 envelope.amount);
  }
  if (envelope.head.size() > kMaxHeadBytes) {
    return base::InvalidArgument("offer: head: want at most {} bytes, came {}", kMaxHeadBytes,
                                 envelope.head.size());
  }
  if (envelope.head.empty() != (envelope.sequence == 0)) {
    return base::InvalidArgument("offer {}: want a head, but for number 0; came {} bytes",
                                 envelope.sequence, envelope.head.size());
  }
  return envelope;
}

}  // namespace smartgen::channel
