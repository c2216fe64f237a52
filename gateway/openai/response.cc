#include "gateway/openai/response.h"

#include <algorithm>
#include <cmath>

#include "common/tokenizer/tokenizer.h"

namespace smartgen::gateway {
namespace {

// JSON has no minus infinity; the number that other servers put in its place.
constexpr double kLowestLogprob = -9999.0;

Json Number(double value) {
  return std::isfinite(value) ? std::max(value, kLowestLogprob) : kLowestLogprob;
}

std::string Replaced(std::string bytes) { return tokenizer::TakeCompleteUtf8(bytes, true); }

// Tokens that are not whole characters need distinct keys in completions' top_logprobs.
std::string Escaped(const std::string& bytes) {
  if (tokenizer::IsValidUtf8(bytes)) return bytes;
  std::string out = "bytes:";
  for (const unsigned char c : bytes) out += fmt::format("\\x{:02x}", c);
  return out;
}

Json Bytes(const std::string& bytes) {
  Json out = Json::array();
  for (const unsigned char c : bytes) out.push_back(c);
  return out;
}

Json ChatToken(const TokenProbability& token) {
  return Json{{"token", Replaced(token.bytes)},
              {"logprob", Number(token.logprob)},
              {"bytes", Bytes(token.bytes)}};
}

Json ChatLogprobs(const std::vector<LogprobEntry>& entries) {
  Json content = Json::array();
  for (const LogprobEntry& entry : entries) {
    Json token = ChatToken(entry.chosen);
    token["top_logprobs"] = Json::array();
    for (const TokenProbability& top : entry.top) token["top_logprobs"].push_back(ChatToken(top));
    content.push_back(std::move(token));
  }
  return Json{{"content", std::move(content)}, {"refusal", nullptr}};
}

Json CompletionLogprobs(const std::vector<LogprobEntry>& entries) {
  Json tokens = Json::array();
  Json logprobs = Json::array();
  Json tops = Json::array();
  Json offsets = Json::array();
  for (const LogprobEntry& entry : entries) {
    tokens.push_back(Escaped(entry.chosen.bytes));
    logprobs.push_back(Number(entry.chosen.logprob));
    Json top = Json::object();
    for (const TokenProbability& one : entry.top) top[Escaped(one.bytes)] = Number(one.logprob);
    // The chosen token is always among them, as OpenAI has it.
    top[Escaped(entry.chosen.bytes)] = Number(entry.chosen.logprob);
    tops.push_back(std::move(top));
    offsets.push_back(entry.text_offset);
  }
  return Json{{"tokens", std::move(tokens)},
              {"token_logprobs", std::move(logprobs)},
              {"top_logprobs", std::move(tops)},
              {"text_offset", std::move(offsets)}};
}

Json Logprobs(const ResponseHead& head, const std::vector<LogprobEntry>& entries) {
  if (!head.logprobs_wanted) return nullptr;
  return head.api == Api::kChat ? ChatLogprobs(entries) : CompletionLogprobs(entries);
}

Json Reason(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    default:
      return nullptr;
  }
}

Json ToJson(const Usage& usage) {
  return Json{{"prompt_tokens", usage.prompt_tokens},
              {"completion_tokens", usage.completion_tokens},
              {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
              {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

Json TextOrNull(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }
Json OrNull(const std::optional<double>& v) { return v ? Json(*v) : Json(nullptr); }

Json ToJson(const ServingInfo& info) {
  Json timings{{"queue", info.queue_seconds},
               {"prefill", info.prefill_seconds},
               {"transfer_exposed", info.transfer_exposed_seconds},
               {"decode", info.decode_seconds},
               {"ttft", OrNull(info.ttft_seconds)},
               {"ttst", OrNull(info.ttst_seconds)}};
  return Json{{"mode", TextOrNull(info.mode)},
              {"prefill_address", TextOrNull(info.prefill_address)},
              {"decode_address", TextOrNull(info.decode_address)},
              {"fallback_reason", TextOrNull(info.fallback_reason)},
              {"resumptions", info.resumptions},
              {"transfer_bytes", info.transfer_bytes},
              {"path_bytes", info.path_bytes},
              {"handover_steps", info.handover_steps},
              {"all_local_seconds",
               info.all_local_seconds > 0 ? Json(info.all_local_seconds) : Json(nullptr)},
              {"step_kinds", info.step_kinds},
              {"selected_entries", info.selected_entries},
              {"remote_entries", info.remote_entries},
              {"timings", std::move(timings)}};
}

Json Base(const ResponseHead& head, bool chunk) {
  std::string_view object = "text_completion";
  if (head.api == Api::kChat) object = chunk ? "chat.completion.chunk" : "chat.completion";
  return Json{{"id", head.id},
              {"object", object},
              {"created", head.created},
              {"model", head.model},
              {"choices", Json::array()}};
}

Json Chunk(const ResponseHead& head, int index, std::string_view key, Json value, Json logprobs,
           FinishReason reason) {
  Json json = Base(head, true);
  Json choice{{"index", index}};
  choice[std::string(key)] = std::move(value);
  choice["logprobs"] = std::move(logprobs);
  choice["finish_reason"] = Reason(reason);
  json["choices"].push_back(std::move(choice));
  if (head.usage_wanted) json["usage"] = nullptr;
  return json;
}

}  // namespace

Json WholeResponse(const ResponseHead& head, const std::vector<FinishedChoice>& choices,
                   const Usage& usage, const ServingInfo& info) {
  Json json = Base(head, false);
  for (const FinishedChoice& choice : choices) {
    Json one{{"index", choice.index}};
    if (head.api == Api::kChat) {
      one["message"] = Json{{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
    } else {
      one["text"] = choice.text;
    }
    one["logprobs"] = Logprobs(head, choice.logprobs);
    one["finish_reason"] = Reason(choice.finish_reason);
    if (head.token_ids_wanted) one["token_ids"] = choice.token_ids;
    json["choices"].push_back(std::move(one));
  }
  json["usage"] = ToJson(usage);
  json["smartgen"] = ToJson(info);
  return json;
}

Json RoleChunk(const ResponseHead& head, int index) {
  return Chunk(head, index, "delta", Json{{"role", "assistant"}, {"content", ""}}, nullptr,
               FinishReason::kNone);
}

Json TextChunk(const ResponseHead& head, int index, std::string_view text,
               const std::vector<LogprobEntry>& logprobs) {
  const bool chat = head.api == Api::kChat;
  return Chunk(head, index, chat ? "delta" : "text", chat ? Json{{"content", text}} : Json(text),
               Logprobs(head, logprobs), FinishReason::kNone);
}

Json FinishChunk(const ResponseHead& head, int index, FinishReason reason,
                 const std::vector<int32_t>& token_ids) {
  const bool chat = head.api == Api::kChat;
  Json json = Chunk(head, index, chat ? "delta" : "text", chat ? Json::object() : Json(""), nullptr,
                    reason);
  if (head.token_ids_wanted) json["choices"][0]["token_ids"] = token_ids;
  return json;
}

Json UsageChunk(const ResponseHead& head, const Usage& usage, const ServingInfo& info) {
  Json json = Base(head, true);
  json["usage"] = ToJson(usage);
  json["smartgen"] = ToJson(info);
  return json;
}

Json ModelObject(std::string_view id, int64_t created, int64_t context_length) {
  return Json{{"id", id},
              {"object", "model"},
              {"created", created},
              {"owned_by", "smartgen"},
              {"max_model_len", context_length}};
}

Json ModelList(const std::vector<Json>& models) {
  return Json{{"object", "list"}, {"data", models}};
}

std::string SseData(const Json& json) { return fmt::format("data: {}\n\n", Dump(json)); }

int64_t CountCharacters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace smartgen::gateway
