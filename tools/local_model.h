// A model in this process: words alone, or words and weights.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/chat/chat_template.h"
#include "common/executor/executor.h"
#include "common/kv/pool.h"
#include "common/model/model.h"
#include "common/tokenizer/tokenizer.h"

namespace smartgen::tools {

struct Words {
  std::unique_ptr<model::Model> file;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;
};

// `name_or_path` as everywhere a model is named. Errors say how to fetch it.
absl::StatusOr<Words> LoadWords(const std::string& name_or_path);
absl::StatusOr<std::unique_ptr<chat::ChatTemplate>> LoadTemplate(const Words& words);

// Reads standard input line by line and writes, for each JSON object, what `convert` makes of it;
// {"error": ...} where that fails. Returns 1 if any line failed, else 0. Empty lines are skipped.
int ConvertJsonLines(
    const std::function<absl::StatusOr<nlohmann::ordered_json>(const nlohmann::ordered_json&)>&
        convert);
// One line of JSON; bytes that are no UTF-8 become U+FFFD.
std::string ToLine(const nlohmann::ordered_json& value);
// An array of ids inside the vocabulary.
absl::StatusOr<std::vector<tokenizer::TokenId>> ParseIds(const nlohmann::ordered_json& value,
                                                         int vocab_size);

}  // namespace smartgen::tools
