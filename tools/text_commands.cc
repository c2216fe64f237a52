// tokenize, detokenize, render.
#include "tools/command.h"
#include "tools/local_model.h"

namespace smartgen::tools {
namespace {

using Json = nlohmann::ordered_json;

struct TextOptions {
  std::string model;
  bool special = false;
  bool trust_user_text = false;
};

absl::StatusOr<std::string> StringField(const Json& input, const char* key) {
  const auto it = input.find(key);
  if (it == input.end() || !it->is_string()) return base::InvalidArgument("{}: want text", key);
  return it->get<std::string>();
}

void BindModel(config::Binder& b, TextOptions* options) {
  b.Field("model", &options->model, "GGUF file, safetensors folder or known name");
}

absl::StatusOr<Json> RenderOne(const Words& words, const chat::ChatTemplate& chat_template,
                               const TextOptions& options, const Json& input) {
  chat::RenderRequest request;
  const auto take = [&](const char* key, Json* to) {
    if (const auto it = input.find(key); it != input.end()) *to = *it;
  };
  take("messages", &request.messages);
  take("tools", &request.tools);
  if (!request.messages.is_array()) return base::InvalidArgument("messages: want an array");
  if (const auto it = input.find("add_generation_prompt"); it != input.end()) {
    if (!it->is_boolean()) {
      return base::InvalidArgument("add_generation_prompt: want true or false");
    }
    request.add_generation_prompt = it->get<bool>();
  }
  ASSIGN_OR_RETURN(const chat::Rendered rendered, chat_template.Render(request));
  return Json{{"prompt", rendered.Text()},
              {"ids", chat::EncodeRendered(*words.tokenizer, rendered, options.trust_user_text,
                                           words.tokenizer->add_bos())}};
}

}  // namespace

int Tokenize(const Args& args) {
  TextOptions options;
  const Parsed parsed = ParseFlags("tokenize", args, [&](config::Binder& b) {
    BindModel(b, &options);
    b.Field("special", &options.special, "special-token text becomes special tokens");
  });
  if (!parsed.go_on) return parsed.exit_code;
  const auto words = LoadWords(options.model);
  if (!words.ok()) return Fail("tokenize", words.status());
  return ConvertJsonLines([&](const Json& input) -> absl::StatusOr<Json> {
    ASSIGN_OR_RETURN(const std::string text, StringField(input, "text"));
    return Json{{"ids", words->tokenizer->Encode(text, options.special)}};
  });
}

int Detokenize(const Args& args) {
  TextOptions options;
  const Parsed parsed = ParseFlags("detokenize", args, [&](config::Binder& b) {
    BindModel(b, &options);
    b.Field("special", &options.special, "show control tokens' text");
  });
  if (!parsed.go_on) return parsed.exit_code;
  const auto words = LoadWords(options.model);
  if (!words.ok()) return Fail("detokenize", words.status());
  return ConvertJsonLines([&](const Json& input) -> absl::StatusOr<Json> {
    const auto it = input.find("ids");
    ASSIGN_OR_RETURN(const auto ids,
                     ParseIds(it == input.end() ? Json() : *it, words->tokenizer->vocab_size()));
    return Json{{"text", words->tokenizer->Decode(ids, options.special)}};
  });
}

int Render(const Args& args) {
  TextOptions options;
  const Parsed parsed = ParseFlags("render", args, [&](config::Binder& b) {
    BindModel(b, &options);
    b.Field("trust_user_text", &options.trust_user_text,
            "special-token text in messages becomes special tokens, as in transformers");
  });
  if (!parsed.go_on) return parsed.exit_code;
  const auto words = LoadWords(options.model);
  if (!words.ok()) return Fail("render", words.status());
  const auto chat_template = LoadTemplate(*words);
  if (!chat_template.ok()) return Fail("render", chat_template.status());
  return ConvertJsonLines(
      [&](const Json& input) { return RenderOne(*words, **chat_template, options, input); });
}

}  // namespace smartgen::tools
