// Paths for what a test writes.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <string_view>

namespace smartgen::fakes {

// In the temporary folder; of this process alone, since tests run side by side.
inline std::string TempPath(std::string_view name) {
  return testing::TempDir() + "/" + std::to_string(getpid()) + "_" + std::string(name);
}

}  // namespace smartgen::fakes
