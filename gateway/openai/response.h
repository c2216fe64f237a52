// Answers in OpenAI's shapes: whole responses, stream chunks, models, usage.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gateway/openai/error.h"
#include "gateway/openai/request.h"

namespace smartgen::gateway {

struct TokenProbability {
  std::string bytes;  // the token's own
  double logprob = 0;
};

struct LogprobEntry {
  TokenProbability chosen;
  std::vector<TokenProbability> top;  // descending
  int64_t text_offset = 0;            // completions: characters before it in the choice's text
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
};

// What SmartGen did for the request; of choice 0 where there are several.
struct ServingInfo {
  std::string mode;             // empty: not known (the stream ended before decoded said it)
  std::string prefill_address;  // empty: prefilled by the decode instance
  std::string decode_address;
  std::string fallback_reason;  // empty: none
  double queue_seconds = 0;
  double prefill_seconds = 0;
  double transfer_exposed_seconds = 0;
  double decode_seconds = 0;
  uint64_t transfer_bytes = 0;
  std::map<std::string, uint64_t> path_bytes;  // of these, by path
  std::map<std::string, int64_t>
      step_kinds;                // steps before all KV was there, by how they were made
  int64_t handover_steps = 0;    // tokens that the prefill side helped to make
  double all_local_seconds = 0;  // till all KV was here; 0: it never was
  int64_t selected_entries = 0;  // KV entries that steps read by selection
  int64_t remote_entries = 0;    // of these, not here when their layer began
  int64_t resumptions = 0;       // times the stream went on on another decode instance
  std::optional<double> ttft_seconds;
  std::optional<double> ttst_seconds;  // from the request's arrival to token 2
};

enum class FinishReason { kNone, kStop, kLength };

// What all chunks of one answer share.
struct ResponseHead {
  Api api = Api::kChat;
  std::string id;
  std::string model;
  int64_t created = 0;
  bool usage_wanted = false;  // stream_options.include_usage: other chunks carry "usage": null
  bool logprobs_wanted = false;
  bool token_ids_wanted = false;  // return_token_ids
};

struct FinishedChoice {
  int index = 0;
  std::string text;
  std::vector<int32_t> token_ids;  // generated, the end-of-text token included
  std::vector<LogprobEntry> logprobs;
  FinishReason finish_reason = FinishReason::kStop;
};

Json WholeResponse(const ResponseHead& head, const std::vector<FinishedChoice>& choices,
                   const Usage& usage, const ServingInfo& info);
// The first chunk of a chat choice: the role and no text.
Json RoleChunk(const ResponseHead& head, int index);
Json TextChunk(const ResponseHead& head, int index, std::string_view text,
               const std::vector<LogprobEntry>& logprobs);
// The last chunk of a choice: no text, the reason; all token ids where they are wanted.
Json FinishChunk(const ResponseHead& head, int index, FinishReason reason,
                 const std::vector<int32_t>& token_ids);
Json UsageChunk(const ResponseHead& head, const Usage& usage, const ServingInfo& info);

Json ModelObject(std::string_view id, int64_t created, int64_t context_length);
Json ModelList(const std::vector<Json>& models);

// "data: {...}\n\n".
std::string SseData(const Json& json);
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";
inline constexpr std::string_view kSseKeepAlive = ": keep-alive\n\n";

// Unicode characters in valid UTF-8.
int64_t CountCharacters(std::string_view text);

}  // namespace smartgen::gateway
