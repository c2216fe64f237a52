// Byte-pair merging inside one word.
//
// Thread-safe after construction.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/tokenizer/tokenizer.h"

namespace smartgen::tokenizer {

class Bpe {
 public:
  static constexpr TokenId kNone = -1;
  struct Merge {
    TokenId left, right, result;
  };
  struct Options {
    std::array<TokenId, 256> byte_tokens;  // kNone: the vocabulary lacks the byte
    std::vector<Merge> merges;             // the earlier, the stronger
    // Stands for bytes without a token; without it they are dropped, as the reference tokenizers
    // do.
    TokenId unknown = kNone;
    bool fuse_unknown = false;  // one for a run of them
  };
  struct Symbol {
    TokenId id;
    int32_t prev, next;  // -1: none
  };
  struct Candidate {
    uint32_t rank;
    int32_t pos;  // of the left symbol
    TokenId left, right;
  };
  // Working memory of one thread.
  struct Scratch {
    std::vector<TokenId> ids;
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
    std::vector<uint32_t> ranks;
  };

  explicit Bpe(const Options& options);

  // `word` comes out as `id` at once. The caller knows that it does, or wants it to
  // (ignore_merges). `word` must outlive this.
  void AddWholeWord(std::string_view word, TokenId id) { words_.try_emplace(word, id); }
  // Whether merging makes exactly `id` of `word`.
  bool MergesTo(std::string_view word, TokenId id, Scratch& scratch) const;

  // O(n log n) in the word's length, whatever stands in it.
  void Encode(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const;

 private:
  struct Target {
    uint32_t rank;
    TokenId result;
  };
  static uint64_t Key(TokenId left, TokenId right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  const Target* Find(TokenId left, TokenId right) const;
  uint32_t RankOf(TokenId left, TokenId right) const;
  void Start(std::string_view word, std::vector<TokenId>& ids) const;
  void MergeShort(Scratch& scratch) const;
  void MergeLong(Scratch& scratch) const;
  // Leaves the result in scratch.ids.
  void MergeWord(std::string_view word, Scratch& scratch) const;

  std::array<TokenId, 256> byte_tokens_;
  TokenId unknown_;
  bool fuse_unknown_;
  absl::flat_hash_map<uint64_t, Target> merges_;
  absl::flat_hash_map<std::string_view, TokenId> words_;
};

}  // namespace smartgen::tokenizer
