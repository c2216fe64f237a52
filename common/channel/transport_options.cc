#include "common/channel/transport_options.h"

#include <algorithm>

#include "common/channel/channel.h"

namespace smartgen::channel {

void TransportOptions::Bind(config::Binder& b) {
  b.Choice("channel", &channel, {"tcp", "nccl", "nccl_or_tcp"},
           "how KV travels; nccl needs GPUs on both sides, nccl_or_tcp takes tcp without");
  b.Section("nccl", [&](config::Binder& s) {
    s.Field("device", &device, "CUDA device of the communicators");
    s.Bytes("piece_bytes", &piece_bytes, "bytes that go over NCCL at once; equal on both sides");
    s.Field("max_pairs", &max_pairs, "communicators at a time");
  });
}

absl::Status TransportOptions::Check() const {
  if (device < 0) return base::InvalidArgument("nccl.device: want at least 0, got {}", device);
  constexpr int64_t kMinPiece = 64 << 10;
  if (piece_bytes < kMinPiece || piece_bytes > static_cast<int64_t>(kMaxPayloadBytes)) {
    return base::InvalidArgument("nccl.piece_bytes: want {} to {}, got {}", kMinPiece,
                                 kMaxPayloadBytes, piece_bytes);
  }
  if (max_pairs < 1) {
    return base::InvalidArgument("nccl.max_pairs: want at least 1, got {}", max_pairs);
  }
  return absl::OkStatus();
}

std::vector<std::string> TransportOptions::Transports() const {
  if (channel == "nccl_or_tcp") return {"nccl", "tcp"};
  return {channel};
}

absl::StatusOr<std::string> ChooseTransport(const std::vector<std::string>& ours,
                                            const std::vector<std::string>& theirs) {
  for (const std::string& each : theirs) {
    if (std::find(ours.begin(), ours.end(), each) != ours.end()) return each;
  }
  return base::FailedPrecondition("transports: ours {}, theirs {} (option channel on both sides)",
                                  fmt::join(ours, ","), fmt::join(theirs, ","));
}

}  // namespace smartgen::channel
