// chat: a conversation in the terminal, streamed, with each turn's timings.
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/base/clock.h"
#include "tools/command.h"
#include "tools/http_client.h"

namespace smartgen::tools {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string url = "http://127.0.0.1:8000";
  std::string model;
  std::string system;
  std::string api_key;
  int64_t max_tokens = 512;
  double temperature = -1;
  int64_t seed = -1;
  bool json_timings = false;

  void Bind(config::Binder& b) {
    b.Field("url", &url, "the gateway, http://host:port");
    b.Field("model", &model, "empty: the first that the gateway lists");
    b.Field("system", &system, "system message; empty: none");
    b.Secret("api_key", &api_key, "bearer token, where the gateway asks for one");
    b.Field("max-tokens", &max_tokens, "longest answer");
    b.Field("temperature", &temperature, "below 0: the gateway's default");
    b.Field("seed", &seed, "below 0: a random one");
    b.Field("json-timings", &json_timings, "timings as one JSON object a turn, on standard error");
  }
};

struct Turn {
  std::string answer;
  std::optional<base::TimePoint> first;
  std::optional<base::TimePoint> second;
  base::TimePoint begin;
  base::TimePoint last;
  int64_t pieces = 0;
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  std::string finish_reason;
  std::string error;
};

// The gateway's own words where it sent some.
std::string ErrorText(int status, const std::string& body) {
  const Json json = Json::parse(body, nullptr, false);
  if (json.is_object() && json.contains("error") && json["error"].is_object()) {
    const auto message = json["error"].find("message");
    if (message != json["error"].end() && message->is_string()) {
      return fmt::format("HTTP {}: {}", status, message->get<std::string>());
    }
  }
  return fmt::format("HTTP {}: {}", status, body.substr(0, 500));
}

class Conversation {
 public:
  Conversation(Options options, Url url) : options_(std::move(options)), url_(std::move(url)) {
    Reset();
  }

  void Reset() {
    messages_ = Json::array();
    if (!options_.system.empty()) {
      messages_.push_back({{"role", "system"}, {"content", options_.system}});
    }
  }

  absl::Status ChooseModel() {
    if (!options_.model.empty()) return absl::OkStatus();
    HttpRequest request = Request("GET", "/v1/models");
    request.silence_timeout = std::chrono::seconds(10);
    ASSIGN_OR_RETURN(const HttpResponse response, Send(request));
    const Json json = Json::parse(response.body, nullptr, false);
    const Json::json_pointer first("/data/0/id");
    if (response.status != 200 || !json.contains(first) || !json.at(first).is_string()) {
      return base::Unavailable("the gateway lists no model: {}",
                               ErrorText(response.status, response.body));
    }
    options_.model = json.at(first).get<std::string>();
    return absl::OkStatus();
  }

  const std::string& model() const { return options_.model; }

  // Streams the answer to standard output; a turn that fails leaves the history as it was.
  absl::StatusOr<Turn> Say(const std::string& text) {
    messages_.push_back({{"role", "user"}, {"content", text}});
    Turn turn;
    const absl::Status status = Stream(turn);
    if (!status.ok()) {
      messages_.erase(messages_.size() - 1);
      return status;
    }
    messages_.push_back({{"role", "assistant"}, {"content", turn.answer}});
    return turn;
  }

 private:
  HttpRequest Request(std::string method, std::string path) const {
    HttpRequest request;
    request.method = std::move(method);
    request.url = url_;
    request.path = std::move(path);
    if (!options_.api_key.empty()) {
      request.headers.emplace_back("Authorization", "Bearer " + options_.api_key);
    }
    return request;
  }

  absl::Status Stream(Turn& turn) {
    Json body = {{"model", options_.model},
                 {"messages", messages_},
                 {"max_tokens", options_.max_tokens},
                 {"stream", true},
                 {"stream_options", {{"include_usage", true}}}};
    if (options_.temperature >= 0) body["temperature"] = options_.temperature;
    if (options_.seed >= 0) body["seed"] = options_.seed;
    HttpRequest request = Request("POST", "/v1/chat/completions");
    request.headers.emplace_back("Content-Type", "application/json");
    request.body = body.dump(-1, ' ', false, Json::error_handler_t::replace);
    turn.begin = turn.last = base::Clock::Real()->Now();
    EventParser events;
    bool done = false;
    ASSIGN_OR_RETURN(const HttpResponse response, Send(request, [&](std::string_view bytes) {
                       return events.Push(bytes, [&](std::string_view data) {
                         done = data == "[DONE]";
                         return !done && TakeEvent(data, turn);
                       });
                     }));
    if (response.status != 200) {
      return base::Unavailable("{}", ErrorText(response.status, response.body));
    }
    if (!turn.error.empty()) return base::Unavailable("{}", turn.error);
    if (!done) return base::Unavailable("the answer was cut off");
    return absl::OkStatus();
  }

  // False ends the stream.
  static bool TakeEvent(std::string_view data, Turn& turn) {
    const Json event = Json::parse(data, nullptr, false);
    if (!event.is_object()) {
      turn.error = "the gateway sent an event that is not JSON";
      return false;
    }
    if (event.contains("error")) {
      turn.error = ErrorText(200, std::string(data));
      return false;
    }
    if (const auto usage = event.find("usage"); usage != event.end() && usage->is_object()) {
      turn.prompt_tokens = usage->value("prompt_tokens", int64_t{0});
      turn.completion_tokens = usage->value("completion_tokens", int64_t{0});
    }
    const auto choices = event.find("choices");
    if (choices == event.end() || !choices->is_array() || choices->empty()) return true;
    const Json& choice = (*choices)[0];
    if (const auto reason = choice.find("finish_reason");
        reason != choice.end() && reason->is_string()) {
      turn.finish_reason = reason->get<std::string>();
    }
    const auto delta = choice.find("delta");
    if (delta == choice.end() || !delta->is_object()) return true;
    const auto content = delta->find("content");
    if (content == delta->end() || !content->is_string()) return true;
    TakePiece(content->get<std::string>(), turn);
    return true;
  }

  static void TakePiece(const std::string& piece, Turn& turn) {
    if (piece.empty()) return;
    turn.last = base::Clock::Real()->Now();
    if (++turn.pieces == 1) turn.first = turn.last;
    if (turn.pieces == 2) turn.second = turn.last;
    turn.answer += piece;
    std::fputs(piece.c_str(), stdout);
    std::fflush(stdout);
  }

  Options options_;
  Url url_;
  Json messages_;
};

Json TurnTimings(const Turn& turn) {
  Json json;
  const auto since = [](base::TimePoint from, base::TimePoint to) {
    return base::ToSeconds(to - from);
  };
  if (turn.first) json["ttft_seconds"] = since(turn.begin, *turn.first);
  if (turn.second) {
    json["ttst_gap_seconds"] = since(*turn.first, *turn.second);
    json["ttst_e2e_seconds"] = since(turn.begin, *turn.second);
  }
  json["prompt_tokens"] = turn.prompt_tokens;
  json["completion_tokens"] = turn.completion_tokens;
  if (turn.first && turn.completion_tokens > 1 && turn.last > *turn.first) {
    json["tokens_per_second"] =
        static_cast<double>(turn.completion_tokens - 1) / since(*turn.first, turn.last);
  }
  json["finish_reason"] = turn.finish_reason;
  return json;
}

void ShowTimings(const Turn& turn, bool as_json) {
  const Json timings = TurnTimings(turn);
  if (as_json) {
    std::fprintf(stderr, "%s\n", timings.dump().c_str());
    return;
  }
  std::string text;
  const auto milliseconds = [&](const char* key, const char* name) {
    if (const auto it = timings.find(key); it != timings.end()) {
      text += fmt::format("{} {:.0f} ms, ", name, it->get<double>() * 1000);
    }
  };
  milliseconds("ttft_seconds", "TTFT");
  milliseconds("ttst_gap_seconds", "TTST gap");
  milliseconds("ttst_e2e_seconds", "TTST e2e");
  if (const auto it = timings.find("tokens_per_second"); it != timings.end()) {
    text += fmt::format("{:.1f} tokens/s, ", it->get<double>());
  }
  text += fmt::format("{} prompt + {} tokens", turn.prompt_tokens, turn.completion_tokens);
  if (turn.finish_reason == "length") text += ", cut at the longest answer";
  std::fprintf(stderr, "[%s]\n", text.c_str());
}

int Talk(Conversation& conversation, bool json_timings) {
  const bool interactive = isatty(STDIN_FILENO) != 0;
  if (interactive) {
    std::printf("Chatting with %s. /reset begins anew, /quit ends.\n",
                conversation.model().c_str());
  }
  int result = 0;
  std::string line;
  while (true) {
    if (interactive) {
      std::printf("> ");
      std::fflush(stdout);
    }
    if (!std::getline(std::cin, line) || line == "/quit") break;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (line == "/reset") {
      conversation.Reset();
      continue;
    }
    const auto turn = conversation.Say(line);
    std::printf("\n");
    std::fflush(stdout);
    if (!turn.ok()) {
      result = Fail("chat", turn.status());
      continue;
    }
    ShowTimings(*turn, json_timings);
  }
  return result;
}

}  // namespace

int Chat(const Args& args) {
  Options options;
  const Parsed parsed = ParseFlags("chat", args, [&](config::Binder& b) { options.Bind(b); });
  if (!parsed.go_on) return parsed.exit_code;
  const auto url = ParseUrl(options.url);
  if (!url.ok()) return Fail("chat", url.status());
  Conversation conversation(options, *url);
  const absl::Status status = conversation.ChooseModel();
  if (!status.ok()) return Fail("chat", status);
  return Talk(conversation, options.json_timings);
}

}  // namespace smartgen::tools
