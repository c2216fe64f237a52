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

}  // namespace smartgen::transfer
