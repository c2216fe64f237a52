// How alike the positions are that different prompts select.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/transfer/blocks.h"
#include "tools/profile/selection_counts.h"

namespace smartgen::tools::profile {

// Spearman's rank correlation, equal values sharing their mean rank. Positions where either is NaN
// are left out. 0 where one side has no two different values.
double RankCorrelation(std::span<const float> a, std::span<const float> b);

// Of the best `share` of the positions by `a` (ties: the lower first), the share that is among the
// best by `b` as well; by chance it is `share`. Positions where either is NaN are left out.
double TopOverlap(std::span<const float> a, std::span<const float> b, double share);

inline constexpr double kTopShare = 0.2;

struct Likeness {
  double rank_correlation = 0;
  double top_overlap = 0;  // of the best kTopShare
};

// The block frequencies of one prompt, or the mean of several.
using BlockRows = std::vector<std::array<float, transfer::kBlocks>>;
BlockRows RowsOf(const SelectionCounts& counts);
// Means over the rows of the layers that are not always sent.
Likeness Compare(const BlockRows& a, const BlockRows& b);

struct Comparison {
  std::string what;
  int64_t pairs = 0;  // over which the mean is taken
  Likeness mean;
};

struct PromptRows {
  std::string text;
  int64_t length = 0;
  BlockRows rows;
};
// For each pair of lengths: the same text, and all texts together; for each length: different
// texts.
std::vector<Comparison> CompareAll(std::span<const PromptRows> prompts);

}  // namespace smartgen::tools::profile
