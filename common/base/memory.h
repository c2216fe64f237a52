// What this machine has.
#pragma once

#include <cstdint>

#include "common/base/status.h"

namespace smartgen::base {

// Memory that could be used now without swapping: MemAvailable of /proc/meminfo, or what the
// process's cgroup (v2) leaves of its limit, whichever is less.
absl::StatusOr<int64_t> AvailableMemoryBytes();

}  // namespace smartgen::base
