#include "common/base/cpu.h"

#include <fstream>

namespace smartgen::base {
namespace {

constexpr size_t kMaxNameBytes = 128;

}  // namespace

std::string CpuName() {
  std::ifstream in("/proc/cpuinfo");
  std::string part;  // Arm's kernels name no model
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    const std::string value = line.substr(colon + 2);
    if (line.starts_with("model name")) return value.substr(0, kMaxNameBytes);
    if (part.empty() && line.starts_with("CPU part")) part = "CPU part " + value;
  }
  return part.empty() ? "unknown" : part.substr(0, kMaxNameBytes);
}

}  // namespace smartgen::base
