#include "tools/profile/selection_counts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/transfer/blocks.h"

namespace smartgen::tools::profile {

using transfer::kBlocks;

SelectionCounts::SelectionCounts(int layers, int64_t prompt_tokens)
    : prompt_tokens_(prompt_tokens), layers_(static_cast<size_t>(layers)) {
  for (Layer& layer : layers_) layer.tokens.resize(static_cast<size_t>(prompt_tokens));
}

void SelectionCounts::Add(int layer, const selector::Selection& selection) {
  Layer& counts = layers_[layer];
  counts.chances += selection.kv_heads;
  for (const int32_t token : selection.index) {
    if (token < prompt_tokens_) ++counts.tokens[token];
  }
}

int64_t SelectionCounts::Count(int layer) const {
  const std::vector<int64_t>& tokens = layers_[layer].tokens;
  return std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
}

double SelectionCounts::Frequency(int layer, int64_t token) const {
  const Layer& counts = layers_[layer];
  return counts.chances == 0
             ? 0.0
             : static_cast<double>(counts.tokens[token]) / static_cast<double>(counts.chances);
}

std::array<float, kBlocks> SelectionCounts::BlockFrequencies(int layer) const {
  std::array<float, kBlocks> out;
  for (int block = 0; block < kBlocks; ++block) {
    const transfer::TokenRange range = transfer::BlockTokens(block, prompt_tokens_);
    double sum = 0;
    for (int64_t t = range.begin; t < range.end; ++t) sum += Frequency(layer, t);
    out[block] = range.empty()
                     ? std::numeric_limits<float>::quiet_NaN()
                     : static_cast<float>(sum / static_cast<double>(range.end - range.begin));
  }
  return out;
}

ProfileBuilder::ProfileBuilder(int layers) : sums_(static_cast<size_t>(layers)) {}

void ProfileBuilder::Add(const SelectionCounts& counts) {
  ++prompts_;
  for (int block = 0; block < kBlocks; ++block) {
    seen_[block] += transfer::BlockTokens(block, counts.prompt_tokens()).empty() ? 0 : 1;
  }
  for (int layer = 0; layer < counts.layers(); ++layer) {
    const auto frequencies = counts.BlockFrequencies(layer);
    for (int block = 0; block < kBlocks; ++block) {
      if (!std::isnan(frequencies[block])) sums_[layer][block] += frequencies[block];
    }
  }
}

std::vector<transfer::Profile::Row> ProfileBuilder::Rows(double smoothing) const {
  // Where each block's value comes from.
  std::array<int, kBlocks> from;
  for (int block = 0; block < kBlocks; ++block) {
    for (int distance = 0; distance < kBlocks; ++distance) {
      const int before = block - distance;
      const int after = block + distance;
      from[block] = before >= 0 && seen_[before] > 0 ? before : after;
      if (from[block] < kBlocks && seen_[from[block]] > 0) break;
    }
  }
  std::vector<transfer::Profile::Row> rows(sums_.size());
  for (size_t layer = 0; layer < rows.size(); ++layer) {
    if (layer < transfer::kDenseLayers) {
      rows[layer].fill(1.0f);
      continue;
    }
    std::array<double, kBlocks + 1> before{};  // sums of the values of earlier blocks
    for (int block = 0; block < kBlocks; ++block) {
      const int at = from[block];
      before[block + 1] = before[block] + sums_[layer][at] / static_cast<double>(seen_[at]);
    }
    for (int block = 0; block < kBlocks; ++block) {
      const int to_end = std::min(block, kBlocks - 1 - block);
      const int reach = std::min(to_end, static_cast<int>(smoothing * to_end));
      rows[layer][block] = static_cast<float>(
          std::max(0.0, before[block + reach + 1] - before[block - reach]) / (2 * reach + 1));
    }
  }
  return rows;
}

}  // namespace smartgen::tools::profile
