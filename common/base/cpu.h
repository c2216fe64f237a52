// Which processor this is.
#pragma once

#include <string>

namespace smartgen::base {

// "AMD EPYC 7763 64-Core Processor": the model name of the first processor in /proc/cpuinfo, or
// what stands there in its place ("CPU part 0xd0c"), at most 128 bytes; "unknown" if nothing does.
std::string CpuName();

}  // namespace smartgen::base
