#include "common/model/hf_tokenizer.h"

#include <algorithm>
#include <utility>

#include "common/model/json.h"
#include "common/model/weight_table.h"

namespace smartgen::model {
namespace {

using Json = nlohmann::json;

absl::StatusOr<Json> ParseOptional(const std::string& text, std::string_view file) {
  if (text.empty()) return Json::object();
  auto json = ParseJsonObject(text);
  if (!json.ok()) return base::Annotate(json.status(), file);
  return json;
}

// One id, or an array of them, or nothing.
absl::StatusOr<std::vector<int32_t>> TokenIds(const Json& object, std::string_view key, int vocab) {
  constexpr size_t kMaxIds = 64;
  std::vector<int32_t> out;
  const Json* value = Member(object, key);
  if (value == nullptr) return out;
  const auto add = [&](const Json& element) -> absl::Status {
    const std::optional<int64_t> id = AsInteger(element);
    if (!id.has_value() || *id < 0 || *id >= vocab) {
      return base::InvalidArgument("key {}: want token ids below {}, file has {}", key, vocab,
                                   id.has_value() ? std::to_string(*id) : "another value");
    }
    out.push_back(static_cast<int32_t>(*id));
    return absl::OkStatus();
  };
  if (!value->is_array()) {
    RETURN_IF_ERROR(add(*value));
    return out;
  }
  if (value->size() > kMaxIds) {
    return base::InvalidArgument("key {}: want at most {} ids, file has {}", key, kMaxIds,
                                 value->size());
  }
  for (const Json& element : *value) RETURN_IF_ERROR(add(element));
  return out;
}

// tokenizer_config.json: one template, or named ones of which "default" is for chat.
absl::StatusOr<std::string> ChatTemplate(const Json& tokenizer_config) {
  const Json* value = Member(tokenizer_config, "chat_template");
  if (value == nullptr) return std::string();
  if (value->is_string()) return value->get<std::string>();
  if (!value->is_array()) {
    return base::InvalidArgument("key chat_template: want a string or an array of named ones");
  }
  for (const Json& named : *value) {
    ASSIGN_OR_RETURN(const std::string name, TextMemberOr(named, "name", ""));
    if (name == "default") return TextMemberOr(named, "template", "");
  }
  return std::string();
}

// Whether tokenizer.json's own post-processing begins a single text with `bos`.
bool PostProcessorAddsBos(const Json& tokenizer, int32_t bos) {
  const Json* post = Member(tokenizer, "post_processor");
  if (post == nullptr) return false;
  std::vector<const Json*> processors = {post};
  const Json* sequence = Member(*post, "processors");
  if (sequence != nullptr && sequence->is_array()) {
    for (const Json& each : *sequence) processors.push_back(&each);
  }
  for (const Json* processor : processors) {
    const Json* single = Member(*processor, "single");
    if (single == nullptr || !single->is_array() || single->empty()) continue;
    const Json* special = Member(single->front(), "SpecialToken");
    const Json* id = special == nullptr ? nullptr : Member(*special, "id");
    const Json* tokens = Member(*processor, "special_tokens");
    if (id == nullptr || !id->is_string() || tokens == nullptr) continue;
    const Json* token = Member(*tokens, id->get_ref<const std::string&>());
    const Json* ids = token == nullptr ? nullptr : Member(*token, "ids");
    if (ids != nullptr && ids->is_array() && ids->size() == 1 && AsInteger(ids->front()) == bos) {
      return true;
    }
  }
  return false;
}

// tokenizer.json without its vocabulary and merges, which are nearly all of it.
Json WithoutVocabulary(const std::string& tokenizer_json) {
  const auto keep = [](int depth, Json::parse_event_t event, Json& parsed) {
    return !(depth == 1 && event == Json::parse_event_t::key && parsed == "model");
  };
  return Json::parse(tokenizer_json, keep, /*allow_exceptions=*/false);
}

absl::StatusOr<bool> AddBos(const Json& tokenizer_config, const TokenizerData& data) {
  if (!data.bos_id.has_value()) return false;
  if (Member(tokenizer_config, "add_bos_token") != nullptr) {
    return BoolMemberOr(tokenizer_config, "add_bos_token", false);
  }
  ASSIGN_OR_RETURN(const std::string kind, TextMemberOr(tokenizer_config, "tokenizer_class", ""));
  if (kind.starts_with("LlamaTokenizer")) return true;
  if (data.tokenizer_json.empty()) return false;
  const Json tokenizer = WithoutVocabulary(data.tokenizer_json);
  if (tokenizer.is_discarded()) return base::InvalidArgument("tokenizer.json: not valid JSON");
  return PostProcessorAddsBos(tokenizer, *data.bos_id);
}

}  // namespace

absl::StatusOr<TokenizerData> ReadHfTokenizer(FolderTexts texts, const Json& config, int vocab) {
  ASSIGN_OR_RETURN(const Json generation,
                   ParseOptional(texts.generation_config, "generation_config.json"));
  ASSIGN_OR_RETURN(const Json tokenizer_config,
                   ParseOptional(texts.tokenizer_config, "tokenizer_config.json"));
  // Parsed in full by whoever builds the tokenizer.
  RETURN_IF_ERROR(base::Annotate(CheckJsonDepth(texts.tokenizer), "tokenizer.json"));
  TokenizerData data;
  data.tokenizer_json = std::move(texts.tokenizer);
  data.tokenizer_config_json = std::move(texts.tokenizer_config);
  for (const Json* object : std::initializer_list<const Json*>{&generation, &config}) {
    ASSIGN_OR_RETURN(const std::vector<int32_t> eos, TokenIds(*object, "eos_token_id", vocab));
    for (const int32_t id : eos) {
      if (std::ranges::find(data.eos_ids, id) == data.eos_ids.end()) data.eos_ids.push_back(id);
    }
    ASSIGN_OR_RETURN(const std::vector<int32_t> bos, TokenIds(*object, "bos_token_id", vocab));
    if (!bos.empty() && !data.bos_id.has_value()) data.bos_id = bos.front();
  }
  data.chat_template = std::move(texts.chat_template);
  if (data.chat_template.empty()) {
    auto text = ChatTemplate(tokenizer_config);
    if (!text.ok()) return base::Annotate(text.status(), "tokenizer_config.json");
    data.chat_template = *std::move(text);
  }
  ASSIGN_OR_RETURN(data.add_bos, AddBos(tokenizer_config, data));
  return data;
}

}  // namespace smartgen::model
