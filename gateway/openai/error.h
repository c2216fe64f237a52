// Errors as OpenAI's API shows them: {"error": {"message", "type", "param", "code"}}.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace smartgen::gateway {

using Json = nlohmann::ordered_json;

struct ApiError {
  int status = 400;  // HTTP
  std::string message;
  std::string type = "invalid_request_error";
  std::optional<std::string> param;  // the request field at fault
  std::optional<std::string> code;   // for programs
  int retry_after_seconds = 0;       // > 0: sent as Retry-After
};

Json ToJson(const ApiError& error);
// The JSON text; bytes that are not UTF-8 come out as U+FFFD.
std::string Dump(const Json& json);

// 400 that names `param` (empty: none).
ApiError BadRequest(std::string param, std::string message);
ApiError WithCode(ApiError error, std::string code);
// What a client sees of a failed call to decoded. Codes that blame the request stay 4xx; "no room"
// is 429; everything else is the server's fault.
ApiError FromBackendStatus(const absl::Status& status);

// A value or an ApiError.
template <typename T>
class Result {
 public:
  Result(T value) : v_(std::in_place_index<0>, std::move(value)) {}  // NOLINT: implicit on purpose
  Result(ApiError error) : v_(std::in_place_index<1>, std::move(error)) {}  // NOLINT
  bool ok() const { return v_.index() == 0; }
  T& value() { return std::get<0>(v_); }
  const T& value() const { return std::get<0>(v_); }
  ApiError& error() { return std::get<1>(v_); }
  const ApiError& error() const { return std::get<1>(v_); }

 private:
  std::variant<T, ApiError> v_;
};

}  // namespace smartgen::gateway
