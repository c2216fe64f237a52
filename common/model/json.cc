#include "common/model/json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "common/model/weight_table.h"

namespace smartgen::model {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 64;

// Nesting of brackets outside strings. Counted before the parser sees the text.
int DepthOf(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

// For messages: what stands there, short.
std::string Shown(const Json& value) {
  if (value.is_string())
    return fmt::format("\"{}\"", Printable(value.get_ref<const std::string&>()));
  if (value.is_primitive()) return value.dump();
  return std::string("an ") + value.type_name();
}

}  // namespace

absl::Status CheckJsonDepth(std::string_view text) {
  if (DepthOf(text) <= kMaxDepth) return absl::OkStatus();
  return base::InvalidArgument("JSON nested more than {} deep", kMaxDepth);
}

absl::StatusOr<Json> ParseJsonObject(std::string_view text) {
  RETURN_IF_ERROR(CheckJsonDepth(text));
  // Parsers differ in which of two equal keys wins, so neither does.
  std::vector<std::set<std::string>> open_objects;
  std::string duplicate;
  const auto watch = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) {
      open_objects.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      open_objects.pop_back();
    } else if (event == Json::parse_event_t::key && duplicate.empty()) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_objects.back().insert(key).second) duplicate = key.empty() ? "(empty)" : key;
    }
    return true;
  };
  Json json = Json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (json.is_discarded()) return base::InvalidArgument("not valid JSON");
  if (!duplicate.empty()) {
    return base::InvalidArgument("key {} appears twice in one object", Printable(duplicate));
  }
  if (!json.is_object()) {
    return base::InvalidArgument("want a JSON object, file has {}", Shown(json));
  }
  return json;
}

const Json* Member(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::optional<int64_t> AsInteger(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  return std::nullopt;
}

absl::StatusOr<int64_t> IntegerMember(const Json& object, std::string_view key, int64_t low,
                                      int64_t high) {
  const Json* value = Member(object, key);
  if (value == nullptr) return base::InvalidArgument("key {} is missing", key);
  const std::optional<int64_t> integer = AsInteger(*value);
  if (!integer.has_value() || *integer < low || *integer > high) {
    return base::InvalidArgument("key {}: want an integer from {} to {}, file has {}", key, low,
                                 high, Shown(*value));
  }
  return *integer;
}

absl::StatusOr<int64_t> IntegerMemberOr(const Json& object, std::string_view key, int64_t otherwise,
                                        int64_t low, int64_t high) {
  if (Member(object, key) == nullptr) return otherwise;
  return IntegerMember(object, key, low, high);
}

absl::StatusOr<float> RealMember(const Json& object, std::string_view key) {
  const Json* value = Member(object, key);
  if (value == nullptr) return base::InvalidArgument("key {} is missing", key);
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (!std::isfinite(number) || std::fabs(number) > 1e30) {
    return base::InvalidArgument("key {}: want a finite number, file has {}", key, Shown(*value));
  }
  return static_cast<float>(number);
}

absl::StatusOr<float> RealMemberOr(const Json& object, std::string_view key, float otherwise) {
  if (Member(object, key) == nullptr) return otherwise;
  return RealMember(object, key);
}

absl::StatusOr<bool> BoolMemberOr(const Json& object, std::string_view key, bool otherwise) {
  const Json* value = Member(object, key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) {
    return base::InvalidArgument("key {}: want true or false, file has {}", key, Shown(*value));
  }
  return value->get<bool>();
}

absl::StatusOr<std::string> TextMemberOr(const Json& object, std::string_view key,
                                         std::string_view otherwise) {
  const Json* value = Member(object, key);
  if (value == nullptr) return std::string(otherwise);
  if (!value->is_string()) {
    return base::InvalidArgument("key {}: want a string, file has {}", key, Shown(*value));
  }
  return value->get<std::string>();
}

}  // namespace smartgen::model
