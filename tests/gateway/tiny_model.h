// A model small enough to write down: 256 byte tokens, three merges, three control tokens, and a
// chat template in C++.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gateway/model.h"

namespace smartgen::gateway::testing {

inline constexpr int32_t kBos = 256;
inline constexpr int32_t kEos = 257;
inline constexpr int32_t kImStart = 258;
inline constexpr int32_t kLessSlash = 259;  // "</"
inline constexpr int32_t kEn = 260;         // "en"
inline constexpr int32_t kDGreater = 261;   // "d>"
inline constexpr int kVocab = 262;

std::unique_ptr<const tokenizer::Tokenizer> TinyTokenizer();
// Messages become "<|im_start|>ROLE\nCONTENT<|eos|>\n". A system message "refuse" fails as a
// template's raise_exception does.
ServedModel TinyModel(int64_t context_length = 512);
// One byte token for each byte.
std::vector<int32_t> Bytes(const std::string& text);

}  // namespace smartgen::gateway::testing
