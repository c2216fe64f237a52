#include "tools/profile/similarity.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "common/base/status.h"
#include "common/transfer/profile.h"

namespace smartgen::tools::profile {
namespace {

std::pair<std::vector<float>, std::vector<float>> Paired(std::span<const float> a,
                                                         std::span<const float> b) {
  std::pair<std::vector<float>, std::vector<float>> out;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (std::isnan(a[i]) || std::isnan(b[i])) continue;
    out.first.push_back(a[i]);
    out.second.push_back(b[i]);
  }
  return out;
}

std::vector<size_t> Ascending(std::span<const float> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t x, size_t y) { return values[x] < values[y]; });
  return order;
}

std::vector<double> Ranks(std::span<const float> values) {
  const std::vector<size_t> order = Ascending(values);
  std::vector<double> ranks(values.size());
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    for (size_t i = begin; i < end; ++i) {
      ranks[order[i]] = static_cast<double>(begin + end - 1) / 2;
    }
  }
  return ranks;
}

std::vector<bool> Best(std::span<const float> values, size_t count) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t x, size_t y) { return values[x] > values[y]; });
  std::vector<bool> best(values.size());
  for (size_t i = 0; i < count; ++i) best[order[i]] = true;
  return best;
}

class Mean {
 public:
  void Add(const Likeness& x) {
    sum_.rank_correlation += x.rank_correlation;
    sum_.top_overlap += x.top_overlap;
    ++count_;
  }
  Comparison Take(std::string what) const {
    const double n = static_cast<double>(std::max<int64_t>(1, count_));
    return {std::move(what), count_, {sum_.rank_correlation / n, sum_.top_overlap / n}};
  }

 private:
  Likeness sum_;
  int64_t count_ = 0;
};

BlockRows MeanRows(std::span<const PromptRows> prompts, int64_t length) {
  BlockRows mean;
  int64_t count = 0;
  for (const PromptRows& prompt : prompts) {
    if (prompt.length != length) continue;
    mean.resize(prompt.rows.size());
    for (size_t layer = 0; layer < mean.size(); ++layer) {
      for (size_t block = 0; block < mean[layer].size(); ++block) {
        mean[layer][block] += prompt.rows[layer][block];
      }
    }
    ++count;
  }
  for (auto& row : mean) {
    for (float& value : row) value /= static_cast<float>(count);
  }
  return mean;
}

}  // namespace

double RankCorrelation(std::span<const float> a, std::span<const float> b) {
  const auto [x, y] = Paired(a, b);
  const std::vector<double> rx = Ranks(x);
  const std::vector<double> ry = Ranks(y);
  const double mean = (static_cast<double>(x.size()) - 1) / 2;
  double xx = 0, yy = 0, xy = 0;
  for (size_t i = 0; i < rx.size(); ++i) {
    xx += (rx[i] - mean) * (rx[i] - mean);
    yy += (ry[i] - mean) * (ry[i] - mean);
    xy += (rx[i] - mean) * (ry[i] - mean);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0;
}

double TopOverlap(std::span<const float> a, std::span<const float> b, double share) {
  const auto [x, y] = Paired(a, b);
  const auto count = static_cast<size_t>(share * static_cast<double>(x.size()) + 0.5);
  if (count == 0) return 0;
  const std::vector<bool> best_x = Best(x, count);
  const std::vector<bool> best_y = Best(y, count);
  size_t both = 0;
  for (size_t i = 0; i < x.size(); ++i) both += best_x[i] && best_y[i] ? 1 : 0;
  return static_cast<double>(both) / static_cast<double>(count);
}

BlockRows RowsOf(const SelectionCounts& counts) {
  BlockRows rows;
  for (int layer = 0; layer < counts.layers(); ++layer) {
    rows.push_back(counts.BlockFrequencies(layer));
  }
  return rows;
}

Likeness Compare(const BlockRows& a, const BlockRows& b) {
  Mean mean;
  for (size_t layer = transfer::kDenseLayers; layer < std::min(a.size(), b.size()); ++layer) {
    mean.Add({RankCorrelation(a[layer], b[layer]), TopOverlap(a[layer], b[layer], kTopShare)});
  }
  return mean.Take("").mean;
}

std::vector<Comparison> CompareAll(std::span<const PromptRows> prompts) {
  std::map<std::pair<int64_t, int64_t>, Mean> same_text, other_text;
  std::vector<int64_t> lengths;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const PromptRows& a = prompts[i];
    if (std::find(lengths.begin(), lengths.end(), a.length) == lengths.end()) {
      lengths.push_back(a.length);
    }
    for (size_t j = i + 1; j < prompts.size(); ++j) {
      const PromptRows& b = prompts[j];
      const auto pair = std::minmax(a.length, b.length);
      const bool same = a.text == b.text;
      if (same == (a.length == b.length)) continue;  // neither question
      (same ? same_text : other_text)[pair].Add(Compare(a.rows, b.rows));
    }
  }
  std::vector<Comparison> out;
  for (const auto& [pair, mean] : same_text) {
    out.push_back(mean.Take(fmt::format("{} against {}, same text", pair.first, pair.second)));
  }
  std::sort(lengths.begin(), lengths.end());
  for (size_t i = 0; i < lengths.size(); ++i) {
    for (size_t j = i + 1; j < lengths.size(); ++j) {
      Mean mean;
      mean.Add(Compare(MeanRows(prompts, lengths[i]), MeanRows(prompts, lengths[j])));
      out.push_back(
          mean.Take(fmt::format("{} against {}, all texts' mean", lengths[i], lengths[j])));
    }
  }
  for (const auto& [pair, mean] : other_text) {
    out.push_back(mean.Take(fmt::format("{}, different texts", pair.first)));
  }
  return out;
}

}  // namespace smartgen::tools::profile
