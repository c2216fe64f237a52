// Reads typed fields of a JSON object and remembers the first thing wrong. A null is as good as
// absent everywhere.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gateway/openai/error.h"

namespace smartgen::gateway {

// Not thread-safe. `object` must outlive this. After the first error all readers return their
// defaults, so that a caller checks error() once.
class FieldReader {
 public:
  struct Range {
    double min;
    double max;
    bool min_excluded = false;
  };

  // `prefix` stands before keys in messages ("smartgen.").
  explicit FieldReader(const Json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  // nullptr if absent or null.
  const Json* Find(std::string_view key) const;
  bool Has(std::string_view key) const { return Find(key) != nullptr; }

  bool Bool(std::string_view key, bool default_value);
  double Number(std::string_view key, double default_value, Range range);
  int64_t Integer(std::string_view key, int64_t default_value, int64_t min, int64_t max);
  std::string String(std::string_view key, std::string default_value);

  void Fail(std::string_view key, std::string_view message);
  void Fail(ApiError error);
  const std::optional<ApiError>& error() const { return error_; }

 private:
  const Json& object_;
  std::string prefix_;
  std::optional<ApiError> error_;
};

// "a string", "an array", "2.1": what came, for messages. Never more than 64 bytes of the request.
std::string Describe(const Json& value);
// The value as an integer; nullopt if it is none (5.0 is one, as in other servers).
std::optional<int64_t> AsInteger(const Json& value);

}  // namespace smartgen::gateway
