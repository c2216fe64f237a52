#include "common/channel/tcp/frame.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/common/channel/recording_receiver.h"

namespace smartgen::channel {
namespace {

// Keeps frames; refuses those whose head is "no".
class Sink : public FrameSink {
 public:
  struct Frame {
    std::vector<std::byte> head;
    std::vector<std::byte> payload;
  };
  absl::StatusOr<Placement> OnHead(std::span<const std::byte> head, uint64_t bytes) override {
    if (head.size() == 2 && head[0] == std::byte{'n'}) return base::NotFound("no");
    auto memory = std::make_shared<std::vector<std::byte>>(bytes + shortage_);
    Placement placement{.owner = memory};
    // An empty piece first, then pieces of 1, 2, 4, ... bytes.
    placement.segments.push_back(std::span(*memory).first(0));
    for (size_t at = 0, step = 1; at < memory->size(); step *= 2) {
      const size_t size = std::min(step, memory->size() - at);
      placement.segments.push_back(std::span(*memory).subspan(at, size));
      at += size;
    }
    return placement;
  }
  void OnPayload(std::span<const std::byte> head, Placement placement) override {
    const auto& memory = *std::static_pointer_cast<std::vector<std::byte>>(placement.owner);
    frames.push_back({{head.begin(), head.end()}, memory});
  }
  std::vector<Frame> frames;
  size_t shortage_ = 0;
};

void Append(std::vector<std::byte>& stream, std::span<const std::byte> head,
            std::span<const std::byte> payload) {
  const auto header = EncodeFrameHeader(
      {.head_bytes = static_cast<uint32_t>(head.size()), .payload_bytes = payload.size()});
  stream.insert(stream.end(), header.begin(), header.end());
  stream.insert(stream.end(), head.begin(), head.end());
  stream.insert(stream.end(), payload.begin(), payload.end());
}

// Gives the stream to the reader in reads of at most `max_read` bytes.
absl::Status Feed(FrameReader& reader, std::span<const std::byte> stream, size_t max_read,
                  size_t iov_entries) {
  std::vector<iovec> iov(iov_entries);
  while (!stream.empty()) {
    const size_t count = reader.Want(iov, 64 << 10);
    EXPECT_GE(count, 1u);
    size_t taken = 0;
    for (size_t i = 0; i < count && taken < max_read && !stream.empty(); ++i) {
      const size_t n = std::min({iov[i].iov_len, max_read - taken, stream.size()});
      EXPECT_GT(iov[i].iov_len, 0u);
      std::copy_n(stream.begin(), n, static_cast<std::byte*>(iov[i].iov_base));
      stream = stream.subspan(n);
      taken += n;
      if (n < iov[i].iov_len) break;
    }
    RETURN_IF_ERROR(reader.Advance(taken));
  }
  return absl::OkStatus();
}

TEST(FrameReader, GivesTheSameFramesHoweverTheStreamIsCut) {
  std::vector<std::byte> stream;
  const std::vector<size_t> sizes = {0, 1, 7, 8192, 8193, 100'000, 3, 300'000, 0};
  for (size_t i = 0; i < sizes.size(); ++i) {
    Append(stream, Pattern(1 + i * 450, i), Pattern(sizes[i], 100 + i));
    Append(stream, Bytes("no"), Pattern(sizes[i] * 2, 7));
  }
  std::vector<std::byte> scratch(1000);
  for (const size_t max_read : {1u, 13u, 4096u, 1u << 20}) {
    for (const size_t entries : {1u, 2u, 64u}) {
      Sink sink;
      FrameReader reader(&sink, scratch);
      ASSERT_TRUE(Feed(reader, stream, max_read, entries).ok());
      EXPECT_TRUE(reader.AtBoundary());
      ASSERT_EQ(sink.frames.size(), sizes.size());
      for (size_t i = 0; i < sizes.size(); ++i) {
        EXPECT_EQ(sink.frames[i].head, Pattern(1 + i * 450, i));
        EXPECT_EQ(sink.frames[i].payload, Pattern(sizes[i], 100 + i));
      }
    }
  }
}

TEST(FrameReader, IsNotAtABoundaryWithinAFrame) {
  std::vector<std::byte> stream;
  Append(stream, Bytes("head"), Pattern(100, 1));
  std::vector<std::byte> scratch(1000);
  for (size_t cut = 1; cut < stream.size(); ++cut) {
    Sink sink;
    FrameReader reader(&sink, scratch);
    ASSERT_TRUE(Feed(reader, std::span(stream).first(cut), 1 << 20, 8).ok());
    EXPECT_FALSE(reader.AtBoundary()) << cut;
  }
}

TEST(FrameReader, RefusesHeadersBeyondTheLimitsBeforeTheHeadCame) {
  const auto header = [](uint32_t head, uint64_t payload) {
    return EncodeFrameHeader({.head_bytes = head, .payload_bytes = payload});
  };
  auto bad_magic = header(1, 0);
  bad_magic[0] ^= std::byte{1};
  std::vector<std::byte> scratch(1000);
  for (const auto& bytes : {bad_magic, header(0, 1), header(kMaxTransportHeadBytes + 1, 1),
                            header(1, kMaxPayloadBytes + 1), header(1, UINT64_MAX)}) {
    Sink sink;
    FrameReader reader(&sink, scratch);
    EXPECT_TRUE(absl::IsInvalidArgument(Feed(reader, bytes, 1 << 20, 8)));
  }
}

TEST(FrameReader, APlacementThatDoesNotFitIsAnInternalError) {
  std::vector<std::byte> stream;
  Append(stream, Bytes("head"), Pattern(100, 1));
  std::vector<std::byte> scratch(1000);
  Sink sink;
  sink.shortage_ = 1;
  FrameReader reader(&sink, scratch);
  EXPECT_TRUE(absl::IsInternal(Feed(reader, stream, 1 << 20, 8)));
  EXPECT_TRUE(sink.frames.empty());
}

TEST(Preamble, ComesBackAsItWas) {
  const Preamble preamble{.lane = Lane::kSpeculative, .key = base::NewChannelKey()};
  const auto decoded = DecodePreamble(EncodePreamble(preamble));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->lane, preamble.lane);
  EXPECT_EQ(decoded->key, preamble.key);
}

TEST(Preamble, EveryWrongByteBeforeTheKeyIsRefused) {
  const auto good = EncodePreamble({.lane = Lane::kMetadata, .key = base::NewChannelKey()});
  for (size_t i = 0; i < 8; ++i) {
    auto bad = good;
    bad[i] ^= std::byte{0x40};
    EXPECT_TRUE(absl::IsInvalidArgument(DecodePreamble(bad).status())) << i;
  }
}

TEST(Welcome, OfAnotherLaneIsRefused) {
  EXPECT_TRUE(CheckWelcome(EncodeWelcome(Lane::kMetadata), Lane::kMetadata).ok());
  EXPECT_FALSE(CheckWelcome(EncodeWelcome(Lane::kMetadata), Lane::kOnDemand).ok());
}

}  // namespace
}  // namespace smartgen::channel
