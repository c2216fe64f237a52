// UTF-8 as this folder needs it: one decoder, whose notion of a broken sequence is that of
// Unicode's "maximal subpart" (and of Python's errors="replace").
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace smartgen::tokenizer {

struct Utf8Step {
  enum class Kind {
    kChar,        // a whole character of `length` bytes
    kBroken,      // `length` bytes that can never become a character
    kIncomplete,  // all the bytes there are; more could make them a character
  };
  Kind kind;
  size_t length;
  char32_t code = 0;  // only for kChar
};

// What `text`, which must not be empty, begins with.
Utf8Step NextUtf8(std::string_view text);

// Length of the longest prefix that is valid UTF-8.
size_t ValidUtf8Prefix(std::string_view text);

void AppendUtf8(std::string& out, char32_t code);

}  // namespace smartgen::tokenizer
