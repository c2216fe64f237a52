// The version of this software, as CMakeLists.txt states it.
#pragma once

#include <string_view>

namespace smartgen::config {

std::string_view SoftwareVersion();  // "0.1.0"

}  // namespace smartgen::config
