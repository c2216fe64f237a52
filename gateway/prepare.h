// From a request's body to token ids. CPU-heavy: runs on the worker pool, never on an I/O thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "gateway/model.h"
#include "gateway/openai/request.h"

namespace smartgen::gateway {

struct PreparedPrompt {
  std::vector<int32_t> ids;
  std::string echo;  // completions with echo: the prompt's text
};

struct PreparedRequest {
  ParsedRequest request;
  std::vector<PreparedPrompt> prompts;
};

// 400 with the template's own message, or with code context_length_exceeded where a prompt leaves
// no room for a token; 404 for another model's name. `context_length` is that of the decode
// instances.
Result<PreparedRequest> PrepareRequest(Api api, std::string_view body, const ServedModel& model,
                                       const RequestLimits& limits, int64_t context_length);

// Tokens that may be generated after `prompt_tokens`.
int64_t TokenBudget(const ParsedRequest& request, int64_t prompt_tokens, int64_t context_length);

}  // namespace smartgen::gateway
