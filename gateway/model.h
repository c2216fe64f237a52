// What the gateway knows of the model that it serves: its words, not its weights.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/chat/chat_template.h"
#include "common/tokenizer/tokenizer.h"

namespace smartgen::gateway {

struct ServedModel {
  std::string name;  // clients' "model"
  std::string fingerprint;
  int64_t context_length = 0;
  int64_t created = 0;  // seconds since 1970
  std::unique_ptr<const tokenizer::Tokenizer> tokenizer;
  std::unique_ptr<const chat::ChatTemplate> chat_template;
  // Special-token strings in messages and prompts become special tokens (transformers' behaviour).
  bool trust_user_text = false;

  // From a GGUF file or model folder. `name` empty: the name or path's last
  // part, without .gguf.
  static absl::StatusOr<ServedModel> Load(const std::string& name_or_path, const std::string& name,
                                          bool trust_user_text, int64_t now);
};

}  // namespace smartgen::gateway
