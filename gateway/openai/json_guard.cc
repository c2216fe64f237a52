#include "gateway/openai/json_guard.h"

#include <optional>

#include "common/tokenizer/tokenizer.h"

namespace smartgen::gateway {
namespace {

// Nesting and number of values, before the parser allocates anything. Only strings need to be
// understood for that; whether the rest is well-formed is the parser's to say.
std::optional<ApiError> CheckShape(std::string_view body) {
  int depth = 0;
  int64_t values = 1;
  bool in_string = false;
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
      continue;
    }
    if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      ++values;
      if (++depth > kMaxJsonDepth) {
        return WithCode(
            BadRequest("", fmt::format("The request body is nested deeper than {} levels (byte {})",
                                       kMaxJsonDepth, i)),
            "json_too_deep");
      }
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == ',') {
      ++values;
    }
    if (values > kMaxJsonValues) {
      return WithCode(BadRequest("", fmt::format("The request body has more than {} JSON values",
                                                 kMaxJsonValues)),
                      "json_too_large");
    }
  }
  return std::nullopt;
}

}  // namespace

Result<Json> ParseJsonObject(std::string_view body) {
  if (!tokenizer::IsValidUtf8(body)) {
    return WithCode(BadRequest("", "The request body is not valid UTF-8"), "invalid_utf8");
  }
  if (auto error = CheckShape(body)) return *error;
  Json json;
  try {
    json = Json::parse(body);
  } catch (const Json::parse_error& e) {
    return WithCode(
        BadRequest("", fmt::format("The request body is not valid JSON (near byte {} of {})",
                                   e.byte, body.size())),
        "invalid_json");
  } catch (const Json::exception&) {
    return WithCode(BadRequest("", "The request body has a number that is out of range"),
                    "invalid_json");
  }
  if (!json.is_object()) {
    return WithCode(BadRequest("", fmt::format("The request body must be a JSON object, got {}",
                                               json.type_name())),
                    "invalid_json");
  }
  return json;
}

}  // namespace smartgen::gateway
