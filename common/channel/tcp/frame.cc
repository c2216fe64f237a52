#include "common/channel/tcp/frame.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/channel/bytes.h"

namespace smartgen::channel {
namespace {

// The part that preamble and welcome have in common.
void PutGreeting(std::byte* at, uint32_t magic, Lane lane) {
  Put<uint32_t>(at, magic);
  Put<uint16_t>(at + 4, kTcpVersion);
  Put<uint8_t>(at + 6, static_cast<uint8_t>(lane));
  Put<uint8_t>(at + 7, 0);
}

absl::StatusOr<Lane> GetGreeting(const std::byte* at, uint32_t want_magic, std::string_view what) {
  if (const auto magic = Get<uint32_t>(at); magic != want_magic) {
    return base::InvalidArgument("{}: magic: want {:08x}, came {:08x}", what, want_magic, magic);
  }
  if (const auto version = Get<uint16_t>(at + 4); version != kTcpVersion) {
    return base::InvalidArgument("{}: version: ours {}, theirs {}", what, kTcpVersion, version);
  }
  const auto lane = Get<uint8_t>(at + 6);
  if (lane >= kNumLanes) {
    return base::InvalidArgument("{}: lane: want less than {}, came {}", what, kNumLanes, lane);
  }
  if (const auto reserved = Get<uint8_t>(at + 7); reserved != 0) {
    return base::InvalidArgument("{}: reserved byte: want 0, came {}", what, reserved);
  }
  return static_cast<Lane>(lane);
}

}  // namespace

std::array<std::byte, kPreambleBytes> EncodePreamble(const Preamble& preamble) {
  std::array<std::byte, kPreambleBytes> bytes{};
  PutGreeting(bytes.data(), kPreambleMagic, preamble.lane);
  std::copy(preamble.key.begin(), preamble.key.end(), bytes.begin() + 8);
  return bytes;
}

absl::StatusOr<Preamble> DecodePreamble(std::span<const std::byte, kPreambleBytes> bytes) {
  Preamble preamble;
  ASSIGN_OR_RETURN(preamble.lane, GetGreeting(bytes.data(), kPreambleMagic, "preamble"));
  std::copy(bytes.begin() + 8, bytes.end(), preamble.key.begin());
  return preamble;
}

std::array<std::byte, kWelcomeBytes> EncodeWelcome(Lane lane) {
  std::array<std::byte, kWelcomeBytes> bytes{};
  PutGreeting(bytes.data(), kWelcomeMagic, lane);
  return bytes;
}

absl::Status CheckWelcome(std::span<const std::byte, kWelcomeBytes> bytes, Lane lane) {
  ASSIGN_OR_RETURN(const Lane came, GetGreeting(bytes.data(), kWelcomeMagic, "welcome"));
  if (came == lane) return absl::OkStatus();
  return base::InvalidArgument("welcome: lane: want {}, came {}", LaneName(lane), LaneName(came));
}

std::array<std::byte, kFrameHeaderBytes> EncodeFrameHeader(const FrameHeader& header) {
  std::array<std::byte, kFrameHeaderBytes> bytes{};
  Put<uint32_t>(bytes.data(), kFrameMagic);
  Put<uint32_t>(bytes.data() + 4, header.head_bytes);
  Put<uint64_t>(bytes.data() + 8, header.payload_bytes);
  return bytes;
}

absl::StatusOr<FrameHeader> DecodeFrameHeader(std::span<const std::byte, kFrameHeaderBytes> bytes) {
  if (const auto magic = Get<uint32_t>(bytes.data()); magic != kFrameMagic) {
    return base::InvalidArgument("frame: magic: want {:08x}, came {:08x}", kFrameMagic, magic);
  }
  const FrameHeader header{.head_bytes = Get<uint32_t>(bytes.data() + 4),
                           .payload_bytes = Get<uint64_t>(bytes.data() + 8)};
  if (header.head_bytes == 0 || header.head_bytes > kMaxTransportHeadBytes) {
    return base::InvalidArgument("frame: head of {} bytes, want 1 to {}", header.head_bytes,
                                 kMaxTransportHeadBytes);
  }
  if (header.payload_bytes > kMaxPayloadBytes) {
    return base::InvalidArgument("frame: payload of {} bytes, want at most {}",
                                 header.payload_bytes, kMaxPayloadBytes);
  }
  return header;
}

FrameReader::FrameReader(FrameSink* sink, std::span<std::byte> scratch)
    : sink_(sink), scratch_(scratch) {
  head_.reserve(kMaxTransportHeadBytes);
}

size_t FrameReader::Want(std::span<iovec> iov, size_t max_bytes) {
  size_t count = 0;
  wanted_payload_ = 0;
  if (in_payload_) {
    const auto add = [&](std::byte* at, size_t bytes) {
      iov[count++] = {at, bytes};
      wanted_payload_ += bytes;
    };
    const size_t limit = std::min<uint64_t>(payload_left_, std::max<size_t>(max_bytes, 1));
    if (refused_) {
      add(scratch_.data(), std::min(limit, scratch_.size()));
    } else {
      size_t offset = offset_;
      for (size_t s = segment_; wanted_payload_ < limit && count < iov.size(); ++s, offset = 0) {
        const auto segment = placement_.segments[s].subspan(offset);
        if (segment.empty()) continue;
        add(segment.data(), std::min(segment.size(), limit - wanted_payload_));
      }
    }
    if (wanted_payload_ < payload_left_ || count == iov.size()) return count;
  }
  if (begin_ > 0) {
    std::memmove(staging_.data(), staging_.data() + begin_, staged());
    end_ -= begin_;
    begin_ = 0;
  }
  iov[count++] = {staging_.data() + end_, staging_.size() - end_};
  return count;
}

absl::Status FrameReader::Advance(size_t bytes) {
  const size_t placed = std::min(bytes, wanted_payload_);
  wanted_payload_ = 0;
  if (placed > 0) SkipPlaced(placed);
  end_ += bytes - placed;
  return Parse();
}

absl::Status FrameReader::Parse() {
  for (;;) {
    if (in_payload_) {
      CopyStagedPayload();
      if (payload_left_ > 0) return absl::OkStatus();
      FinishPayload();
      continue;
    }
    ASSIGN_OR_RETURN(const bool complete, ParseHead());
    if (!complete) return absl::OkStatus();
  }
}

absl::StatusOr<bool> FrameReader::ParseHead() {
  if (staged() < kFrameHeaderBytes) return false;
  const std::byte* at = staging_.data() + begin_;
  ASSIGN_OR_RETURN(const FrameHeader header,
                   DecodeFrameHeader(std::span(at, kFrameHeaderBytes).first<kFrameHeaderBytes>()));
  if (staged() < kFrameHeaderBytes + header.head_bytes) return false;
  head_.assign(at + kFrameHeaderBytes, at + kFrameHeaderBytes + header.head_bytes);
  begin_ += kFrameHeaderBytes + header.head_bytes;
  RETURN_IF_ERROR(BeginPayload(header.payload_bytes));
  return true;
}

absl::Status FrameReader::BeginPayload(uint64_t payload_bytes) {
  absl::StatusOr<Placement> placement = sink_->OnHead(head_, payload_bytes);
  in_payload_ = true;
  payload_left_ = payload_bytes;
  segment_ = 0;
  offset_ = 0;
  refused_ = !placement.ok();
  if (refused_) return absl::OkStatus();
  placement_ = *std::move(placement);
  uint64_t room = 0;
  for (const auto& segment : placement_.segments) room += segment.size();
  if (room == payload_bytes) return absl::OkStatus();
  return base::Internal("placement: the payload has {} bytes, its segments have {}", payload_bytes,
                        room);
}

void FrameReader::CopyStagedPayload() {
  while (payload_left_ > 0 && staged() > 0) {
    size_t bytes = std::min<uint64_t>(staged(), payload_left_);
    if (!refused_) {
      const auto target = placement_.segments[segment_].subspan(offset_);
      bytes = std::min(bytes, target.size());
      if (bytes > 0) std::memcpy(target.data(), staging_.data() + begin_, bytes);
    }
    begin_ += bytes;
    SkipPlaced(bytes);
  }
}

void FrameReader::SkipPlaced(size_t bytes) {
  payload_left_ -= bytes;
  if (refused_) return;
  offset_ += bytes;
  while (segment_ < placement_.segments.size() && offset_ >= placement_.segments[segment_].size()) {
    offset_ -= placement_.segments[segment_].size();
    ++segment_;
  }
}

void FrameReader::FinishPayload() {
  in_payload_ = false;
  if (!refused_) sink_->OnPayload(head_, std::exchange(placement_, {}));
}

}  // namespace smartgen::channel
