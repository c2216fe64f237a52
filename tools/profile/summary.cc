#include "tools/profile/summary.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "common/base/status.h"
#include "tools/bench/table.h"

namespace smartgen::tools::profile {
namespace {

using transfer::kBlocks;
using transfer::kDenseLayers;

std::vector<double> RowOf(const transfer::Profile& profile, int layer) {
  std::vector<double> row(kBlocks);
  for (int block = 0; block < kBlocks; ++block) row[block] = profile.Importance(layer, block);
  return row;
}

double Sum(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

double Share(double part, double whole) { return whole > 0 ? part / whole : 0; }

// Of the greatest values, as many as `share` of all.
double TopShare(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end(), std::greater<>());
  const auto count = static_cast<size_t>(share * static_cast<double>(values.size()) + 0.5);
  return Share(Sum(std::span(values).first(count)), Sum(values));
}

std::string Percent(double share) { return fmt::format("{:.1f}", share * 100); }

}  // namespace

std::vector<LayerSummary> Summarise(const transfer::Profile& profile) {
  constexpr size_t kEdge = (kBlocks + 10) / 20;
  std::vector<LayerSummary> out;
  for (int layer = kDenseLayers; layer < profile.layers(); ++layer) {
    const std::vector<double> row = RowOf(profile, layer);
    const double all = Sum(row);
    LayerSummary summary{.layer = layer};
    summary.first = Share(Sum(std::span(row).first(kEdge)), all);
    summary.last = Share(Sum(std::span(row).last(kEdge)), all);
    summary.middle = Share(Sum(std::span(row).subspan(kEdge, kBlocks - 2 * kEdge)), all);
    summary.top20 = TopShare(row, 0.2);
    summary.top50 = TopShare(row, 0.5);
    summary.mean = all / kBlocks;
    out.push_back(summary);
  }
  return out;
}

double Coverage(const transfer::Profile& profile, double share) {
  std::vector<double> all;
  for (int layer = kDenseLayers; layer < profile.layers(); ++layer) {
    const std::vector<double> row = RowOf(profile, layer);
    all.insert(all.end(), row.begin(), row.end());
  }
  return TopShare(std::move(all), share);
}

std::string SummaryTable(const transfer::Profile& profile) {
  bench::Table table;
  for (const char* name : {"layer", "read, %", "in first 5 %", "in middle 90 %", "in last 5 %",
                           "in best 20 %", "in best 50 %"}) {
    table.AddColumn(name);
  }
  LayerSummary all;
  const std::vector<LayerSummary> layers = Summarise(profile);
  for (const LayerSummary& s : layers) {
    table.AddRow({fmt::format("{}", s.layer), Percent(s.mean), Percent(s.first), Percent(s.middle),
                  Percent(s.last), Percent(s.top20), Percent(s.top50)});
    all.mean += s.mean;
    all.first += s.first * s.mean;
    all.middle += s.middle * s.mean;
    all.last += s.last * s.mean;
  }
  if (layers.empty()) return "every layer is always sent\n";
  table.AddRow({"all", Percent(all.mean / static_cast<double>(layers.size())),
                Percent(Share(all.first, all.mean)), Percent(Share(all.middle, all.mean)),
                Percent(Share(all.last, all.mean)), Percent(Coverage(profile, 0.2)),
                Percent(Coverage(profile, 0.5))});
  return table.Render();
}

std::string OriginText(const transfer::Profile& profile) {
  const transfer::Profile::Origin& o = profile.origin();
  std::string out;
  out += fmt::format("model:     {} ({})\n", o.model_name, o.model_fingerprint);
  out += fmt::format("selector:  {}, {:g} % of the context\n",
                     o.selector == "dense" ? "exact scores" : o.selector, o.selection_budget * 100);
  out += fmt::format("lengths:   {} tokens\n", fmt::join(o.prompt_lengths, ", "));
  out += fmt::format("texts:     {}: {}\n", o.texts.size(), fmt::join(o.texts, ", "));
  out += fmt::format("made by:   {}\n", o.command);
  return out;
}

}  // namespace smartgen::tools::profile
