// One traced request through a gateway, and what its client saw of it.
#pragma once

#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "tools/http_client.h"
#include "tools/trace/chrome.h"

namespace smartgen::tools::trace_view {

struct GenerateOptions {
  Url url;
  std::string api_key;
  std::string prompt;
  int64_t max_tokens = 32;
  Json smartgen = Json::object();  // of the body; "trace" is added
};

struct Generated {
  std::string id;
  Json smartgen;    // the response's: mode, path_bytes, addresses
  Process process;  // the client's view
};

// POST /v1/completions, streamed, greedy, to the token limit. The gateway's own words in errors.
absl::StatusOr<Generated> Generate(const GenerateOptions& options);

}  // namespace smartgen::tools::trace_view
