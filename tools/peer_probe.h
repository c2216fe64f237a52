// Measures the way from a prefill instance to this machine.
#pragma once

#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/rpc/security.h"
#include "common/transfer/cost_model.h"

namespace smartgen::tools {

// Over a data channel like those that KV takes, to the prefilld whose gRPC address is `peer`
// (host:port): the round trip of a small message, and the payload bytes per second that it can send
// while nothing else takes the link. Takes a few seconds, at most `timeout`. Errors name the peer.
absl::StatusOr<transfer::LinkPoint> ProbePeer(const std::string& peer,
                                              const rpc::Security& security,
                                              base::Duration timeout);

}  // namespace smartgen::tools
