#include "common/executor/kv_location.h"

namespace smartgen::executor {

std::string_view KvLocationName(KvLocation location) {
  switch (location) {
    case KvLocation::kAuto:
      return "auto";
    case KvLocation::kDevice:
      return "device";
    case KvLocation::kHost:
      return "host";
  }
  return "?";
}

absl::StatusOr<KvLocation> ParseKvLocation(std::string_view name) {
  for (const KvLocation location : {KvLocation::kAuto, KvLocation::kDevice, KvLocation::kHost}) {
    if (name == KvLocationName(location)) return location;
  }
  return base::InvalidArgument("kv_location: want auto, device or host, got \"{}\"", name);
}

}  // namespace smartgen::executor
