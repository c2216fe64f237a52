// The first byte chooses: a tokenizer.json, or text for a tiny vocabulary that must come back
// unchanged.
#include <spdlog/spdlog.h>

#include <cstdlib>

#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/tokenizer.h"

namespace {

using smartgen::tokenizer::TextPiece;
using smartgen::tokenizer::Tokenizer;

std::unique_ptr<Tokenizer> Tiny() {
  spdlog::set_level(spdlog::level::off);
  smartgen::model::TokenizerData data;
  data.ggml_model = "gpt2";
  data.ggml_pre = "llama-bpe";
  for (int b = 0; b < 256; ++b) {
    data.tokens.push_back(smartgen::tokenizer::ByteLevelChar(static_cast<uint8_t>(b)));
  }
  data.merges = {"a b", "ab ab", "Ġ a"};
  data.tokens.insert(data.tokens.end(), {"ab", "abab", "Ġa"});
  data.types.assign(data.tokens.size(), 1);
  data.tokens.insert(data.tokens.end(), {"<|e|>", "<t>"});
  data.types.insert(data.types.end(), {3, 4});
  auto tokenizer = Tokenizer::Create(data);
  if (!tokenizer.ok()) std::abort();
  return *std::move(tokenizer);
}

void RoundTrip(const Tokenizer& tokenizer, std::string_view text, bool special) {
  std::string back;
  for (const auto id : tokenizer.Encode(text, special)) {
    if (!special && tokenizer.IsControl(id)) std::abort();
    back += tokenizer.TokenBytes(id, true);
  }
  if (back != text) std::abort();
  const TextPiece pieces[] = {{text.substr(0, text.size() / 2), special},
                              {text.substr(text.size() / 2), !special}};
  tokenizer.EncodePieces(pieces);
}

void ParseJson(std::string_view text) {
  smartgen::model::TokenizerData data;
  data.tokenizer_json = text;
  const auto tokenizer = Tokenizer::Create(data);
  if (!tokenizer.ok()) return;
  const std::string sample = "The 12 cats' <|e|>\n\n  a\xCC\x81 \xFF ab";
  for (const auto id : (*tokenizer)->Encode(sample, true)) {
    if (id < 0 || id >= (*tokenizer)->vocab_size()) std::abort();
  }
  for (const auto id : (*tokenizer)->Encode(sample, false)) {
    if ((*tokenizer)->IsControl(id) && data.tokenizer_json.find("unk_token") == std::string::npos) {
      std::abort();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const std::unique_ptr<Tokenizer> tiny = Tiny();
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  if (bytes[0] == '{' || bytes[0] % 2 == 0) {
    ParseJson(bytes[0] == '{' ? std::string_view(reinterpret_cast<const char*>(bytes), size)
                              : text);
  } else {
    RoundTrip(*tiny, text, bytes[0] & 2);
  }
  return 0;
}
