#include "tools/trace/generate.h"

#include <utility>

namespace smartgen::tools::trace_view {
namespace {

constexpr std::string_view kTrack = "request";

int64_t NowNs() { return base::Clock::Real()->Now().ns; }

std::string ErrorText(int status, const std::string& body) {
  const Json json = Json::parse(body, nullptr, false);
  const Json::json_pointer message("/error/message");
  if (!json.is_discarded() && json.contains(message) && json.at(message).is_string()) {
    return fmt::format("the gateway says {}: {}", status, json.at(message).get<std::string>());
  }
  return fmt::format("the gateway says {}: {}", status, body.substr(0, 500));
}

class Reader {
 public:
  // False ends the stream.
  bool Take(std::string_view data) {
    if (data == "[DONE]") {
      done_ = true;
      return false;
    }
    const Json event = Json::parse(data, nullptr, false);
    if (!event.is_object() || event.contains("error")) {
      error_ = event.is_object() ? ErrorText(200, std::string(data))
                                 : "the gateway sent an event that is not JSON";
      return false;
    }
    if (const auto id = event.find("id"); id != event.end() && id->is_string()) {
      out.id = id->get<std::string>();
    }
    if (const auto info = event.find("smartgen"); info != event.end()) out.smartgen = *info;
    const Json::json_pointer text("/choices/0/text");
    if (event.contains(text) && event.at(text).is_string() &&
        !event.at(text).get_ref<const std::string&>().empty()) {
      out.process.events.push_back({.name = "text",
                                    .category = "moment",
                                    .track = std::string(kTrack),
                                    .instant = true,
                                    .begin_ns = NowNs(),
                                    .args = {{"number", ++pieces_}}});
    }
    return true;
  }
  absl::Status Ended() const {
    if (!error_.empty()) return base::Unavailable("{}", error_);
    if (!done_) return base::Unavailable("the answer was cut off");
    if (out.id.empty()) return base::Unavailable("the answer has no id");
    return absl::OkStatus();
  }

  Generated out;

 private:
  std::string error_;
  int64_t pieces_ = 0;
  bool done_ = false;
};

}  // namespace

absl::StatusOr<Generated> Generate(const GenerateOptions& options) {
  Json smartgen = options.smartgen;
  smartgen["trace"] = true;
  const Json body{{"prompt", options.prompt},
                  {"max_tokens", options.max_tokens},
                  {"temperature", 0},
                  {"ignore_eos", true},
                  {"stream", true},
                  {"stream_options", {{"include_usage", true}}},
                  {"smartgen", std::move(smartgen)}};
  HttpRequest request;
  request.method = "POST";
  request.url = options.url;
  request.path = "/v1/completions";
  request.headers.emplace_back("Content-Type", "application/json");
  if (!options.api_key.empty()) {
    request.headers.emplace_back("Authorization", "Bearer " + options.api_key);
  }
  request.body = body.dump(-1, ' ', false, Json::error_handler_t::replace);
  Reader reader;
  EventParser events;
  const int64_t begin_ns = NowNs();
  ASSIGN_OR_RETURN(const HttpResponse response, Send(request, [&](std::string_view bytes) {
                     return events.Push(bytes,
                                        [&](std::string_view data) { return reader.Take(data); });
                   }));
  if (response.status != 200) {
    return base::Unavailable("{}", ErrorText(response.status, response.body));
  }
  RETURN_IF_ERROR(reader.Ended());
  reader.out.process.name = "client of the gateway";
  reader.out.process.events.push_back({.name = "request",
                                       .category = "state",
                                       .track = std::string(kTrack),
                                       .begin_ns = begin_ns,
                                       .duration_ns = NowNs() - begin_ns});
  return std::move(reader.out);
}

}  // namespace smartgen::tools::trace_view
