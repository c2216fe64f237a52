// absl::Status to gRPC's and back. The codes are the same numbers.
#pragma once

#include <grpcpp/support/status.h>

#include "common/base/status.h"

namespace smartgen::rpc {

// Messages are cut at 4 KiB: they travel in a header.
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace smartgen::rpc
