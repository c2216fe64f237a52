#include "tools/bench/machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <ctime>
#include <fstream>
#include <thread>

#include "common/base/clock.h"

namespace smartgen::tools::bench {

nlohmann::ordered_json DescribeMachine() {
  nlohmann::ordered_json json;
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) json["cpu"] = line.substr(colon + 2);
    break;
  }
  json["cores"] = std::thread::hardware_concurrency();
  const long pages = sysconf(_SC_PHYS_PAGES);
  if (pages > 0) json["memory_bytes"] = int64_t{pages} * sysconf(_SC_PAGESIZE);
  utsname names{};
  if (uname(&names) == 0) json["kernel"] = std::string(names.sysname) + " " + names.release;
  return json;
}

std::string UtcNow() {
  const time_t now = base::Clock::Real()->UnixSeconds();
  tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace smartgen::tools::bench
