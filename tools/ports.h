// Free ports on loopback.
#pragma once

#include <vector>

#include "common/base/status.h"

namespace smartgen::tools {

// `count` different ports that nobody listens on now. Who uses one must still expect to find it
// taken.
absl::StatusOr<std::vector<int>> FreePorts(int count);

}  // namespace smartgen::tools
