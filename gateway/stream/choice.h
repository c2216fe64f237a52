// One choice of an answer: tokens in, text and log-probabilities out.
//
// Not thread-safe. Streamed and whole answers go through the same object, so that their text and
// finish_reason are the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/chat/stop_filter.h"
#include "common/sampling/sampler.h"
#include "common/tokenizer/tokenizer.h"
#include "gateway/openai/response.h"

namespace smartgen::gateway {

class Choice {
 public:
  struct Options {
    const tokenizer::Tokenizer* tokenizer = nullptr;  // outlives this
    std::vector<std::string> stop;
    // Tokens before which neither a stop string ends the text.
    int min_tokens = 0;
    std::vector<int32_t> eos_ids;  // empty where they are ignored
    bool logprobs = false;
    // Characters before the text (an echoed prompt), for text_offset.
    int64_t text_offset = 0;
  };
  // What may be shown now. Log-probabilities come with the text that they belong to.
  struct Output {
    std::string text;
    std::vector<LogprobEntry> logprobs;
    bool empty() const { return text.empty() && logprobs.empty(); }
  };

  explicit Choice(Options options);

  // After it stopped() says whether a stop string was met: the generation is to be cancelled.
  Output Push(const sampling::SampledToken& token);
  // The generation has ended by itself: what was held back comes out.
  Output Finish(FinishReason reason);

  bool stopped() const { return filter_.stopped(); }
  // An end-of-text token was among those pushed.
  bool saw_eos() const { return saw_eos_; }
  FinishReason reason() const { return reason_; }
  // All tokens pushed: what another instance needs to go on.
  const std::vector<int32_t>& tokens() const { return tokens_; }

 private:
  struct Pending {
    LogprobEntry entry;
    size_t start;  // bytes of text before the token
  };
  LogprobEntry MakeEntry(const sampling::SampledToken& token) const;
  Output Release(std::string text, bool all);

  Options options_;
  tokenizer::IncrementalDetokenizer detokenizer_;
  chat::StopFilter filter_;
  std::vector<int32_t> tokens_;
  std::vector<Pending> pending_;
  size_t produced_bytes_ = 0;  // by the detokenizer
  int64_t produced_characters_ = 0;
  size_t sent_bytes_ = 0;
  bool saw_eos_ = false;
  FinishReason reason_ = FinishReason::kNone;
};

}  // namespace smartgen::gateway
