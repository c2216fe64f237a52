// What stands behind "smartgen up -- ...": flags for the daemons.
#pragma once

#include <string>
#include <vector>

#include "tools/supervisor.h"

namespace smartgen::tools {

// --KEY=VALUE goes to every daemon that has KEY (as its --help says), --DAEMON.KEY=VALUE to that
// daemon alone (prefilld, decoded, gateway; prefilld means all of them). InvalidArgument for what
// no daemon has.
absl::Status ApplyOverrides(const std::vector<std::string>& overrides,
                            std::vector<DaemonSpec>& daemons);

}  // namespace smartgen::tools
