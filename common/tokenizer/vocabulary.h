// What GGUF metadata and tokenizer.json have in common, once read and checked.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/model/model.h"
#include "common/tokenizer/bpe.h"
#include "common/tokenizer/pre_tokenizer.h"

namespace smartgen::tokenizer {

enum class Normalization { kNfc, kNfd, kNfkc, kNfkd };

struct Vocabulary {
  enum class Kind {
    kAbsent,  // no token has this id
    kNormal,
    kControl,      // found in text only where asked for
    kUserDefined,  // found in text always, unless guarded
  };
  struct Token {
    std::string text;   // as in the file
    std::string bytes;  // what it stands for
    Kind kind = Kind::kAbsent;
    bool lstrip = false;
    bool rstrip = false;
    // User-defined, but part of the prompt's structure: found in text only where asked for.
    bool guarded = false;
  };

  std::vector<Token> tokens;  // by id
  std::vector<Bpe::Merge> merges;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  std::vector<Normalization> normalizations;  // in order
  bool ignore_merges = false;  // a word that is a token is that token, whatever the merges say
  TokenId unknown = Bpe::kNone;
  bool fuse_unknown = false;
  std::optional<TokenId> bos_id;
  std::vector<TokenId> eos_ids;
  bool add_bos = false;

  // Both check all sizes, ids and strings.
  static absl::StatusOr<Vocabulary> FromGguf(const model::TokenizerData& data);
  static absl::StatusOr<Vocabulary> FromTokenizerJson(const model::TokenizerData& data);

  // Marks the user-defined tokens that the template builds prompts of ("<|User|>"): who could write
  // them in a message could write another's part of the conversation.
  void GuardTokensOf(std::string_view chat_template);
};

inline constexpr size_t kMaxTokenText = 16 << 10;
inline constexpr size_t kMaxMerges = 1 << 22;

// Turns merges as text into merges as ids. Those that would make a control token are left out
// (logged): no text may become one. `tokens` must be complete.
class MergeReader {
 public:
  explicit MergeReader(const std::vector<Vocabulary::Token>& tokens);
  absl::Status Add(std::string_view left, std::string_view right);
  absl::Status Add(std::string_view line);  // "left right"
  std::vector<Bpe::Merge> Take();

 private:
  absl::StatusOr<TokenId> Find(std::string_view text) const;

  const std::vector<Vocabulary::Token>& tokens_;
  absl::flat_hash_map<std::string_view, TokenId> ids_;
  std::vector<Bpe::Merge> merges_;
  size_t read_ = 0;
  size_t left_out_ = 0;
};

// Fills in the bytes that the texts stand for.
void FillBytes(std::vector<Vocabulary::Token>& tokens);
// Checks and takes over the ids that the model file names itself.
absl::Status TakeSpecialIds(const model::TokenizerData& data, Vocabulary& vocabulary);

}  // namespace smartgen::tokenizer
