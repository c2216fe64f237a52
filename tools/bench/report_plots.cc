#include <algorithm>

#include "tools/bench/report.h"
#include "tools/bench/summary.h"
#include "tools/bench/svg.h"

namespace smartgen::tools::bench {
namespace {

template <typename T>
void AddOnce(std::vector<T>& list, const T& value) {
  if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
}

// What file names consist of anywhere; everything else is left out.
std::string FileName(const std::string& text) {
  std::string name;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (plain || c == '.' || c == '_') name += c;
  }
  return name;
}

std::vector<const Cell*> CellsOf(const Measurements& measurements, int length) {
  std::vector<const Cell*> cells;
  for (const Cell& cell : measurements.cells) {
    if (cell.calibration.length == length) cells.push_back(&cell);
  }
  return cells;
}

std::string SecondTokenPlot(const Setting& setting, const Measurements& measurements, int length) {
  BarPlot plot;
  plot.text = {fmt::format("Time to second token, {} prompt tokens", length),
               SettingLine(setting, measurements), "link: transfer time / prefill time",
               "seconds from arrival to token 2"};
  const std::vector<const Cell*> cells = CellsOf(measurements, length);
  std::vector<std::string> cases;
  for (const Cell* cell : cells) {
    AddOnce(plot.groups, LinkName(cell->link));
    AddOnce(cases, cell->what.name);
  }
  for (const std::string& name : cases) {
    BarPlot::Series series{name, std::vector<std::optional<Spread>>(plot.groups.size())};
    for (const Cell* cell : cells) {
      if (cell->what.name != name) continue;
      const auto group = std::find(plot.groups.begin(), plot.groups.end(), LinkName(cell->link));
      series.values[static_cast<size_t>(group - plot.groups.begin())] = Summarize(*cell).e2e;
    }
    plot.series.push_back(std::move(series));
  }
  return ToSvg(plot);
}

std::string TokenTimesPlot(const Setting& setting, const Measurements& measurements, int length,
                           const std::string& link) {
  LinePlot plot;
  plot.text = {fmt::format("Time to the n-th token, {} prompt tokens, {}", length, link),
               SettingLine(setting, measurements), "n", "seconds from arrival (median)"};
  for (const Cell* cell : CellsOf(measurements, length)) {
    if (LinkName(cell->link) != link) continue;
    LinePlot::Series series;
    series.name = cell->what.name;
    double n = 0;
    for (const double seconds : Summarize(*cell).ctl) series.points.emplace_back(++n, seconds);
    plot.series.push_back(std::move(series));
  }
  return ToSvg(plot);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> Plots(const Setting& setting,
                                                       const Measurements& measurements) {
  std::vector<std::pair<std::string, std::string>> files;
  std::vector<int> lengths;
  for (const Cell& cell : measurements.cells) AddOnce(lengths, cell.calibration.length);
  for (const int length : lengths) {
    files.emplace_back(fmt::format("ttst_{}.svg", length),
                       SecondTokenPlot(setting, measurements, length));
    std::vector<std::string> links;
    for (const Cell* cell : CellsOf(measurements, length)) AddOnce(links, LinkName(cell->link));
    for (const std::string& link : links) {
      files.emplace_back(FileName(fmt::format("ctl_{}_{}.svg", length, link)),
                         TokenTimesPlot(setting, measurements, length, link));
    }
  }
  return files;
}

}  // namespace smartgen::tools::bench
