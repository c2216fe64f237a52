// The client side of grpc.health.v1.
#pragma once

#include <memory>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/status.h"

namespace grpc {
class Channel;
}

namespace smartgen::rpc {

// OK: SERVING. Unavailable: NOT_SERVING or out of reach; NotFound: the peer has no such service.
absl::Status CheckHealth(const std::shared_ptr<grpc::Channel>& channel, std::string_view service,
                         base::Duration timeout);

}  // namespace smartgen::rpc
