// Parses request bodies that may be hostile: nothing in them can cost more than their size.
#pragma once

#include <string_view>

#include "gateway/openai/error.h"

namespace smartgen::gateway {

// Nesting that real requests stay far below (a tool's JSON schema reaches 10 to 20).
inline constexpr int kMaxJsonDepth = 64;
// Values in one body. An 8 MiB body of "0," would otherwise become 64 MiB of nodes; the longest
// prompt of token ids that a model file may claim has 2^24, real ones have 2^17.
inline constexpr int64_t kMaxJsonValues = int64_t{1} << 20;
// Keys of one object. They are kept in order and looked up one by one, so that n of them cost n^2;
// objects with more than a few are limited in number as well.
inline constexpr int kMaxJsonKeys = 4096;
inline constexpr int kManyJsonKeys = 256;
inline constexpr int kMaxObjectsWithManyKeys = 64;

// 400 for bytes that are not UTF-8, what is beyond the limits above, and anything that is not one
// JSON object (NaN and numbers out of double's range included), with the byte where it went wrong.
Result<Json> ParseJsonObject(std::string_view body);

}  // namespace smartgen::gateway
