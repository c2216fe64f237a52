// Counts of selected entries, and the profile made of them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/selector/selector.h"
#include "common/transfer/profile.h"

namespace smartgen::tools::profile {

// What the decode steps after one prompt selected of the prompt. Tokens that were generated after
// it are born where they are read, so they do not count.
class SelectionCounts {
 public:
  SelectionCounts(int layers, int64_t prompt_tokens);

  // A selection that is not dense.
  void Add(int layer, const selector::Selection& selection);

  int layers() const { return static_cast<int>(layers_.size()); }
  int64_t prompt_tokens() const { return prompt_tokens_; }
  // Entries (token x KV head) selected, over all steps.
  int64_t Count(int layer, int64_t token) const { return layers_[layer].tokens[token]; }
  int64_t Count(int layer) const;
  // How often the token's entries are selected: the share of KV heads and steps, 0 to 1; 0 in a
  // layer without selections.
  double Frequency(int layer, int64_t token) const;
  // The mean frequency of each block's tokens. NaN for blocks without tokens.
  std::array<float, transfer::kBlocks> BlockFrequencies(int layer) const;

 private:
  struct Layer {
    std::vector<int64_t> tokens;
    int64_t chances = 0;  // KV heads times steps
  };
  int64_t prompt_tokens_;
  std::vector<Layer> layers_;
};

// I[layer][block]: the mean over prompts of the mean selection frequency of the block's tokens,
// each prompt that has tokens in the block counting the same whatever its length (smartgen.md,
// section 2). A block in which no prompt has a token takes the value of the nearest that some
// prompt has.
class ProfileBuilder {
 public:
  explicit ProfileBuilder(int layers);

  void Add(const SelectionCounts& counts);
  int64_t prompts() const { return prompts_; }
  // `smoothing` >= 0: each value becomes the mean over its surroundings, which reach as far to both
  // sides as this share of the distance to the nearer end: what single prompts selected in the
  // middle says little of other prompts, while at the ends each block has a meaning of its own (0:
  // none). The first layers, which are always sent, are 1. REQUIRES: prompts() > 0.
  std::vector<transfer::Profile::Row> Rows(double smoothing = 0) const;

 private:
  int64_t prompts_ = 0;
  std::array<int64_t, transfer::kBlocks> seen_{};  // prompts with tokens in the block
  std::vector<std::array<double, transfer::kBlocks>> sums_;
};

}  // namespace smartgen::tools::profile
