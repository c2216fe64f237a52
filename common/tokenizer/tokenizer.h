// Text to token ids and back.
//
// Thread-safe after Create: all methods are const.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/model/model.h"

namespace smartgen::tokenizer {

using TokenId = int32_t;

// A stretch of text and whether special-token strings in it become special tokens.
struct TextPiece {
  std::string_view text;
  bool parse_special = false;
};

class Tokenizer {
 public:
  // From a model's data: GGUF gpt2-type vocabularies and tokenizer.json of type BPE with the
  // pre-tokenizers of GPT-2, SmolLM, Llama 3 and Qwen2. Unimplemented names what it met and lists
  // what is supported; InvalidArgument says what is malformed.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(const model::TokenizerData& data);
  virtual ~Tokenizer() = default;

  virtual int vocab_size() const = 0;
  // No BOS is added. Invalid UTF-8 is encoded byte by byte, never refused.
  virtual std::vector<TokenId> Encode(std::string_view text, bool parse_special) const = 0;
  // As if the pieces stood in one text, but special tokens (control tokens, and user-defined ones
  // that the chat template contains) are only found inside a piece that asks for them and never
  // span two pieces. Other user-defined tokens match everywhere, as in Encode.
  virtual std::vector<TokenId> EncodePieces(std::span<const TextPiece> pieces) const = 0;
  // The token's bytes; empty for ids outside the vocabulary. Control tokens give their text only
  // with `special`.
  virtual std::string_view TokenBytes(TokenId id, bool special) const = 0;
  virtual bool IsControl(TokenId id) const = 0;
  virtual std::optional<TokenId> bos_id() const = 0;
  virtual bool add_bos() const = 0;
  // Ids that end a generation.
  virtual std::span<const TokenId> eos_ids() const = 0;
  virtual std::optional<TokenId> FindSpecial(std::string_view text) const = 0;
  // The strings of all special tokens, longest first.
  virtual std::span<const std::string> special_texts() const = 0;

  // Whole text; broken bytes become U+FFFD as Python's errors="replace" does it.
  std::string Decode(std::span<const TokenId> ids, bool special) const;
};

// Turns a stream of tokens into a stream of text that never holds half a UTF-8 character. Not
// thread-safe; one per stream.
class IncrementalDetokenizer {
 public:
  // `tokenizer` must outlive this.
  IncrementalDetokenizer(const Tokenizer* tokenizer, bool special)
      : tokenizer_(tokenizer), special_(special) {}
  // Text that may be shown after this token: whole characters only; bytes that can never become a
  // character come out as U+FFFD.
  std::string Push(TokenId id);
  // What was held back, broken bytes as U+FFFD. To be called once at the end.
  std::string Flush();

 private:
  const Tokenizer* tokenizer_;
  bool special_;
  std::string pending_;
};

// Length of the longest prefix of `bytes` that ends on a character border or on a broken byte, and
// its text with broken sequences replaced, as Python's incremental UTF-8 decoder
// (errors="replace").
std::string TakeCompleteUtf8(std::string& bytes, bool final);
bool IsValidUtf8(std::string_view text);

}  // namespace smartgen::tokenizer
