#include "tools/local_model.h"

#include <cstdio>
#include <iostream>

namespace smartgen::tools {

absl::StatusOr<Words> LoadWords(const std::string& name_or_path) {
  ASSIGN_OR_RETURN(const std::string path, model::ResolveModelPath(name_or_path));
  Words words;
  ASSIGN_OR_RETURN(words.file, model::Model::Open(path));
  ASSIGN_OR_RETURN(words.tokenizer, tokenizer::Tokenizer::Create(words.file->tokenizer_data()));
  return words;
}

absl::StatusOr<std::unique_ptr<chat::ChatTemplate>> LoadTemplate(const Words& words) {
  const tokenizer::Tokenizer& tokenizer = *words.tokenizer;
  chat::TemplateOptions options;
  options.source = words.file->tokenizer_data().chat_template;
  if (const auto bos = tokenizer.bos_id()) options.bos_token = tokenizer.TokenBytes(*bos, true);
  if (!tokenizer.eos_ids().empty()) {
    options.eos_token = tokenizer.TokenBytes(tokenizer.eos_ids().front(), true);
  }
  const auto specials = tokenizer.special_texts();
  options.special_texts.assign(specials.begin(), specials.end());
  return chat::ChatTemplate::Create(std::move(options));
}

std::string ToLine(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

int ConvertJsonLines(
    const std::function<absl::StatusOr<nlohmann::ordered_json>(const nlohmann::ordered_json&)>&
        convert) {
  int result = 0;
  std::string line;
  for (int64_t number = 1; std::getline(std::cin, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto input = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
    absl::StatusOr<nlohmann::ordered_json> output =
        input.is_object() ? convert(input)
                          : base::InvalidArgument("line {}: want a JSON object", number);
    if (!output.ok()) {
      output = nlohmann::ordered_json{{"error", base::MessageOf(output.status())}};
      result = 1;
    }
    // Flushed by the line: the other end of a pipe may wait for it before it sends the next.
    std::cout << ToLine(*output) << std::endl;
  }
  return result;
}

absl::StatusOr<std::vector<tokenizer::TokenId>> ParseIds(const nlohmann::ordered_json& value,
                                                         int vocab_size) {
  if (!value.is_array()) return base::InvalidArgument("ids: want an array of token ids");
  std::vector<tokenizer::TokenId> ids;
  for (const auto& item : value) {
    const bool fits = item.is_number_integer() && item >= 0 && item < vocab_size;
    if (!fits) {
      return base::InvalidArgument("ids[{}]: want a whole number from 0 to {}, got {}", ids.size(),
                                   vocab_size - 1, ToLine(item).substr(0, 80));
    }
    ids.push_back(item.get<tokenizer::TokenId>());
  }
  return ids;
}

}  // namespace smartgen::tools
