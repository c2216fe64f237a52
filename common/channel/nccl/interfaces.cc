#include "common/channel/nccl/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <array>

namespace smartgen::channel {
namespace {

std::vector<std::string_view> SplitList(std::string_view text) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    if (comma != 0) parts.push_back(text.substr(0, comma));
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
  }
  return parts;
}

}  // namespace

std::vector<std::string> NetworkInterfaces() {
  std::vector<std::string> names;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return names;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    const bool usable =
        (each->ifa_flags & IFF_UP) != 0 && each->ifa_addr != nullptr &&
        (each->ifa_addr->sa_family == AF_INET || each->ifa_addr->sa_family == AF_INET6);
    if (usable && std::find(names.begin(), names.end(), each->ifa_name) == names.end()) {
      names.emplace_back(each->ifa_name);
    }
  }
  freeifaddrs(list);
  return names;
}

bool IsVirtualInterface(std::string_view name) {
  constexpr std::array<std::string_view, 9> kPrefixes = {
      "docker", "veth", "br-", "virbr", "cni", "flannel", "cali", "podman", "lxc"};
  return std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

absl::Status CheckInterfaces(const std::vector<std::string>& interfaces, std::string_view chosen) {
  if (chosen.empty()) {
    std::vector<std::string> real;
    std::copy_if(interfaces.begin(), interfaces.end(), std::back_inserter(real),
                 [](const std::string& name) { return name != "lo" && !IsVirtualInterface(name); });
    if (real.size() < 2) return absl::OkStatus();
    return base::FailedPrecondition(
        "this machine has several network interfaces ({}): set NCCL_SOCKET_IFNAME to the one that "
        "leads to the peers, for instance NCCL_SOCKET_IFNAME={}",
        fmt::join(real, ", "), real.front());
  }
  std::string_view list = chosen;
  const bool excludes = list.starts_with('^');
  if (excludes) list.remove_prefix(1);
  const bool exact = list.starts_with('=');
  if (exact) list.remove_prefix(1);
  const auto parts = SplitList(list);
  const bool any = std::any_of(interfaces.begin(), interfaces.end(), [&](const std::string& name) {
    const bool named = std::any_of(parts.begin(), parts.end(), [&](std::string_view part) {
      return exact ? name == part : name.starts_with(part);
    });
    return named != excludes;
  });
  if (any) return absl::OkStatus();
  return base::FailedPrecondition("NCCL_SOCKET_IFNAME={}: no interface is left of {}", chosen,
                                  fmt::join(interfaces, ", "));
}

}  // namespace smartgen::channel
