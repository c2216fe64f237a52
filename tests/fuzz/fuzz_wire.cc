// Everything that parses bytes from a peer's data sockets: the preamble, the frame stream (cut at
// arbitrary places), the head of a KV message, the envelope of a channel over NCCL, and what the
// receiver makes of heads.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "common/base/hash.h"
#include "common/channel/nccl/envelope.h"
#include "common/channel/tcp/frame.h"
#include "common/transfer/transfer.h"
#include "common/transfer/wire.h"

namespace smartgen {
namespace {

// Payloads go to exactly fitting memory, so that the sanitizer sees each byte too many.
class Sink final : public channel::FrameSink {
 public:
  absl::StatusOr<channel::Placement> OnHead(std::span<const std::byte> head,
                                            uint64_t payload_bytes) override {
    if (head.empty() || head.size() > channel::kMaxTransportHeadBytes) std::abort();
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

void CheckEnvelope(std::span<const std::byte> bytes) {
  const auto envelope = channel::Unwrap(bytes);
  if (!envelope.ok()) return;
  if (envelope->head.size() >= bytes.size()) std::abort();
  if (envelope->amount > channel::kMaxPayloadBytes &&
      envelope->kind == channel::EnvelopeKind::kOffer) {
    std::abort();
  }
  // What comes out comes out again.
  const auto wrapped = channel::Wrap(*envelope);
  const auto again = channel::Unwrap(wrapped);
  if (!again.ok() || again->sequence != envelope->sequence || again->amount != envelope->amount ||
      again->epoch != envelope->epoch || !std::ranges::equal(again->head, envelope->head)) {
    std::abort();
  }
}

// Heads one after the other (a whole table each, as far as there are bytes), with payloads that the
// target makes up. A token that is local must keep its bytes.
class ReceiveTarget {
 public:
  ReceiveTarget() {
    kv::KvLayout layout{.layers = {{.kv_heads = 2, .head_dim = 4}, {.kv_heads = 1, .head_dim = 8}},
                        .dtype = kv::DType::kF32,
                        .token_capacity = 80};
    pool_ = *kv::KvPool::Create(layout, {.bytes = 5 * layout.PageBytesTotal()});
    sequence_ = std::make_shared<kv::KvSequence>(pool_.get());
    if (!sequence_->Reserve(80).ok()) std::abort();
    receiver_ =
        transfer::TransferReceiver::Create({.own_incarnation = 22, .peer_incarnation = 11}, {});
    transfer::ReceiveSpec spec{.id = {.hi = 1, .lo = 2}, .sequence = sequence_, .end = 64};
    spec.on_reply = [](uint64_t, int, std::vector<std::byte>) {};
    spec.on_metadata = [](int, int64_t, int64_t, bool, std::vector<std::byte>) {};
    if (!receiver_->Begin(std::move(spec)).ok()) std::abort();
  }

  void Run(std::span<const std::byte> bytes) {
    while (bytes.size() >= transfer::kWireFixedBytes) {
      const size_t table = transfer::kWireRangeBytes * std::to_integer<size_t>(bytes[52]);
      const auto head = bytes.first(std::min(bytes.size(), transfer::kWireFixedBytes + table));
      bytes = bytes.subspan(head.size());
      Offer(head);
    }
  }

 private:
  void Offer(std::span<const std::byte> head) {
    const auto decoded = transfer::DecodeWireHead(head);
    if (!decoded.ok() || decoded->payload_bytes > 1 << 20) return;
    auto placement = receiver_->OnHead(channel::Lane::kOnDemand, head, decoded->payload_bytes);
    if (!placement.ok()) return;
    // Without noise nothing would ever have the right checksum.
    transfer::WireHead right = *decoded;
    const std::vector<std::byte> payload(decoded->payload_bytes, std::byte{++fill_});
    right.checksum = base::Hash64(payload);
    const auto before = LocalBytes();
    size_t at = 0;
    for (const auto& segment : placement->segments) {
      if (segment.size() > payload.size() - at) std::abort();
      std::memcpy(segment.data(), payload.data() + at, segment.size());
      at += segment.size();
    }
    if (at != payload.size()) std::abort();
    for (const auto& [place, byte] : before) {
      if (*place != byte) std::abort();
    }
    receiver_->OnPayload(channel::Lane::kOnDemand, head, *std::move(placement));
    // The checksum of the head is wrong as a rule: mark by hand what would have been.
    if (const auto again = transfer::EncodeWireHead(right); !std::ranges::equal(again, head)) {
      auto repeated = receiver_->OnHead(channel::Lane::kOnDemand, again, decoded->payload_bytes);
      if (!repeated.ok()) std::abort();
      for (const auto& segment : repeated->segments) {
        std::fill(segment.begin(), segment.end(), std::byte{fill_});
      }
      receiver_->OnPayload(channel::Lane::kOnDemand, again, *std::move(repeated));
    }
  }

  // First bytes of all local entries.
  std::vector<std::pair<const std::byte*, std::byte>> LocalBytes() {
    std::vector<std::pair<const std::byte*, std::byte>> bytes;
    for (int layer = 0; layer < 2; ++layer) {
      for (int head = 0; head < sequence_->layout().layers[layer].kv_heads; ++head) {
        for (int64_t token = 0; token < sequence_->capacity(); ++token) {
          if (!sequence_->HeadLocal(layer, head, token)) continue;
          for (const auto& s : sequence_->Segments(layer, head, token, token + 1)) {
            bytes.emplace_back(s.data(), s[0]);
          }
        }
      }
    }
    return bytes;
  }

  std::unique_ptr<kv::KvPool> pool_;
  std::shared_ptr<kv::KvSequence> sequence_;
  std::shared_ptr<transfer::TransferReceiver> receiver_;
  uint8_t fill_ = 0;
};

}  // namespace
}  // namespace smartgen

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  if (size < 2) return 0;
  const size_t max_read = 1 + data[1] * 37u;
  const auto rest = bytes.subspan(2);
  switch (data[0] % 5) {
    case 0:
      smartgen::ReadFrames(rest, max_read);
      break;
    case 1:
      smartgen::CheckWireHead(rest);
      break;
    case 3:
      smartgen::ReceiveTarget().Run(rest);
      break;
    case 4:
      smartgen::CheckEnvelope(rest);
      break;
    default:
      if (rest.size() >= smartgen::channel::kPreambleBytes) {
        (void)smartgen::channel::DecodePreamble(rest.first<smartgen::channel::kPreambleBytes>())
            .ok();
      }
  }
  return 0;
}
