// Request bodies of both APIs. Nothing may crash, and what is accepted must be within the limits.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "gateway/openai/request.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace smartgen::gateway;  // NOLINT: one function
  constexpr RequestLimits kLimits{1000, 8, 64};
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  for (const Api api : {Api::kChat, Api::kCompletions}) {
    const auto result = ParseRequest(api, body, kLimits);
    if (!result.ok()) {
      Require(result.error().status == 400);
      Require(!result.error().message.empty());
      Require(!Dump(ToJson(result.error())).empty());
      continue;
    }
    const ParsedRequest& request = result.value();
    Require(request.sampling.Check(kLimits.vocab_size).ok());
    Require(request.n >= 1 && request.n <= kLimits.max_choices);
    Require(request.stop.size() <= kMaxStops);
    Require(!request.max_tokens || *request.max_tokens >= 0);
    for (const Prompt& prompt : request.prompts) {
      for (const int32_t id : prompt.ids) Require(id >= 0 && id < kLimits.vocab_size);
    }
  }
  return 0;
}
