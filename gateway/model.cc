#include "gateway/model.h"

#include <filesystem>

#include "common/model/model.h"

namespace smartgen::gateway {
namespace {

// "smollm2-135m" stays, "/models/SmolLM2.Q4_1.gguf" becomes "SmolLM2.Q4_1", "/models/Llama-3/"
// "Llama-3". What files say of themselves is no name that anyone would type.
std::string DefaultName(const std::string& name_or_path) {
  std::filesystem::path path(name_or_path);
  if (!path.has_filename()) path = path.parent_path();
  return path.extension() == ".gguf" ? path.stem().string() : path.filename().string();
}

}  // namespace

absl::StatusOr<ServedModel> ServedModel::Load(const std::string& name_or_path,
                                              const std::string& name, bool trust_user_text,
                                              int64_t now) {
  ASSIGN_OR_RETURN(const std::string path, model::ResolveModelPath(name_or_path));
  ASSIGN_OR_RETURN(const auto file, model::Model::Open(path));
  const model::TokenizerData& data = file->tokenizer_data();
  ASSIGN_OR_RETURN(auto tokenizer, tokenizer::Tokenizer::Create(data));

  chat::TemplateOptions options;
  options.source = data.chat_template;
  if (const auto bos = tokenizer->bos_id()) options.bos_token = tokenizer->TokenBytes(*bos, true);
  if (!tokenizer->eos_ids().empty()) {
    options.eos_token = tokenizer->TokenBytes(tokenizer->eos_ids().front(), true);
  }
  const auto specials = tokenizer->special_texts();
  options.special_texts.assign(specials.begin(), specials.end());
  ASSIGN_OR_RETURN(auto chat_template, chat::ChatTemplate::Create(std::move(options)));

  ServedModel model;
  model.name = !name.empty() ? name : DefaultName(name_or_path);
  model.fingerprint = file->fingerprint();
  model.context_length = file->config().context_length;
  model.created = now;
  model.tokenizer = std::move(tokenizer);
  model.chat_template = std::move(chat_template);
  model.trust_user_text = trust_user_text;
  return model;
}

}  // namespace smartgen::gateway
