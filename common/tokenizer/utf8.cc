#include "common/tokenizer/utf8.h"

#include "common/tokenizer/tokenizer.h"

namespace smartgen::tokenizer {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Lead {
  size_t length;      // 0: not a lead byte
  uint8_t low, high;  // bounds of the second byte (Unicode, table 3-7)
};

Lead LeadOf(uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Step NextUtf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return {Utf8Step::Kind::kChar, 1, first};
  const Lead lead = LeadOf(first);
  if (lead.length == 0) return {Utf8Step::Kind::kBroken, 1};
  char32_t code = first & (0xFF >> (lead.length + 1));
  for (size_t i = 1; i < lead.length; ++i) {
    if (i == text.size()) return {Utf8Step::Kind::kIncomplete, i};
    const uint8_t low = i == 1 ? lead.low : 0x80;
    const uint8_t high = i == 1 ? lead.high : 0xBF;
    if (byte(i) < low || byte(i) > high) return {Utf8Step::Kind::kBroken, i};
    code = (code << 6) | (byte(i) & 0x3F);
  }
  return {Utf8Step::Kind::kChar, lead.length, code};
}

size_t ValidUtf8Prefix(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    if (static_cast<uint8_t>(text[pos]) < 0x80) {
      ++pos;
      continue;
    }
    const Utf8Step step = NextUtf8(text.substr(pos));
    if (step.kind != Utf8Step::Kind::kChar) break;
    pos += step.length;
  }
  return pos;
}

void AppendUtf8(std::string& out, char32_t code) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

bool IsValidUtf8(std::string_view text) { return ValidUtf8Prefix(text) == text.size(); }

std::string TakeCompleteUtf8(std::string& bytes, bool final) {
  std::string out;
  const std::string_view view = bytes;
  size_t pos = 0;
  while (pos < view.size()) {
    const size_t valid = ValidUtf8Prefix(view.substr(pos));
    out.append(view.substr(pos, valid));
    pos += valid;
    if (pos == view.size()) break;
    const Utf8Step step = NextUtf8(view.substr(pos));
    if (step.kind == Utf8Step::Kind::kIncomplete && !final) break;
    out.append(kReplacement);
    pos += step.length;
  }
  bytes.erase(0, pos);
  return out;
}

std::string Tokenizer::Decode(std::span<const TokenId> ids, bool special) const {
  std::string bytes;
  for (const TokenId id : ids) bytes.append(TokenBytes(id, special));
  return TakeCompleteUtf8(bytes, /*final=*/true);
}

std::string IncrementalDetokenizer::Push(TokenId id) {
  pending_.append(tokenizer_->TokenBytes(id, special_));
  return TakeCompleteUtf8(pending_, /*final=*/false);
}

std::string IncrementalDetokenizer::Flush() { return TakeCompleteUtf8(pending_, /*final=*/true); }

}  // namespace smartgen::tokenizer
