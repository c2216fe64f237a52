#include "common/chat/chat_template.h"

#include <ctime>
#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/chat/messages.h"
#include "common/chat/prompt_guard.h"
#include "common/chat/python_template.h"

namespace smartgen::chat {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kDefaultTemplate =
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

int64_t LocalSeconds() {
  const std::time_t now = base::Clock::Real()->UnixSeconds();
  std::tm local = {};
  localtime_r(&now, &local);
  return now + local.tm_gmtoff;
}

class JinjaChatTemplate final : public ChatTemplate {
 public:
  JinjaChatTemplate(TemplateOptions options, std::unique_ptr<PythonTemplate> compiled)
      : options_(std::move(options)),
        compiled_(std::move(compiled)),
        guard_(options_.special_texts) {
    flatten_ = !TakesContentParts();
  }

  absl::StatusOr<Rendered> Render(const RenderRequest& request) const override;

 private:
  // Whether a list of one text part gives what the string gives.
  bool TakesContentParts() const;
  absl::StatusOr<std::string> RenderVariables(Json variables, int64_t now) const;
  int64_t Now() const { return options_.now ? options_.now() : LocalSeconds(); }

  const TemplateOptions options_;
  const std::unique_ptr<PythonTemplate> compiled_;
  const PromptGuard guard_;
  bool flatten_ = true;
};

absl::StatusOr<std::string> JinjaChatTemplate::RenderVariables(Json variables, int64_t now) const {
  // As transformers: a token that the model lacks is not defined.
  if (!options_.bos_token.empty()) variables.emplace("bos_token", options_.bos_token);
  if (!options_.eos_token.empty()) variables.emplace("eos_token", options_.eos_token);
  return compiled_->Render(variables.dump(), now);
}

bool JinjaChatTemplate::TakesContentParts() const {
  const auto render = [&](Json content) -> absl::StatusOr<std::string> {
    RenderRequest request;
    request.messages = Json::array({{{"role", "user"}, {"content", std::move(content)}}});
    ASSIGN_OR_RETURN(Json variables, BuildVariables(request, /*flatten=*/false));
    return RenderVariables(std::move(variables), 0);
  };
  const auto parts = render(Json::array({{{"type", "text"}, {"text", "probe"}}}));
  const auto string = render("probe");
  return parts.ok() && string.ok() && *parts == *string;
}

absl::StatusOr<Rendered> JinjaChatTemplate::Render(const RenderRequest& request) const {
  const int64_t now = Now();
  ASSIGN_OR_RETURN(const Json variables, BuildVariables(request, flatten_));
  ASSIGN_OR_RETURN(const std::string prompt, RenderVariables(variables, now));
  const std::string inputs = variables.dump();
  const auto stand_ins = PromptGuard::ChooseStandIns({inputs, options_.source, prompt});
  if (!stand_ins.has_value()) {
    SMARTGEN_LOG(warn, "chat",
                 "a request has characters of every block that could stand in: all "
                 "special strings in the prompt are read as plain text");
    return guard_.CutAll(prompt);
  }
  const Json masked = guard_.Mask(variables, PromptGuard::Level::kCharacters, *stand_ins);
  if (masked == variables) {
    // The request gave nothing that a special string could be made of.
    return Rendered{{{prompt, /*from_user=*/false}}};
  }
  const auto characters = RenderVariables(masked, now);
  if (!characters.ok()) return guard_.Cut(prompt, nullptr, nullptr, *stand_ins);
  if (guard_.Aligned(prompt, *characters, *stand_ins)) {
    return guard_.Cut(prompt, &*characters, nullptr, *stand_ins);
  }
  const auto fragments =
      RenderVariables(guard_.Mask(variables, PromptGuard::Level::kFragments, *stand_ins), now);
  return guard_.Cut(prompt, &*characters, fragments.ok() ? &*fragments : nullptr, *stand_ins);
}

}  // namespace

std::string Rendered::Text() const {
  std::string text;
  for (const Piece& piece : pieces) text += piece.text;
  return text;
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Create(TemplateOptions options) {
  if (options.source.empty()) {
    SMARTGEN_LOG(warn, "chat", "the model has no chat template; using the built-in ChatML one");
    options.source = kDefaultTemplate;
  }
  ASSIGN_OR_RETURN(std::unique_ptr<PythonTemplate> compiled,
                   PythonTemplate::Compile(options.source));
  return std::make_unique<JinjaChatTemplate>(std::move(options), std::move(compiled));
}

std::vector<tokenizer::TokenId> EncodeRendered(const tokenizer::Tokenizer& tokenizer,
                                               const Rendered& rendered, bool trust_user_text,
                                               bool add_bos) {
  std::vector<tokenizer::TextPiece> pieces;
  std::string text;
  if (trust_user_text) {
    text = rendered.Text();
    pieces.push_back({text, /*parse_special=*/true});
  } else {
    for (const Rendered::Piece& piece : rendered.pieces) {
      pieces.push_back({piece.text, /*parse_special=*/!piece.from_user});
    }
  }
  std::vector<tokenizer::TokenId> ids = tokenizer.EncodePieces(pieces);
  const auto bos = tokenizer.bos_id();
  if (add_bos && tokenizer.add_bos() && bos.has_value() && (ids.empty() || ids[0] != *bos)) {
    ids.insert(ids.begin(), *bos);
  }
  return ids;
}

}  // namespace smartgen::chat
