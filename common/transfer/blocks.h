// SmartGen's relative blocks: each layer's sequence is cut into kBlocks pieces by relative
// position, so that one profile serves all prompt lengths. A view for planning; storage is in
// pages.
#pragma once

#include <cstdint>

namespace smartgen::transfer {

inline constexpr int kBlocks = 1024;

struct TokenRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool empty() const { return begin >= end; }
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

// Block m of a layer of `tokens` tokens: [floor(m*T/M), floor((m+1)*T/M)). Empty for some m where T
// < M.
constexpr TokenRange BlockTokens(int block, int64_t tokens) {
  return {block * tokens / kBlocks, (block + 1LL) * tokens / kBlocks};
}

// The block that holds `token`: the inverse of BlockTokens. 0 <= token < tokens.
constexpr int BlockOf(int64_t token, int64_t tokens) {
  // The largest m with floor(m*T/M) <= token.
  return static_cast<int>(((token + 1) * kBlocks - 1) / tokens);
}

// Of prompt tokens [begin, end) that travel, the first that a layer's sliding window shows to the
// next token, at position `end`: those before are never read there, and are not sent. 0: no window.
// At least the last token travels, so that every layer has something to complete.
constexpr int64_t TravelBegin(int window, int64_t begin, int64_t end) {
  if (window <= 0) return begin;
  const int64_t seen = end - window + 1;
  return seen < begin ? begin : (seen < end ? seen : end - 1);
}

}  // namespace smartgen::transfer
