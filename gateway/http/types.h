// What the rest of the gateway sees of HTTP.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "gateway/openai/error.h"

namespace smartgen::gateway {

struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // without query, percent-decoded
  std::string authorization;
  std::string content_type;
  std::string content_encoding;
  std::string body;
  // The first byte of the request was seen.
  base::TimePoint arrival;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  bool close = false;  // end the connection afterwards
};

HttpResponse JsonResponse(int status, const Json& json);
HttpResponse ErrorResponse(const ApiError& error);
std::string_view ReasonPhrase(int status);

// "/v1/models/a%2Fb?x=1" -> "/v1/models/a/b". nullopt for a broken escape or a NUL.
std::optional<std::string> DecodePath(std::string_view target);

struct HostPort {
  std::string host;  // without brackets
  int port = 0;
};
// "127.0.0.1:8000", "[::1]:0", "localhost:80". InvalidArgument says what is wrong.
absl::StatusOr<HostPort> ParseHostPort(std::string_view text);
bool IsLoopback(std::string_view host);

}  // namespace smartgen::gateway
