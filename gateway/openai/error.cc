#include "gateway/openai/error.h"

namespace smartgen::gateway {
namespace {

Json OrNull(const std::optional<std::string>& text) { return text ? Json(*text) : Json(nullptr); }

ApiError ServerError(int status, std::string_view code, std::string message) {
  ApiError error;
  error.status = status;
  error.message = std::move(message);
  error.type = "server_error";
  error.code = code;
  return error;
}

}  // namespace

Json ToJson(const ApiError& error) {
  Json body;
  body["message"] = error.message;
  body["type"] = error.type;
  body["param"] = OrNull(error.param);
  body["code"] = OrNull(error.code);
  return Json{{"error", std::move(body)}};
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

ApiError BadRequest(std::string param, std::string message) {
  ApiError error;
  error.message = std::move(message);
  if (!param.empty()) error.param = std::move(param);
  return error;
}

ApiError WithCode(ApiError error, std::string code) {
  error.code = std::move(code);
  return error;
}

ApiError FromBackendStatus(const absl::Status& status) {
  const std::string message(base::MessageOf(status));
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return BadRequest("", message);
    case absl::StatusCode::kResourceExhausted: {
      ApiError error = ServerError(429, "no_capacity", message);
      error.type = "rate_limit_error";
      error.retry_after_seconds = 1;
      return error;
    }
    case absl::StatusCode::kUnavailable: {
      ApiError error = ServerError(503, "backend_unavailable", message);
      error.retry_after_seconds = 1;
      return error;
    }
    case absl::StatusCode::kDeadlineExceeded:
      return ServerError(504, "deadline_exceeded", message);
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
      return ServerError(502, "backend_failed", message);
    default:
      return ServerError(500, "internal_error", message);
  }
}

}  // namespace smartgen::gateway
