// Internal to common/rpc: server credentials, with TLS or without, that ask every call but health
// checks for the bearer token before any handler sees it.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "common/base/status.h"
#include "common/rpc/security.h"

namespace smartgen::rpc {

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const Security& security);

// In time that does not depend on where they differ.
bool EqualSecrets(std::string_view a, std::string_view b);

}  // namespace smartgen::rpc
