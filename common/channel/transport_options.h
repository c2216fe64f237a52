// Which channels a daemon takes part in, and how. Both daemons have these options.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/config/binder.h"

namespace smartgen::channel {

struct TransportOptions {
  // How KV travels: tcp, nccl (refuses peers without), nccl_or_tcp (tcp where nccl cannot be had:
  // logged and counted).
  std::string channel = "tcp";
  int device = 0;  // of CUDA, for NCCL's communicators and staging
  // Bytes that go over NCCL at once, through staging on both sides; equal on both.
  int64_t piece_bytes = 4 << 20;
  int max_pairs = 16;  // communicators at a time: each takes memory of the device

  void Bind(config::Binder& b);
  absl::Status Check() const;
  // "nccl", "tcp", as Hello names them, in order of preference.
  std::vector<std::string> Transports() const;
  bool WantsNccl() const { return channel != "tcp"; }
};

// The first of what they want that we have. FailedPrecondition names both lists.
absl::StatusOr<std::string> ChooseTransport(const std::vector<std::string>& ours,
                                            const std::vector<std::string>& theirs);

}  // namespace smartgen::channel
