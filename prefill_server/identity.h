// What a daemon's peers must agree with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/kv/layout.h"
#include "proto/transfer.pb.h"

namespace smartgen::prefill_server {

struct Identity {
  std::string model_name;
  std::string model_fingerprint;
  std::string compute;
  kv::KvLayout layout;
  int64_t context_length = 0;
  uint64_t selector_parameters = 0;  // selector::DigestOf
  std::vector<std::string> transports = {"tcp"};
  // With transport "nccl".
  int nccl_version = 0;
  uint64_t nccl_piece_bytes = 0;
};

// FailedPrecondition names the field that differs and both values; InvalidArgument for a Hello that
// says nothing.
absl::Status CheckHello(const v1::Hello& hello, const Identity& ours);
// The first transport of theirs that is ours; "nccl" only if NCCL's version and the
// bytes of a piece are equal.
absl::StatusOr<std::string> TransportFor(const v1::Hello& hello, const Identity& ours);

}  // namespace smartgen::prefill_server
