// Which network interface NCCL should take. With several NCCL guesses, and has taken veth pairs and
// bridges of containers before (nccl#286): a machine with several must say.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace smartgen::channel {

// Interfaces of this machine that are up, the loopback among them.
std::vector<std::string> NetworkInterfaces();

// Of containers and virtual machines: never the way to another machine.
bool IsVirtualInterface(std::string_view name);

// Whether `chosen` (NCCL_SOCKET_IFNAME: prefixes, "=" before exact names, "^" before those that are
// not meant, comma separated; empty: not set) leaves an interface of `interfaces`, and no choice
// where it is not set. FailedPrecondition lists them and says what to set.
absl::Status CheckInterfaces(const std::vector<std::string>& interfaces, std::string_view chosen);

}  // namespace smartgen::channel
