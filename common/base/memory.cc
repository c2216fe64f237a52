#include "common/base/memory.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace smartgen::base {
namespace {

// A file that holds one number; false for "max" or no such file.
bool ReadNumber(const char* path, int64_t* value) {
  std::ifstream file(path);
  return static_cast<bool>(file >> *value);
}

}  // namespace

absl::StatusOr<int64_t> AvailableMemoryBytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  int64_t kib = 0;
  int64_t available = -1;
  while (meminfo >> key >> kib) {
    std::getline(meminfo, unit);
    if (key == "MemAvailable:") available = kib << 10;
  }
  if (available < 0) return NotFound("/proc/meminfo: want a line MemAvailable, found none");
  int64_t limit = 0;
  int64_t used = 0;
  if (ReadNumber("/sys/fs/cgroup/memory.max", &limit) &&
      ReadNumber("/sys/fs/cgroup/memory.current", &used)) {
    available = std::min(available, std::max<int64_t>(limit - used, 0));
  }
  return available;
}

}  // namespace smartgen::base
