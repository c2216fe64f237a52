// A request of POST /v1/chat/completions or /v1/completions, checked and typed.
//
// Fields that this version cannot honour (response_format, forced tool_choice, suffix, ...) are
// refused with 400 that names them; fields that nobody here knows are ignored, as other
// OpenAI-compatible servers do, because clients send many that concern only OpenAI itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/sampling/sampler.h"
#include "common/transfer/mode.h"
#include "gateway/openai/error.h"

namespace smartgen::gateway {

enum class Api { kChat, kCompletions };

// Text to be tokenised, or token ids as they are.
struct Prompt {
  std::string text;
  std::vector<int32_t> ids;
  bool is_ids = false;
};

// What "smartgen" says of the transfer beside its mode; absent: decoded's configuration.
struct TransferChoice {
  std::optional<std::string> selector;
  std::optional<double> selection_budget;
  std::optional<double> speculative_ratio;
  std::optional<std::string> handover;   // "auto", "split", "attend", "none"
  std::optional<std::string> selection;  // "when_needed", "never", "always"
  std::optional<bool> profile;
  std::optional<bool> parallel;
  std::optional<bool> prefetch;
  std::optional<bool> speculation;
};

struct ParsedRequest {
  Api api = Api::kChat;
  std::string model;  // empty: whatever is served

  // Chat.
  Json messages;
  Json tools;               // array or null
  Json template_arguments;  // chat_template_kwargs: object or null
  bool add_generation_prompt = true;

  // Completions.
  std::vector<Prompt> prompts;
  bool echo = false;

  int n = 1;                          // choices a prompt
  std::optional<int64_t> max_tokens;  // absent: as many as the context holds
  std::vector<std::string> stop;
  bool stream = false;
  bool include_usage = false;
  bool return_token_ids = false;  // as vLLM has it: choices carry "token_ids"
  // All but eos_ids, which the model says. `seed` is drawn where the request has none.
  sampling::SamplingParams sampling;
  bool has_seed = false;
  std::optional<transfer::Mode> mode;  // absent: decoded's configuration
  TransferChoice transfer;
  bool trace = false;  // the daemons record what happens to it
};

struct RequestLimits {
  int vocab_size = 0;
  int max_choices = 8;   // n
  int max_prompts = 64;  // prompts of one completion request
};

inline constexpr int kMaxStops = 4;
inline constexpr size_t kMaxStopBytes = 1024;
inline constexpr size_t kMaxMessages = 65536;
inline constexpr size_t kMaxTools = 1024;

Result<ParsedRequest> ParseRequest(Api api, std::string_view body, const RequestLimits& limits);
Result<ParsedRequest> ParseRequest(Api api, const Json& json, const RequestLimits& limits);

// The seed of choice `choice` of a request: its own for choice 0, others differ.
uint64_t SeedOfChoice(uint64_t seed, int choice);

}  // namespace smartgen::gateway
