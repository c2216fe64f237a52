// Reads tokenizer.json (Hugging Face tokenizers, model type BPE).
#include <algorithm>
#include <string>
#include <utility>

#include "common/base/log.h"
#include "common/model/model_config.h"
#include "common/tokenizer/vocabulary.h"
#include "nlohmann/json.hpp"

namespace smartgen::tokenizer {
namespace {

using nlohmann::json;

constexpr size_t kMaxJson = 256u << 20;
constexpr int kMaxNormalizers = 8;

// A vocabulary with more holes than this is a mistake, or made to waste memory.
size_t MaxId(size_t count) { return std::min<size_t>(2 * count + 1024, model::kMaxVocab); }

const json* Member(const json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::string StringOf(const json& object, const char* key) {
  const json* value = Member(object, key);
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
}

bool BoolOf(const json& object, const char* key) {
  const json* value = Member(object, key);
  return value != nullptr && value->is_boolean() && value->get<bool>();
}

absl::StatusOr<json> ParseJson(const std::string& text, std::string_view name) {
  if (text.size() > kMaxJson) {
    return base::InvalidArgument("{}: {} bytes, want at most {}", name, text.size(), kMaxJson);
  }
  json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return base::InvalidArgument("{}: not a JSON object", name);
  return parsed;
}

absl::StatusOr<size_t> IdOf(const json& value, std::string_view text, size_t limit) {
  if (value.is_number_unsigned() && value.get<uint64_t>() < limit) return value.get<uint64_t>();
  return base::InvalidArgument("tokenizer.json: id of '{}': want an integer below {}, got {}",
                               text.substr(0, 64), limit, value.dump().substr(0, 64));
}

absl::Status Put(std::vector<Vocabulary::Token>& tokens, size_t id, std::string text,
                 Vocabulary::Kind kind) {
  if (text.size() > kMaxTokenText) {
    return base::InvalidArgument("tokenizer.json: token {} has {} bytes, want at most {}", id,
                                 text.size(), kMaxTokenText);
  }
  if (id >= tokens.size()) tokens.resize(id + 1);
  tokens[id].text = std::move(text);
  tokens[id].kind = kind;
  return absl::OkStatus();
}

absl::Status ReadTokens(const json& root, const json& model, Vocabulary& vocabulary) {
  const json* vocab = Member(model, "vocab");
  if (vocab == nullptr || !vocab->is_object() || vocab->empty()) {
    return base::InvalidArgument("tokenizer.json: model.vocab: want an object with tokens");
  }
  const json* added = Member(root, "added_tokens");
  if (added != nullptr && !added->is_array()) {
    return base::InvalidArgument("tokenizer.json: added_tokens: want an array");
  }
  const size_t limit = MaxId(vocab->size() + (added == nullptr ? 0 : added->size()));
  for (const auto& [text, value] : vocab->items()) {
    ASSIGN_OR_RETURN(const size_t id, IdOf(value, text, limit));
    if (id < vocabulary.tokens.size() && vocabulary.tokens[id].kind != Vocabulary::Kind::kAbsent) {
      return base::InvalidArgument("tokenizer.json: '{}' and '{}' both have id {}",
                                   vocabulary.tokens[id].text, text, id);
    }
    RETURN_IF_ERROR(Put(vocabulary.tokens, id, text, Vocabulary::Kind::kNormal));
  }
  if (added == nullptr) return absl::OkStatus();
  for (const json& token : *added) {
    const std::string text = StringOf(token, "content");
    const json* id_value = Member(token, "id");
    if (text.empty() || id_value == nullptr) {
      return base::InvalidArgument("tokenizer.json: added_tokens: want objects with content, id");
    }
    ASSIGN_OR_RETURN(const size_t id, IdOf(*id_value, text, limit));
    if (BoolOf(token, "single_word")) {
      return base::Unimplemented("tokenizer.json: added token '{}' has single_word", text);
    }
    RETURN_IF_ERROR(Put(
        vocabulary.tokens, id, text,
        BoolOf(token, "special") ? Vocabulary::Kind::kControl : Vocabulary::Kind::kUserDefined));
    vocabulary.tokens[id].lstrip = BoolOf(token, "lstrip");
    vocabulary.tokens[id].rstrip = BoolOf(token, "rstrip");
  }
  return absl::OkStatus();
}

absl::Status ReadMerges(const json& model, Vocabulary& vocabulary) {
  const json* merges = Member(model, "merges");
  if (merges == nullptr || !merges->is_array()) {
    return base::InvalidArgument("tokenizer.json: model.merges: want an array");
  }
  MergeReader reader(vocabulary.tokens);
  for (const json& merge : *merges) {
    if (merge.is_string()) {
      RETURN_IF_ERROR(reader.Add(merge.get_ref<const std::string&>()));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      RETURN_IF_ERROR(reader.Add(merge[0].get_ref<const std::string&>(),
                                 merge[1].get_ref<const std::string&>()));
    } else {
      return base::InvalidArgument(
          "tokenizer.json: model.merges: want \"a b\" or [\"a\", \"b\"], got {}",
          merge.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 64));
    }
  }
  vocabulary.merges = reader.Take();
  return absl::OkStatus();
}

absl::Status ReadNormalizer(const json* section, int depth, Vocabulary& vocabulary) {
  if (section == nullptr) return absl::OkStatus();
  if (depth > kMaxNormalizers || vocabulary.normalizations.size() >= kMaxNormalizers) {
    return base::InvalidArgument("tokenizer.json: more than {} normalizers", kMaxNormalizers);
  }
  const std::string type = StringOf(*section, "type");
  const json* list = Member(*section, "normalizers");
  if (type == "Sequence" && list != nullptr && list->is_array()) {
    for (const json& item : *list) RETURN_IF_ERROR(ReadNormalizer(&item, depth + 1, vocabulary));
    return absl::OkStatus();
  }
  static constexpr std::pair<std::string_view, Normalization> kKnown[] = {
      {"NFC", Normalization::kNfc},
      {"NFD", Normalization::kNfd},
      {"NFKC", Normalization::kNfkc},
      {"NFKD", Normalization::kNfkd}};
  for (const auto& [name, normalization] : kKnown) {
    if (type != name) continue;
    vocabulary.normalizations.push_back(normalization);
    return absl::OkStatus();
  }
  return base::Unimplemented(
      "tokenizer.json: normalizer of type '{}'; supported: NFC, NFD, NFKC, NFKD, Sequence", type);
}

std::optional<TokenId> FindText(const Vocabulary& vocabulary, std::string_view text) {
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.tokens[id].kind != Vocabulary::Kind::kAbsent &&
        vocabulary.tokens[id].text == text) {
      return static_cast<TokenId>(id);
    }
  }
  return std::nullopt;
}

absl::Status ReadModel(const json& model, Vocabulary& vocabulary) {
  vocabulary.ignore_merges = BoolOf(model, "ignore_merges");
  vocabulary.fuse_unknown = BoolOf(model, "fuse_unk");
  if (BoolOf(model, "byte_fallback")) {
    return base::Unimplemented(
        "tokenizer.json: model.byte_fallback (SentencePiece-style BPE); supported: byte-level BPE");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!StringOf(model, key).empty()) {
      return base::Unimplemented("tokenizer.json: model.{} is not supported", key);
    }
  }
  const std::string unknown = StringOf(model, "unk_token");
  if (unknown.empty()) return absl::OkStatus();
  const std::optional<TokenId> id = FindText(vocabulary, unknown);
  if (!id.has_value()) {
    return base::InvalidArgument("tokenizer.json: unk_token '{}' is not in the vocabulary",
                                 unknown);
  }
  vocabulary.unknown = *id;
  return absl::OkStatus();
}

// A token in tokenizer_config.json is a string or an object with `content`.
std::string ConfigToken(const json& config, const char* key) {
  const json* value = Member(config, key);
  if (value == nullptr) return "";
  return value->is_string() ? value->get<std::string>() : StringOf(*value, "content");
}

// The special token that a TemplateProcessing post-processor puts before a single text.
std::string PrefixToken(const json* section, int depth) {
  if (section == nullptr || depth > kMaxNormalizers) return "";
  if (StringOf(*section, "type") == "Sequence") {
    const json* list = Member(*section, "processors");
    if (list == nullptr || !list->is_array()) return "";
    for (const json& item : *list) {
      std::string token = PrefixToken(&item, depth + 1);
      if (!token.empty()) return token;
    }
    return "";
  }
  const json* single = Member(*section, "single");
  if (single == nullptr || !single->is_array() || single->empty()) return "";
  const json* special = Member((*single)[0], "SpecialToken");
  return special == nullptr ? "" : StringOf(*special, "id");
}

// What the model folder's other files did not say.
absl::Status ReadSpecials(const json& root, const json& config, Vocabulary& vocabulary) {
  if (!vocabulary.bos_id.has_value()) {
    vocabulary.bos_id = FindText(vocabulary, ConfigToken(config, "bos_token"));
  }
  const std::string eos = ConfigToken(config, "eos_token");
  if (vocabulary.eos_ids.empty() && !eos.empty()) {
    const std::optional<TokenId> id = FindText(vocabulary, eos);
    if (id.has_value()) vocabulary.eos_ids.push_back(*id);
  }
  const json* add_bos = Member(config, "add_bos_token");
  if (add_bos != nullptr && add_bos->is_boolean()) {
    vocabulary.add_bos = add_bos->get<bool>();
  } else if (!vocabulary.add_bos) {
    const std::string prefix = PrefixToken(Member(root, "post_processor"), 0);
    const std::optional<TokenId> id = prefix.empty() ? std::nullopt : FindText(vocabulary, prefix);
    vocabulary.add_bos = id.has_value() && (!vocabulary.bos_id || *vocabulary.bos_id == *id);
    if (vocabulary.add_bos) vocabulary.bos_id = id;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Vocabulary> Vocabulary::FromTokenizerJson(const model::TokenizerData& data) {
  ASSIGN_OR_RETURN(const json root, ParseJson(data.tokenizer_json, "tokenizer.json"));
  json config = json::object();
  if (!data.tokenizer_config_json.empty()) {
    ASSIGN_OR_RETURN(config, ParseJson(data.tokenizer_config_json, "tokenizer_config.json"));
  }
  const json* model = Member(root, "model");
  if (model == nullptr) return base::InvalidArgument("tokenizer.json: has no 'model'");
  // Old files leave the type out.
  const std::string type = StringOf(*model, "type");
  if (type != "BPE" && !(type.empty() && Member(*model, "merges") != nullptr)) {
    return base::Unimplemented("tokenizer.json: model of type '{}'; supported: BPE", type);
  }
  const json* pre = Member(root, "pre_tokenizer");
  if (pre == nullptr) {
    return base::Unimplemented(
        "tokenizer.json: has no pre_tokenizer; only byte-level BPE is supported");
  }
  Vocabulary vocabulary;
  ASSIGN_OR_RETURN(vocabulary.pre_tokenizer, PreTokenizer::FromJson(*pre));
  RETURN_IF_ERROR(ReadNormalizer(Member(root, "normalizer"), 0, vocabulary));
  RETURN_IF_ERROR(ReadTokens(root, *model, vocabulary));
  RETURN_IF_ERROR(ReadModel(*model, vocabulary));
  FillBytes(vocabulary.tokens);
  RETURN_IF_ERROR(ReadMerges(*model, vocabulary));
  RETURN_IF_ERROR(TakeSpecialIds(data, vocabulary));
  RETURN_IF_ERROR(ReadSpecials(root, config, vocabulary));
  return vocabulary;
}

}  // namespace smartgen::tokenizer
