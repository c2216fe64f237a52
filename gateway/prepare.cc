#include "gateway/prepare.h"

#include <algorithm>

namespace smartgen::gateway {
namespace {

Result<PreparedPrompt> PrepareChat(const ParsedRequest& request, const ServedModel& model) {
  chat::RenderRequest render;
  render.messages = request.messages;
  render.tools = request.tools;
  render.add_generation_prompt = request.add_generation_prompt;
  render.extra = request.template_arguments;
  const auto rendered = model.chat_template->Render(render);
  if (!rendered.ok()) {
    const std::string message(base::MessageOf(rendered.status()));
    switch (rendered.status().code()) {
      case absl::StatusCode::kInvalidArgument:
      case absl::StatusCode::kResourceExhausted:
      case absl::StatusCode::kDeadlineExceeded:
        return WithCode(BadRequest("messages", "Chat template: " + message), "chat_template_error");
      default:
        return FromBackendStatus(rendered.status());
    }
  }
  PreparedPrompt prompt;
  prompt.ids = chat::EncodeRendered(*model.tokenizer, *rendered, model.trust_user_text,
                                    model.tokenizer->add_bos());
  return prompt;
}

PreparedPrompt PrepareCompletion(const Prompt& from, bool echo, const ServedModel& model) {
  PreparedPrompt prompt;
  if (from.is_ids) {
    prompt.ids = from.ids;
    if (echo) prompt.echo = model.tokenizer->Decode(from.ids, /*special=*/false);
    return prompt;
  }
  prompt.ids = model.tokenizer->Encode(from.text, model.trust_user_text);
  const auto bos = model.tokenizer->bos_id();
  if (model.tokenizer->add_bos() && bos && (prompt.ids.empty() || prompt.ids.front() != *bos)) {
    prompt.ids.insert(prompt.ids.begin(), *bos);
  }
  if (echo) prompt.echo = from.text;
  return prompt;
}

}  // namespace

int64_t TokenBudget(const ParsedRequest& request, int64_t prompt_tokens, int64_t context_length) {
  const int64_t room = context_length - prompt_tokens;
  return request.max_tokens ? std::min(*request.max_tokens, room) : room;
}

Result<PreparedRequest> PrepareRequest(Api api, std::string_view body, const ServedModel& model,
                                       const RequestLimits& limits, int64_t context_length) {
  auto parsed = ParseRequest(api, body, limits);
  if (!parsed.ok()) return parsed.error();
  PreparedRequest out{std::move(parsed.value()), {}};
  const ParsedRequest& request = out.request;
  if (!request.model.empty() && request.model != model.name) {
    ApiError error = BadRequest("model", fmt::format("The model {} is not served here; {} is",
                                                     Dump(Json(request.model)), model.name));
    error.status = 404;
    return WithCode(error, "model_not_found");
  }
  if (api == Api::kChat) {
    auto prompt = PrepareChat(request, model);
    if (!prompt.ok()) return prompt.error();
    out.prompts.push_back(std::move(prompt.value()));
  } else {
    for (const Prompt& prompt : request.prompts) {
      out.prompts.push_back(PrepareCompletion(prompt, request.echo, model));
    }
  }
  const std::string param = api == Api::kChat ? "messages" : "prompt";
  for (const PreparedPrompt& prompt : out.prompts) {
    const auto tokens = static_cast<int64_t>(prompt.ids.size());
    if (tokens == 0) return BadRequest(param, "The prompt has no tokens");
    // An echo without generation needs no room.
    if (tokens >= context_length && !(request.max_tokens == 0)) {
      return WithCode(
          BadRequest(param,
                     fmt::format("This model's context length is {} tokens, and the prompt has {} "
                                 "tokens: no room is left for an answer",
                                 context_length, tokens)),
          "context_length_exceeded");
    }
  }
  return out;
}

}  // namespace smartgen::gateway
