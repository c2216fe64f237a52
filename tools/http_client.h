// A small HTTP/1.1 client: plain text, one request a connection, answers streamed as they come.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"

namespace smartgen::tools {

struct Url {
  std::string host;
  std::string port;    // "80" where the URL names none
  std::string target;  // "/v1" ...; no trailing slash, empty where the URL names none
};
// http://host[:port][/path]. https is Unimplemented: put a TLS proxy's plain side here.
absl::StatusOr<Url> ParseUrl(std::string_view url);

struct HttpRequest {
  std::string method = "GET";
  Url url;
  std::string path;  // appended to url.target
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  base::Duration connect_timeout = std::chrono::seconds(5);
  base::Duration silence_timeout = std::chrono::minutes(5);  // between two pieces of the answer
};

struct HttpResponse {
  int status = 0;
  std::string body;  // what `on_data` did not take
};

// `on_data` (may be empty) gets a 2xx answer's body piece by piece instead of `body`; false ends
// the request. Unavailable: no connection or broken off. DeadlineExceeded: a timeout.
// ResourceExhausted: a body of more than 64 MiB.
absl::StatusOr<HttpResponse> Send(const HttpRequest& request,
                                  const std::function<bool(std::string_view)>& on_data = nullptr);

// Cuts a stream of server-sent events into the events' data.
class EventParser {
 public:
  // Calls `on_event` for each event that `bytes` completes; stops when it says false.
  bool Push(std::string_view bytes, const std::function<bool(std::string_view)>& on_event);

 private:
  bool TakeLine(std::string_view line, const std::function<bool(std::string_view)>& on_event);
  std::string line_;
  std::string data_;
  bool has_data_ = false;
};

}  // namespace smartgen::tools
