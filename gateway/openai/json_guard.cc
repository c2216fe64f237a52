#include "gateway/openai/json_guard.h"

#include <array>
#include <optional>

#include "common/tokenizer/tokenizer.h"

namespace smartgen::gateway {
namespace {

ApiError TooLarge(std::string message) {
  return WithCode(BadRequest("", std::move(message)), "json_too_large");
}

// Keys of the objects that are open at a place in the body: each has one ':' outside of strings.
class KeyCounter {
 public:
  void Open(int depth) { keys_[static_cast<size_t>(depth)] = 0; }
  std::optional<ApiError> Add(int depth) {
    const int keys = ++keys_[static_cast<size_t>(depth)];
    if (keys > kMaxJsonKeys) {
      return TooLarge(
          fmt::format("An object in the request body has more than {} keys", kMaxJsonKeys));
    }
    if (keys == kManyJsonKeys + 1 && ++objects_with_many_ > kMaxObjectsWithManyKeys) {
      return TooLarge(fmt::format("More than {} objects in the request body have more than {} keys",
                                  kMaxObjectsWithManyKeys, kManyJsonKeys));
    }
    return std::nullopt;
  }

 private:
  std::array<int, kMaxJsonDepth + 1> keys_{};  // by depth
  int objects_with_many_ = 0;
};

// Nesting and number of values and keys, before the parser allocates anything. Only strings need to
// be understood for that; whether the rest is well-formed is the parser's to say.
std::optional<ApiError> CheckShape(std::string_view body) {
  int depth = 0;
  int64_t values = 1;
  KeyCounter keys;
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
      if (depth > 0) keys.Open(depth);
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == ',') {
      ++values;
    } else if (c == ':' && depth > 0) {
      if (auto error = keys.Add(depth)) return error;
    }
    if (values > kMaxJsonValues) {
      return TooLarge(fmt::format("The request body has more than {} JSON values", kMaxJsonValues));
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
