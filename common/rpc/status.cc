#include "common/rpc/status.h"

namespace smartgen::rpc {
namespace {
constexpr size_t kMaxMessage = 4096;
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.code()),
          std::string(base::MessageOf(status).substr(0, kMaxMessage))};
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const int code = static_cast<int>(status.error_code());
  const bool known = code > 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return base::MakeStatus(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                          status.error_message());
}

}  // namespace smartgen::rpc
