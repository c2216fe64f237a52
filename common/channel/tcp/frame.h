// What goes over a lane's socket, apart from any socket: encoding, and a reader that is told where
// bytes came to lie. All integers are little endian.
//
//   dialler  -> listener   preamble  {magic u32, version u16, lane u8, 0 u8, key 32 bytes}
//   listener -> dialler    welcome   {magic u32, version u16, lane u8, 0 u8}, when all lanes came
//   both ways              frames    {magic u32, head_len u32, payload_len u64, head, payload}
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/channel/channel.h"

namespace smartgen::channel {

inline constexpr uint32_t kPreambleMagic = 0x43474d53;  // "SMGC"
inline constexpr uint32_t kWelcomeMagic = 0x57474d53;   // "SMGW"
inline constexpr uint32_t kFrameMagic = 0x46474d53;     // "SMGF"
inline constexpr uint16_t kTcpVersion = 1;
inline constexpr size_t kPreambleBytes = 40;
inline constexpr size_t kWelcomeBytes = 8;
inline constexpr size_t kFrameHeaderBytes = 16;

struct Preamble {
  Lane lane = Lane::kOnDemand;
  base::ChannelKey key{};
};
std::array<std::byte, kPreambleBytes> EncodePreamble(const Preamble& preamble);
// InvalidArgument names the field. Says nothing about the key.
absl::StatusOr<Preamble> DecodePreamble(std::span<const std::byte, kPreambleBytes> bytes);

std::array<std::byte, kWelcomeBytes> EncodeWelcome(Lane lane);
absl::Status CheckWelcome(std::span<const std::byte, kWelcomeBytes> bytes, Lane lane);

struct FrameHeader {
  uint32_t head_bytes = 0;     // 1 to kMaxTransportHeadBytes
  uint64_t payload_bytes = 0;  // 0 to kMaxPayloadBytes
};
std::array<std::byte, kFrameHeaderBytes> EncodeFrameHeader(const FrameHeader& header);
// InvalidArgument names the field.
absl::StatusOr<FrameHeader> DecodeFrameHeader(std::span<const std::byte, kFrameHeaderBytes> bytes);

class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // As in Receiver: an error drains the payload.
  virtual absl::StatusOr<Placement> OnHead(std::span<const std::byte> head,
                                           uint64_t payload_bytes) = 0;
  virtual void OnPayload(std::span<const std::byte> head, Placement placement) = 0;
};

// Takes a lane's byte stream apart. Headers and heads go through a small staging buffer, payloads
// straight to their place, but for what the staging buffer caught of them. Not thread-safe.
class FrameReader {
 public:
  // `sink` and `scratch` (where refused payloads go) must outlive the reader.
  FrameReader(FrameSink* sink, std::span<std::byte> scratch);

  // Fills `iov` with where the next bytes of the stream go and returns how many entries: at least
  // one, of at least one byte, and at most about `max_bytes`.
  size_t Want(std::span<iovec> iov, size_t max_bytes);
  // The first `bytes` bytes of what Want gave have been filled. An error ends the stream:
  // InvalidArgument for a peer that violates the protocol, Internal for a sink whose placement does
  // not fit.
  absl::Status Advance(size_t bytes);
  // True between two frames.
  bool AtBoundary() const { return !in_payload_ && staged() == 0; }

 private:
  // A header and the longest head fit, with room to catch small messages whole.
  static constexpr size_t kStagingBytes = 8192;

  size_t staged() const { return end_ - begin_; }
  absl::Status Parse();
  // False if more bytes are needed first.
  absl::StatusOr<bool> ParseHead();
  absl::Status BeginPayload(uint64_t payload_bytes);
  void CopyStagedPayload();
  void SkipPlaced(size_t bytes);
  void FinishPayload();

  FrameSink* const sink_;
  const std::span<std::byte> scratch_;
  std::array<std::byte, kStagingBytes> staging_;
  size_t begin_ = 0;
  size_t end_ = 0;
  std::vector<std::byte> head_;
  bool in_payload_ = false;
  bool refused_ = false;
  uint64_t payload_left_ = 0;
  Placement placement_;
  size_t segment_ = 0;  // the next payload byte goes to segments[segment_][offset_]
  size_t offset_ = 0;
  size_t wanted_payload_ = 0;  // payload bytes that the last Want covered
};

}  // namespace smartgen::channel
