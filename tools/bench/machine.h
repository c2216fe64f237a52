// What a benchmark ran on.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace smartgen::tools::bench {

// {"cpu", "cores", "memory_bytes", "kernel"}; what cannot be read is left out.
nlohmann::ordered_json DescribeMachine();
// "2026-01-31T12:00:00Z"
std::string UtcNow();

}  // namespace smartgen::tools::bench
