#include "prefill_server/identity.h"

#include <algorithm>

#include "common/channel/nccl/nccl.h"
#include "common/channel/transport_options.h"
#include "common/rpc/convert.h"

namespace smartgen::prefill_server {

absl::Status CheckHello(const v1::Hello& hello, const Identity& ours) {
  if (hello.wire_version() != v1::WIRE_VERSION_CURRENT) {
    return base::FailedPrecondition("wire_version: ours {}, theirs {} (their software: {})",
                                    static_cast<int>(v1::WIRE_VERSION_CURRENT),
                                    hello.wire_version(), hello.software_version());
  }
  if (hello.incarnation() == 0)
    return base::InvalidArgument("incarnation: want a non-zero number, got 0");
  if (hello.instance().empty() || hello.instance().size() > 256) {
    return base::InvalidArgument("instance: want 1 to 256 bytes, got {}", hello.instance().size());
  }
  if (hello.model_fingerprint() != ours.model_fingerprint) {
    return base::FailedPrecondition("model_fingerprint: ours {} ({}), theirs {}",
                                    ours.model_fingerprint, ours.model_name,
                                    hello.model_fingerprint());
  }
  if (hello.compute() != ours.compute) {
    return base::FailedPrecondition("compute: ours {}, theirs {}", ours.compute, hello.compute());
  }
  ASSIGN_OR_RETURN(const kv::KvLayout theirs, rpc::FromProto(hello.layout()));
  RETURN_IF_ERROR(ours.layout.CheckEqual(theirs));
  if (hello.selector_parameters() != ours.selector_parameters) {
    return base::FailedPrecondition(
        "selector_parameters: ours {:016x}, theirs {:016x}; give both the same file or neither one",
        ours.selector_parameters, hello.selector_parameters());
  }
  return TransportFor(hello, ours).status();
}

absl::StatusOr<std::string> TransportFor(const v1::Hello& hello, const Identity& ours) {
  std::vector<std::string> theirs(hello.transports().begin(), hello.transports().end());
  absl::StatusOr<std::string> chosen = channel::ChooseTransport(ours.transports, theirs);
  if (!chosen.ok() || *chosen != "nccl") return chosen;
  const bool same_version = hello.nccl_version() == ours.nccl_version;
  if (same_version && hello.nccl_piece_bytes() == ours.nccl_piece_bytes) return chosen;
  std::erase(theirs, "nccl");
  absl::StatusOr<std::string> other = channel::ChooseTransport(ours.transports, theirs);
  if (other.ok()) return other;
  if (same_version) {
    return base::FailedPrecondition("nccl.piece_bytes: ours {}, theirs {}", ours.nccl_piece_bytes,
                                    hello.nccl_piece_bytes());
  }
  return base::FailedPrecondition("nccl_version: ours {}, theirs {}",
                                  channel::NcclVersionText(ours.nccl_version),
                                  channel::NcclVersionText(hello.nccl_version()));
}

}  // namespace smartgen::prefill_server
