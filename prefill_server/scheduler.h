// Which prompt's chunk is computed next. Pure.
//
// The prompt with the least left goes first (a short one never waits behind the whole of a long
// one), but one that has been passed over kMaxPassedOver times goes before all (a long one never
// starves behind a stream of short ones).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace smartgen::prefill_server {

inline constexpr int kMaxPassedOver = 4;

struct Candidate {
  int64_t remaining_tokens = 0;
  int passed_over = 0;  // chunks of others computed since this one had its last turn
};

// Index of the next one; ties go to the lower index (the one that came first). nullopt: none.
std::optional<size_t> ChooseNext(std::span<const Candidate> candidates);

}  // namespace smartgen::prefill_server
