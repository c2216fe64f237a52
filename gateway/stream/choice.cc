#include "gateway/stream/choice.h"

#include <algorithm>

namespace smartgen::gateway {

Choice::Choice(Options options)
    : options_(std::move(options)),
      detokenizer_(options_.tokenizer, /*special=*/false),
      filter_(options_.stop) {}

LogprobEntry Choice::MakeEntry(const sampling::SampledToken& token) const {
  const auto probability = [&](int32_t id, float logprob) {
    return TokenProbability{std::string(options_.tokenizer->TokenBytes(id, /*special=*/true)),
                            logprob};
  };
  LogprobEntry entry{probability(token.id, token.logprob), {}, 0};
  for (const sampling::TokenLogprob& top : token.top) {
    entry.top.push_back(probability(top.id, top.logprob));
  }
  entry.text_offset = options_.text_offset + produced_characters_;
  return entry;
}

Choice::Output Choice::Push(const sampling::SampledToken& token) {
  if (stopped()) return {};
  tokens_.push_back(token.id);
  if (std::find(options_.eos_ids.begin(), options_.eos_ids.end(), token.id) !=
      options_.eos_ids.end()) {
    saw_eos_ = true;
    return {};
  }
  if (options_.logprobs) pending_.push_back({MakeEntry(token), produced_bytes_});
  std::string text = detokenizer_.Push(token.id);
  produced_bytes_ += text.size();
  produced_characters_ += CountCharacters(text);
  if (static_cast<int64_t>(tokens_.size()) > options_.min_tokens) text = filter_.Push(text);
  if (stopped()) reason_ = FinishReason::kStop;
  return Release(std::move(text), false);
}

Choice::Output Choice::Finish(FinishReason reason) {
  if (stopped() || reason_ != FinishReason::kNone) return {};
  std::string text = filter_.Push(detokenizer_.Flush());
  text += filter_.Flush();
  reason_ = stopped() ? FinishReason::kStop : reason;
  return Release(std::move(text), !stopped());
}

Choice::Output Choice::Release(std::string text, bool all) {
  Output out;
  sent_bytes_ += text.size();
  out.text = std::move(text);
  size_t count = 0;
  while (count < pending_.size() && (all || pending_[count].start < sent_bytes_)) ++count;
  for (size_t i = 0; i < count; ++i) out.logprobs.push_back(std::move(pending_[i].entry));
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<ptrdiff_t>(count));
  return out;
}

}  // namespace smartgen::gateway
