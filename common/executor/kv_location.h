// Where an executor on an accelerator reads the KV of its steps.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/base/status.h"

namespace smartgen::executor {

enum class KvLocation : uint8_t { kAuto, kDevice, kHost };
std::string_view KvLocationName(KvLocation location);
absl::StatusOr<KvLocation> ParseKvLocation(std::string_view name);  // auto, device, host

}  // namespace smartgen::executor
