// A request's events in the JSON trace-event format that ui.perfetto.dev and chrome://tracing open.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace smartgen::tools::trace_view {

using Json = nlohmann::ordered_json;

struct ViewEvent {
  std::string name;
  std::string category;  // of messages: the path
  std::string track;
  bool instant = false;
  int64_t begin_ns = 0;  // of one clock for all processes
  int64_t duration_ns = 0;
  std::vector<std::pair<std::string, int64_t>> args;
};

struct Process {
  std::string name;  // "decoded 127.0.0.1:7200"
  std::vector<ViewEvent> events;
};

// Times in microseconds since the earliest event. A process's number is its place, from 1 on. A
// track is a thread; events of one track that overlap without one holding the other (a viewer could
// not draw them) are spread over several threads, "fetch", "fetch (2)". `metadata` becomes
// otherData.
Json ToChrome(std::span<const Process> processes, Json metadata);

// The earliest event's begin; 0: there are none.
int64_t EarliestNs(std::span<const Process> processes);

}  // namespace smartgen::tools::trace_view
