#include "common/tokenizer/vocabulary.h"

#include <utility>

#include "common/base/log.h"
#include "common/model/model_config.h"
#include "common/tokenizer/byte_level.h"

namespace smartgen::tokenizer {
namespace {

// tokenizer.ggml.token_type. Unknown (2) is never to come out of text; unused (5) and byte (6)
// tokens are never looked for in text, which is what kNormal means.
absl::StatusOr<Vocabulary::Kind> KindOf(int32_t type, size_t id) {
  switch (type) {
    case 1:
    case 5:
    case 6:
      return Vocabulary::Kind::kNormal;
    case 2:
    case 3:
      return Vocabulary::Kind::kControl;
    case 4:
      return Vocabulary::Kind::kUserDefined;
    default:
      return base::InvalidArgument("tokenizer.ggml.token_type[{}]: want 1 to 6, got {}", id, type);
  }
}

}  // namespace

MergeReader::MergeReader(const std::vector<Vocabulary::Token>& tokens) : tokens_(tokens) {
  ids_.reserve(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].kind == Vocabulary::Kind::kAbsent) continue;
    ids_.try_emplace(tokens[id].text, static_cast<TokenId>(id));
  }
}

absl::StatusOr<TokenId> MergeReader::Find(std::string_view text) const {
  const auto it = ids_.find(text);
  if (it != ids_.end()) return it->second;
  return base::InvalidArgument("tokenizer merge {}: '{}' is not in the vocabulary", read_ - 1,
                               text);
}

absl::Status MergeReader::Add(std::string_view left, std::string_view right) {
  if (++read_ > kMaxMerges) {
    return base::InvalidArgument("tokenizer: more than {} merges", kMaxMerges);
  }
  if (left.empty() || right.empty()) {
    return base::InvalidArgument("tokenizer merge {}: want two parts, one is empty", read_ - 1);
  }
  Bpe::Merge merge;
  ASSIGN_OR_RETURN(merge.left, Find(left));
  ASSIGN_OR_RETURN(merge.right, Find(right));
  ASSIGN_OR_RETURN(merge.result, Find(std::string(left).append(right)));
  if (tokens_[merge.result].kind == Vocabulary::Kind::kControl) {
    ++left_out_;
    return absl::OkStatus();
  }
  merges_.push_back(merge);
  return absl::OkStatus();
}

absl::Status MergeReader::Add(std::string_view line) {
  // A part may begin with a space, hence from 1.
  const size_t space = line.find(' ', 1);
  if (space == std::string_view::npos) {
    return base::InvalidArgument("tokenizer merge {}: want 'left right', got '{}'", read_, line);
  }
  return Add(line.substr(0, space), line.substr(space + 1));
}

std::vector<Bpe::Merge> MergeReader::Take() {
  if (left_out_ > 0) {
    SMARTGEN_LOG(warn, "tokenizer", "{} merges that make control tokens are left out", left_out_);
  }
  return std::move(merges_);
}

void FillBytes(std::vector<Vocabulary::Token>& tokens) {
  for (Vocabulary::Token& token : tokens) {
    // Special tokens are written as they are. So is, by Hugging Face's decoder, a token with any
    // character outside the alphabet.
    std::optional<std::string> bytes;
    if (token.kind == Vocabulary::Kind::kNormal) bytes = ByteLevelDecode(token.text);
    token.bytes = bytes.has_value() ? *std::move(bytes) : token.text;
  }
}

absl::Status TakeSpecialIds(const model::TokenizerData& data, Vocabulary& vocabulary) {
  const auto check = [&](std::string_view name, TokenId id) {
    if (id >= 0 && static_cast<size_t>(id) < vocabulary.tokens.size()) return absl::OkStatus();
    return base::InvalidArgument("tokenizer: {} is {}, the vocabulary has {} tokens", name, id,
                                 vocabulary.tokens.size());
  };
  if (data.bos_id.has_value()) {
    RETURN_IF_ERROR(check("the id of beginning-of-text", *data.bos_id));
    vocabulary.bos_id = data.bos_id;
  }
  for (const TokenId id : data.eos_ids) {
    RETURN_IF_ERROR(check("an id of end-of-text", id));
    vocabulary.eos_ids.push_back(id);
  }
  vocabulary.add_bos = data.add_bos;
  return absl::OkStatus();
}

void Vocabulary::GuardTokensOf(std::string_view chat_template) {
  for (Token& token : tokens) {
    // Runs of white space are words like others, which templates have between their tags.
    token.guarded = token.kind == Kind::kUserDefined &&
                    token.text.find_first_not_of(" \t\n\v\f\r") != std::string::npos &&
                    chat_template.find(token.text) != std::string_view::npos;
  }
}

absl::StatusOr<Vocabulary> Vocabulary::FromGguf(const model::TokenizerData& data) {
  if (data.ggml_model != "gpt2") {
    return base::Unimplemented("tokenizer.ggml.model is '{}'; supported: gpt2", data.ggml_model);
  }
  if (data.tokens.empty() || data.tokens.size() > static_cast<size_t>(model::kMaxVocab)) {
    return base::InvalidArgument("tokenizer.ggml.tokens: want 1 to {} tokens, got {}",
                                 model::kMaxVocab, data.tokens.size());
  }
  if (!data.types.empty() && data.types.size() != data.tokens.size()) {
    return base::InvalidArgument("tokenizer.ggml.token_type: want {} entries, got {}",
                                 data.tokens.size(), data.types.size());
  }
  Vocabulary vocabulary;
  if (data.ggml_pre.empty()) {
    SMARTGEN_LOG(warn, "tokenizer", "the file has no tokenizer.ggml.pre; using default (GPT-2)");
  }
  ASSIGN_OR_RETURN(vocabulary.pre_tokenizer,
                   PreTokenizer::ForGgml(data.ggml_pre.empty() ? "default" : data.ggml_pre));
  // The original tokenizers' settings that GGUF keeps only in the name: Qwen2 normalises to NFC,
  // Llama 3 does not merge where the whole word is a token.
  if (data.ggml_pre == "qwen2" || data.ggml_pre == "deepseek-r1-qwen") {
    vocabulary.normalizations = {Normalization::kNfc};
  }
  vocabulary.ignore_merges =
      data.ggml_pre == "llama-bpe" || data.ggml_pre == "llama3" || data.ggml_pre == "llama-v3";
  vocabulary.tokens.resize(data.tokens.size());
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    if (data.tokens[id].size() > kMaxTokenText) {
      return base::InvalidArgument("tokenizer.ggml.tokens[{}]: {} bytes, want at most {}", id,
                                   data.tokens[id].size(), kMaxTokenText);
    }
    vocabulary.tokens[id].text = data.tokens[id];
    ASSIGN_OR_RETURN(vocabulary.tokens[id].kind,
                     KindOf(data.types.empty() ? 1 : data.types[id], id));
  }
  FillBytes(vocabulary.tokens);
  MergeReader merges(vocabulary.tokens);
  for (const std::string& line : data.merges) RETURN_IF_ERROR(merges.Add(line));
  vocabulary.merges = merges.Take();
  RETURN_IF_ERROR(TakeSpecialIds(data, vocabulary));
  return vocabulary;
}

}  // namespace smartgen::tokenizer
