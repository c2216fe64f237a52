// Everything that parses bytes from a peer's data sockets: the preamble, the frame stream (cut at
// arbitrary places), and the head of a KV message.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "common/channel/tcp/frame.h"
#include "common/transfer/wire.h"

namespace smartgen {
namespace {

// Payloads go to exactly fitting memory, so that the sanitizer sees each byte too many.
class Sink final : public channel::FrameSink {
 public:
  absl::StatusOr<channel::Placement> OnHead(std::span<const std::byte> head,
                                            uint64_t payload_bytes) override {
    if (head.empty() || head.size() > channel::kMaxHeadBytes) std::abort();
    if (payload_bytes > channel::kMaxPayloadBytes) std::abort();
    (void)transfer::DecodeWireHead(head).ok();
    if (payload_bytes > 1 << 20) return base::ResourceExhausted("too large for a fuzz target");
    auto memory = std::make_shared<std::vector<std::byte>>(payload_bytes);
    channel::Placement placement{.owner = memory};
    const size_t piece = 1 + static_cast<size_t>(head[0]);
    for (size_t at = 0; at < memory->size(); at += piece) {
      placement.segments.push_back(
          std::span(*memory).subspan(at, std::min(piece, memory->size() - at)));
    }
    ++open_;
    return placement;
  }
  void OnPayload(std::span<const std::byte>, channel::Placement) override {
    if (--open_ != 0) std::abort();
  }

 private:
  int open_ = 0;
};

void ReadFrames(std::span<const std::byte> stream, size_t max_read) {
  std::vector<std::byte> scratch(4096);
  Sink sink;
  channel::FrameReader reader(&sink, scratch);
  std::vector<iovec> iov(16);
  while (!stream.empty()) {
    const size_t count = reader.Want(iov, 64 << 10);
    if (count == 0) std::abort();
    size_t taken = 0;
    for (size_t i = 0; i < count && taken < max_read && !stream.empty(); ++i) {
      const size_t n = std::min({iov[i].iov_len, max_read - taken, stream.size()});
      std::copy_n(stream.begin(), n, static_cast<std::byte*>(iov[i].iov_base));
      stream = stream.subspan(n);
      taken += n;
      if (n < iov[i].iov_len) break;
    }
    if (taken == 0) std::abort();
    if (!reader.Advance(taken).ok()) return;
  }
}

void CheckWireHead(std::span<const std::byte> bytes) {
  const auto head = transfer::DecodeWireHead(bytes);
  if (!head.ok()) return;
  // What is accepted has one encoding.
  const auto again = transfer::EncodeWireHead(*head);
  if (!std::equal(again.begin(), again.end(), bytes.begin(), bytes.end())) std::abort();
}

}  // namespace
}  // namespace smartgen

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  if (size < 2) return 0;
  const size_t max_read = 1 + data[1] * 37u;
  const auto rest = bytes.subspan(2);
  switch (data[0] % 3) {
    case 0:
      smartgen::ReadFrames(rest, max_read);
      break;
    case 1:
      smartgen::CheckWireHead(rest);
      break;
    default:
      if (rest.size() >= smartgen::channel::kPreambleBytes) {
        (void)smartgen::channel::DecodePreamble(rest.first<smartgen::channel::kPreambleBytes>())
            .ok();
      }
  }
  return 0;
}
