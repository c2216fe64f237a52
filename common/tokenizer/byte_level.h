// GPT-2's alphabet: every byte is written as one printable character, so that vocabularies can be
// text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace smartgen::tokenizer {

// The character that stands for `byte`, in UTF-8.
std::string ByteLevelChar(uint8_t byte);

// The bytes that `text` stands for; nullopt if it has a character outside the alphabet.
std::optional<std::string> ByteLevelDecode(std::string_view text);

}  // namespace smartgen::tokenizer
