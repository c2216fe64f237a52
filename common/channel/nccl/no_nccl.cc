// A build without NCCL.
#include "common/channel/nccl/nccl.h"

namespace smartgen::channel {

absl::StatusOr<std::unique_ptr<Nccl>> OpenNccl(device::Device*) {
  return base::FailedPrecondition(
      "this build has no NCCL: build the cuda preset (README, \"NCCL\") for channel: nccl");
}

}  // namespace smartgen::channel
