// Plots as SVG files: bars in groups, and lines. No dependencies; text stays text.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "tools/bench/figures.h"

namespace smartgen::tools::bench {

struct PlotText {
  std::string title;
  std::string subtitle;  // how it was measured
  std::string x_label;
  std::string y_label;
};

// Height: the median, with its figure above; whisker: minimum to maximum.
struct BarPlot {
  PlotText text;
  std::vector<std::string> groups;
  struct Series {
    std::string name;
    std::vector<std::optional<Spread>> values;  // one a group; none: no bar
  };
  std::vector<Series> series;
};

struct LinePlot {
  PlotText text;
  struct Series {
    std::string name;
    std::vector<std::pair<double, double>> points;  // ascending x
    bool dashed = false;
    int colour = -1;  // as the series of that index; -1: its own
  };
  std::vector<Series> series;
  bool log_x = false;  // x > 0; each x has its tick
};

// Whole SVG documents. Any text is allowed in names and labels.
std::string ToSvg(const BarPlot& plot);
std::string ToSvg(const LinePlot& plot);

// Round numbers from 0 to at least `max`, some 4 to 7 of them. For max <= 0: 0 and 1.
std::vector<double> Ticks(double max);

// Writes a file; Unavailable names it.
absl::Status WriteTextFile(const std::string& path, const std::string& text);

}  // namespace smartgen::tools::bench
