#include "prefill_server/scheduler.h"

namespace smartgen::prefill_server {

std::optional<size_t> ChooseNext(std::span<const Candidate> candidates) {
  std::optional<size_t> best;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].passed_over >= kMaxPassedOver) return i;
    if (!best || candidates[i].remaining_tokens < candidates[*best].remaining_tokens) best = i;
  }
  return best;
}

}  // namespace smartgen::prefill_server
