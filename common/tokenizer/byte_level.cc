#include "common/tokenizer/byte_level.h"

#include <array>

#include "common/tokenizer/utf8.h"

namespace smartgen::tokenizer {
namespace {

// The highest character used: 256 plus the 68 bytes that do not stand for themselves.
constexpr char32_t kAlphabetEnd = 256 + 68;

struct Alphabet {
  std::array<char32_t, 256> char_of_byte;
  std::array<int, kAlphabetEnd> byte_of_char;
};

const Alphabet& GetAlphabet() {
  static const Alphabet alphabet = [] {
    Alphabet a;
    a.byte_of_char.fill(-1);
    char32_t next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool itself = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      a.char_of_byte[b] = itself ? static_cast<char32_t>(b) : next++;
      a.byte_of_char[a.char_of_byte[b]] = b;
    }
    return a;
  }();
  return alphabet;
}

}  // namespace

std::string ByteLevelChar(uint8_t byte) {
  std::string out;
  AppendUtf8(out, GetAlphabet().char_of_byte[byte]);
  return out;
}

std::optional<std::string> ByteLevelDecode(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Utf8Step step = NextUtf8(text);
    if (step.kind != Utf8Step::Kind::kChar || step.code >= kAlphabetEnd) return std::nullopt;
    const int byte = GetAlphabet().byte_of_char[step.code];
    if (byte < 0) return std::nullopt;
    out.push_back(static_cast<char>(byte));
    text.remove_prefix(step.length);
  }
  return out;
}

}  // namespace smartgen::tokenizer
