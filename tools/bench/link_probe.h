// How fast a link is: bytes through one TCP connection.
#pragma once

#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"

namespace smartgen::tools::bench {

// Payload bytes per second from `sender_namespace` (an open network namespace; -1: ours) to this
// namespace's address `host`, while `duration` lasts. The first fifth of the time does not count:
// there the token bucket is full and the sender's buffers fill.
absl::StatusOr<double> ProbeLink(const std::string& host, int sender_namespace,
                                 base::Duration duration);

}  // namespace smartgen::tools::bench
