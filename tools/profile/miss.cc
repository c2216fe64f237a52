#include "tools/profile/miss.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/status.h"
#include "tools/bench/table.h"

namespace smartgen::tools::profile {
namespace {

int64_t SelectedEntries(const SelectionCounts& counts) {
  int64_t selected = 0;
  for (int layer = transfer::kDenseLayers; layer < counts.layers(); ++layer) {
    selected += counts.Count(layer);
  }
  return selected;
}

}  // namespace

int64_t MissedEntries(const SelectionCounts& counts, const std::vector<transfer::BlockId>& order,
                      int64_t pushed) {
  int64_t missed = SelectedEntries(counts);
  for (int64_t i = 0; i < pushed; ++i) {
    const auto [layer, block] = order[static_cast<size_t>(i)];
    if (layer < transfer::kDenseLayers) continue;
    const transfer::TokenRange range = transfer::BlockTokens(block, counts.prompt_tokens());
    for (int64_t token = range.begin; token < range.end; ++token) {
      missed -= counts.Count(layer, token);
    }
  }
  return missed;
}

MissCounter::MissCounter(const transfer::Profile* profile, std::vector<int> windows,
                         std::vector<double> shares)
    : profile_(profile), windows_(std::move(windows)), shares_(std::move(shares)) {}

void MissCounter::Add(const SelectionCounts& counts) {
  std::vector<Sum>& sums = sums_[counts.prompt_tokens()];
  sums.resize(shares_.size());
  transfer::PlanInput input;
  input.tokens = counts.prompt_tokens();
  input.windows = windows_;
  const auto by_position = transfer::PositionOrder(counts.layers(), input);
  std::vector<std::vector<transfer::BlockId>> at_random;
  for (int seed = 0; seed < kRandomOrders; ++seed) {
    at_random.push_back(transfer::RandomOrder(counts.layers(), input, static_cast<uint64_t>(seed)));
  }
  for (size_t i = 0; i < shares_.size(); ++i) {
    Sum& sum = sums[i];
    input.push_blocks = std::llround(shares_[i] * static_cast<double>(by_position.size()));
    const transfer::TransferPlan plan = transfer::MakePlan(*profile_, input);
    ++sum.prompts;
    sum.selected += static_cast<double>(SelectedEntries(counts));
    sum.profile += static_cast<double>(MissedEntries(counts, plan.order, plan.pushed));
    sum.sequential += static_cast<double>(MissedEntries(counts, by_position, plan.pushed));
    for (const auto& order : at_random) {
      sum.random += static_cast<double>(MissedEntries(counts, order, plan.pushed)) / kRandomOrders;
    }
  }
}

MissCounter::Row MissCounter::RowOf(int64_t length, double share, const Sum& sum) const {
  const double selected = std::max(1.0, sum.selected);
  return {.length = length,
          .share = share,
          .prompts = sum.prompts,
          .ratios = {.profile = sum.profile / selected,
                     .sequential = sum.sequential / selected,
                     .random = sum.random / selected}};
}

std::vector<MissCounter::Row> MissCounter::Rows() const {
  std::vector<Row> rows;
  std::vector<Sum> all(shares_.size());
  for (const auto& [length, sums] : sums_) {
    for (size_t i = 0; i < shares_.size(); ++i) {
      rows.push_back(RowOf(length, shares_[i], sums[i]));
      all[i].prompts += sums[i].prompts;
      all[i].selected += sums[i].selected;
      all[i].profile += sums[i].profile;
      all[i].sequential += sums[i].sequential;
      all[i].random += sums[i].random;
    }
  }
  for (size_t i = 0; i < shares_.size() && sums_.size() > 1; ++i) {
    rows.push_back(RowOf(0, shares_[i], all[i]));
  }
  return rows;
}

std::string MissTable(const std::vector<MissCounter::Row>& rows) {
  bench::Table table;
  for (const char* name : {"length", "pushed, %", "prompts", "profile, %", "sequential, %",
                           "random, %", "below sequential, %", "below random, %"}) {
    table.AddColumn(name);
  }
  const auto percent = [](double x) { return fmt::format("{:.1f}", x * 100); };
  for (const MissCounter::Row& row : rows) {
    table.AddRow({row.length > 0 ? fmt::format("{}", row.length) : "all", percent(row.share),
                  fmt::format("{}", row.prompts), percent(row.ratios.profile),
                  percent(row.ratios.sequential), percent(row.ratios.random),
                  percent(row.ratios.BelowSequential()), percent(row.ratios.BelowRandom())});
  }
  return table.Render();
}

}  // namespace smartgen::tools::profile
