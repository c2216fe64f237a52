#include "tools/trace/chrome.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <limits>
#include <map>

namespace smartgen::tools::trace_view {
namespace {

// The order from top to bottom; others follow.
constexpr std::string_view kTrackOrder[] = {
    "request",         "prefill layers",      "decode steps",          "handover",
    "on-demand fetch", "speculative",         "sent: metadata",        "sent: push",
    "sent: on demand", "sent: speculative",   "sent: answers",         "received: metadata",
    "received: push",  "received: on demand", "received: speculative", "received: answers"};

size_t RankOf(std::string_view track) {
  const auto at = std::find(std::begin(kTrackOrder), std::end(kTrackOrder), track);
  return static_cast<size_t>(at - std::begin(kTrackOrder));
}

double Microseconds(int64_t ns) { return static_cast<double>(ns) * 1e-3; }

// What runs in one thread of the picture: ends of the events that are open, innermost last.
class Lane {
 public:
  bool Take(int64_t begin, int64_t end) {
    while (!open_.empty() && open_.back() <= begin) open_.pop_back();
    if (!open_.empty() && open_.back() < end) return false;
    open_.push_back(end);
    return true;
  }

 private:
  std::vector<int64_t> open_;
};

// The lane of each event; `events` by begin, longer ones first.
std::vector<size_t> Spread(std::span<const ViewEvent* const> events) {
  std::vector<Lane> lanes(1);
  std::vector<size_t> places;
  for (const ViewEvent* event : events) {
    size_t place = 0;
    if (!event->instant) {
      while (!lanes[place].Take(event->begin_ns, event->begin_ns + event->duration_ns)) {
        if (++place == lanes.size()) lanes.emplace_back();
      }
    }
    places.push_back(place);
  }
  return places;
}

Json Named(const char* what, int pid, int tid, const char* key, Json value) {
  Json event{{"ph", "M"}, {"ts", 0}, {"pid", pid}, {"tid", tid}, {"name", what}};
  event["args"][key] = std::move(value);
  return event;
}

Json EventJson(const ViewEvent& event, int pid, int tid, int64_t origin_ns) {
  Json json{{"ph", event.instant ? "i" : "X"},
            {"name", event.name},
            {"cat", event.category},
            {"pid", pid},
            {"tid", tid},
            {"ts", Microseconds(event.begin_ns - origin_ns)}};
  if (event.instant) {
    json["s"] = "t";  // drawn on its own track only
  } else {
    json["dur"] = Microseconds(event.duration_ns);
  }
  json["args"] = Json::object();
  for (const auto& [name, value] : event.args) json["args"][name] = value;
  return json;
}

void AddProcess(const Process& process, int pid, int64_t origin_ns, Json& out) {
  out.push_back(Named("process_name", pid, 0, "name", process.name));
  out.push_back(Named("process_sort_index", pid, 0, "sort_index", pid));
  std::map<std::pair<size_t, std::string>, std::vector<const ViewEvent*>> tracks;
  for (const ViewEvent& event : process.events) {
    tracks[{RankOf(event.track), event.track}].push_back(&event);
  }
  int first_tid = 1;
  for (auto& [key, events] : tracks) {
    std::stable_sort(events.begin(), events.end(), [](const ViewEvent* a, const ViewEvent* b) {
      return std::pair(a->begin_ns, -a->duration_ns) < std::pair(b->begin_ns, -b->duration_ns);
    });
    const std::vector<size_t> lanes = Spread(events);
    const auto count = static_cast<int>(*std::max_element(lanes.begin(), lanes.end())) + 1;
    for (int lane = 0; lane < count; ++lane) {
      const int tid = first_tid + lane;
      const std::string name =
          lane == 0 ? key.second : fmt::format("{} ({})", key.second, lane + 1);
      out.push_back(Named("thread_name", pid, tid, "name", name));
      out.push_back(Named("thread_sort_index", pid, tid, "sort_index", tid));
    }
    for (size_t i = 0; i < events.size(); ++i) {
      out.push_back(EventJson(*events[i], pid, first_tid + static_cast<int>(lanes[i]), origin_ns));
    }
    first_tid += count;
  }
}

}  // namespace

int64_t EarliestNs(std::span<const Process> processes) {
  int64_t earliest = std::numeric_limits<int64_t>::max();
  for (const Process& process : processes) {
    for (const ViewEvent& event : process.events) earliest = std::min(earliest, event.begin_ns);
  }
  return earliest == std::numeric_limits<int64_t>::max() ? 0 : earliest;
}

Json ToChrome(std::span<const Process> processes, Json metadata) {
  const int64_t origin_ns = EarliestNs(processes);
  Json events = Json::array();
  int pid = 0;
  for (const Process& process : processes) AddProcess(process, ++pid, origin_ns, events);
  Json json;
  json["displayTimeUnit"] = "ms";
  json["otherData"] = std::move(metadata);
  json["traceEvents"] = std::move(events);
  return json;
}

}  // namespace smartgen::tools::trace_view
