#include "tools/bench/counters.h"

#include <cstdlib>

#include "tools/http_client.h"

namespace smartgen::tools::bench {
namespace {

bool EndsWith(std::string_view text, std::string_view end) { return text.ends_with(end); }

std::string_view NameOf(std::string_view key) { return key.substr(0, key.find('{')); }

// The value of `label` in `name{a="x",b="y"}`; label values here hold no quotes.
std::string LabelValue(std::string_view key, std::string_view label) {
  const std::string begin = std::string(label) + "=\"";
  size_t at = key.find('{');
  while (at != std::string_view::npos) {
    ++at;
    if (key.substr(at, begin.size()) == begin) {
      at += begin.size();
      return std::string(key.substr(at, key.find('"', at) - at));
    }
    at = key.find(',', at);
  }
  return "";
}

}  // namespace

Counters ParseCounters(std::string_view text) {
  Counters counters;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const size_t space = line.rfind(' ');
    if (line.empty() || line[0] == '#' || space == std::string_view::npos) continue;
    const std::string_view key = line.substr(0, space);
    const std::string_view name = NameOf(key);
    if (!EndsWith(name, "_total") && !EndsWith(name, "_sum") && !EndsWith(name, "_count")) continue;
    counters[std::string(key)] = std::strtod(std::string(line.substr(space + 1)).c_str(), nullptr);
  }
  return counters;
}

Counters Growth(const Counters& before, const Counters& after) {
  Counters growth;
  for (const auto& [key, value] : after) {
    const auto old = before.find(key);
    const double more = value - (old == before.end() ? 0 : old->second);
    if (more != 0) growth[key] = more;
  }
  return growth;
}

void AddTo(Counters& sum, const Counters& more) {
  for (const auto& [key, value] : more) sum[key] += value;
}

std::map<std::string, double> ByLabel(const Counters& counters, std::string_view name,
                                      std::string_view label, std::string_view where) {
  std::map<std::string, double> values;
  for (const auto& [key, value] : counters) {
    if (NameOf(key) != name || key.find(where) == std::string::npos) continue;
    values[LabelValue(key, label)] += value;
  }
  return values;
}

absl::StatusOr<Counters> FetchCounters(const std::string& url) {
  HttpRequest request;
  ASSIGN_OR_RETURN(request.url, ParseUrl(url));
  request.path = "/metrics";
  request.silence_timeout = std::chrono::seconds(30);
  ASSIGN_OR_RETURN(const HttpResponse response, Send(request));
  if (response.status != 200) {
    return base::Unavailable("{}/metrics answers {}", url, response.status);
  }
  return ParseCounters(response.body);
}

}  // namespace smartgen::tools::bench
