#include "gateway/openai/fields.h"

#include <cmath>

namespace smartgen::gateway {

std::string Describe(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string: {
      const auto& text = value.get_ref<const std::string&>();
      return text.size() <= 40 ? fmt::format("\"{}\"", text) : "a string";
    }
    default:
      return value.dump();
  }
}

std::optional<int64_t> AsInteger(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto v = value.get<uint64_t>();
    if (v > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(v);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double v = value.get<double>();
  // 2^53: beyond it a double does not say which integer was meant.
  if (v != std::floor(v) || std::abs(v) > 9007199254740992.0) return std::nullopt;
  return static_cast<int64_t>(v);
}

const Json* FieldReader::Find(std::string_view key) const {
  const auto it = object_.find(std::string(key));
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void FieldReader::Fail(std::string_view key, std::string_view message) {
  const std::string name = prefix_ + std::string(key);
  Fail(BadRequest(name, fmt::format("{} {}", name, message)));
}

void FieldReader::Fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

bool FieldReader::Bool(std::string_view key, bool default_value) {
  const Json* value = Find(key);
  if (value == nullptr) return default_value;
  if (!value->is_boolean()) {
    Fail(key, fmt::format("must be true or false, got {}", Describe(*value)));
    return default_value;
  }
  return value->get<bool>();
}

double FieldReader::Number(std::string_view key, double default_value, Range range) {
  const Json* value = Find(key);
  if (value == nullptr) return default_value;
  const double v = value->is_number() ? value->get<double>() : 0;
  const bool low = range.min_excluded ? v <= range.min : v < range.min;
  if (!value->is_number() || !std::isfinite(v) || low || v > range.max) {
    Fail(key, fmt::format("must be a number {} {} and at most {}, got {}",
                          range.min_excluded ? "above" : "of at least", range.min, range.max,
                          Describe(*value)));
    return default_value;
  }
  return v;
}

int64_t FieldReader::Integer(std::string_view key, int64_t default_value, int64_t min,
                             int64_t max) {
  const Json* value = Find(key);
  if (value == nullptr) return default_value;
  const auto v = AsInteger(*value);
  if (!v || *v < min || *v > max) {
    const std::string bound =
        max == INT64_MAX ? fmt::format("of at least {}", min) : fmt::format("in {}..{}", min, max);
    Fail(key, fmt::format("must be an integer {}, got {}", bound, Describe(*value)));
    return default_value;
  }
  return *v;
}

std::string FieldReader::String(std::string_view key, std::string default_value) {
  const Json* value = Find(key);
  if (value == nullptr) return default_value;
  if (!value->is_string()) {
    Fail(key, fmt::format("must be a string, got {}", Describe(*value)));
    return default_value;
  }
  return value->get<std::string>();
}

}  // namespace smartgen::gateway
