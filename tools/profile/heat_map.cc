#include "tools/profile/heat_map.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "common/base/status.h"

namespace smartgen::tools::profile {
namespace {

constexpr int kColumns = 256;
constexpr double kLeft = 62;
constexpr double kRight = 20;
constexpr double kCellWidth = 3;
constexpr double kCellHeight = 9;
constexpr double kTop = 58;
constexpr double kPanelTitle = 22;
constexpr double kPanelGap = 40;  // ticks and room
constexpr double kBottom = 74;    // axis and legend
constexpr int kLevels = 32;       // of colour
// Cells above are drawn in the deepest colour, so that a few sinks do not wash out the rest.
constexpr double kScaleQuantile = 0.99;
constexpr const char* kAlwaysSent = "#d9d9d9";

// From little to much: light to dark, and readable without colour.
std::string Colour(double share) {
  struct Stop {
    double r, g, b;
  };
  constexpr std::array<Stop, 5> kStops = {
      {{247, 251, 255}, {158, 202, 225}, {66, 146, 198}, {8, 69, 148}, {3, 19, 43}}};
  const double at = std::clamp(share, 0.0, 1.0) * (kStops.size() - 1);
  const auto i = std::min(static_cast<size_t>(at), kStops.size() - 2);
  const double f = at - static_cast<double>(i);
  const auto mix = [&](double a, double b) {
    return static_cast<int>(std::lround(a + f * (b - a)));
  };
  return fmt::format("#{:02x}{:02x}{:02x}", mix(kStops[i].r, kStops[i + 1].r),
                     mix(kStops[i].g, kStops[i + 1].g), mix(kStops[i].b, kStops[i + 1].b));
}

std::string Escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else {
      // Control characters are not allowed in XML at all.
      out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

double Scale(const HeatMap& map) {
  std::vector<float> all;
  for (const HeatMap::Panel& panel : map.panels) {
    for (const auto& row : panel.rows) all.insert(all.end(), row.begin(), row.end());
  }
  if (all.empty()) return 1;
  const auto at = all.begin() +
                  static_cast<std::ptrdiff_t>(kScaleQuantile * static_cast<double>(all.size() - 1));
  std::nth_element(all.begin(), at, all.end());
  return *at > 0 ? *at : 1;
}

class Picture {
 public:
  Picture(double width, double height) {
    out_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:g} {:g}\" "
        "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"11\" fill=\"#222\">\n"
        "<rect width=\"{:g}\" height=\"{:g}\" fill=\"#fff\"/>\n",
        width, height, width, height);
  }
  void Text(double x, double y, const std::string& text, const char* attributes) {
    out_ +=
        fmt::format("<text x=\"{:g}\" y=\"{:g}\" {}>{}</text>\n", x, y, attributes, Escape(text));
  }
  void Rectangle(double x, double y, double width, double height, const std::string& fill) {
    out_ +=
        fmt::format("<rect x=\"{:g}\" y=\"{:g}\" width=\"{:g}\" height=\"{:g}\" fill=\"{}\"/>\n", x,
                    y, width, height, fill);
  }
  // All cells of one colour are one path: a tenth of the size of a rectangle each.
  void Cells(const HeatMap::Panel& panel, double top, double scale) {
    std::map<int, std::string> paths;
    for (size_t layer = 0; layer < panel.rows.size(); ++layer) {
      const double y = top + static_cast<double>(layer) * kCellHeight;
      const std::vector<float>& row = panel.rows[layer];
      for (size_t begin = 0, end = 0; begin < row.size(); begin = end) {
        const int level = Level(row[begin], scale);
        while (end < row.size() && Level(row[end], scale) == level) ++end;
        const double width = static_cast<double>(end - begin) * kCellWidth;
        paths[level] += fmt::format("M{:g} {:g}h{:g}v{:g}h{:g}z",
                                    kLeft + static_cast<double>(begin) * kCellWidth, y, width,
                                    kCellHeight, -width);
      }
    }
    for (const auto& [level, path] : paths) {
      out_ += fmt::format("<path fill=\"{}\" d=\"{}\"/>\n",
                          Colour(static_cast<double>(level) / (kLevels - 1)), path);
    }
  }
  std::string Take() { return std::move(out_) + "</svg>\n"; }

 private:
  static int Level(double value, double scale) {
    return static_cast<int>(std::lround(std::clamp(value / scale, 0.0, 1.0) * (kLevels - 1)));
  }

  std::string out_;
};

void DrawPanel(Picture& picture, const HeatMap::Panel& panel, double top, double width,
               double scale) {
  picture.Text(kLeft, top - 7, panel.title, "font-weight=\"bold\"");
  picture.Cells(panel, top, scale);
  for (size_t layer = 0; layer < panel.rows.size(); ++layer) {
    const double y = top + static_cast<double>(layer) * kCellHeight;
    if (panel.rows[layer].empty()) picture.Rectangle(kLeft, y, width, kCellHeight, kAlwaysSent);
    if (layer % 5 == 0) {
      picture.Text(kLeft - 6, y + kCellHeight - 0.5, fmt::format("{}", layer),
                   "text-anchor=\"end\"");
    }
  }
  const double bottom = top + static_cast<double>(panel.rows.size()) * kCellHeight;
  picture.Text(kLeft - 28, (top + bottom) / 2, "layer", "text-anchor=\"end\"");
  for (int percent = 0; percent <= 100; percent += 25) {
    const double x = kLeft + width * percent / 100;
    picture.Rectangle(x - 0.5, bottom, 1, 4, "#444");
    picture.Text(x, bottom + 16, fmt::format("{} %", percent), "text-anchor=\"middle\"");
  }
}

}  // namespace

std::vector<float> Downsample(std::span<const float> row, int columns) {
  std::vector<float> out(static_cast<size_t>(columns));
  for (size_t column = 0; column < out.size(); ++column) {
    const size_t begin = column * row.size() / out.size();
    const size_t end = (column + 1) * row.size() / out.size();
    double sum = 0;
    int count = 0;
    for (size_t i = begin; i < end; ++i) {
      if (std::isnan(row[i])) continue;
      sum += row[i];
      ++count;
    }
    out[column] = count > 0 ? static_cast<float>(sum / count) : 0.0f;
  }
  return out;
}

HeatMap::Panel PanelOf(const std::vector<transfer::Profile::Row>& rows, std::string title) {
  HeatMap::Panel panel{.title = std::move(title)};
  for (size_t layer = 0; layer < rows.size(); ++layer) {
    panel.rows.push_back(layer < transfer::kDenseLayers ? std::vector<float>{}
                                                        : Downsample(rows[layer], kColumns));
  }
  return panel;
}

HeatMap::Panel PanelOf(const transfer::Profile& profile, std::string title) {
  std::vector<transfer::Profile::Row> rows(static_cast<size_t>(profile.layers()));
  for (int layer = transfer::kDenseLayers; layer < profile.layers(); ++layer) {
    for (int block = 0; block < transfer::kBlocks; ++block) {
      rows[layer][block] = profile.Importance(layer, block);
    }
  }
  return PanelOf(rows, std::move(title));
}

std::string ToSvg(const HeatMap& map) {
  size_t columns = 1;
  double height = kTop + kBottom - kPanelGap;
  for (const HeatMap::Panel& panel : map.panels) {
    for (const auto& row : panel.rows) columns = std::max(columns, row.size());
    height += kPanelTitle + static_cast<double>(panel.rows.size()) * kCellHeight + kPanelGap;
  }
  const double width = static_cast<double>(columns) * kCellWidth;
  const double scale = Scale(map);
  Picture picture(kLeft + width + kRight, height);
  picture.Text(kLeft, 24, map.title, "font-size=\"16\" font-weight=\"bold\"");
  picture.Text(kLeft, 42, map.subtitle, "fill=\"#666\"");
  double top = kTop;
  for (const HeatMap::Panel& panel : map.panels) {
    top += kPanelTitle;
    DrawPanel(picture, panel, top, width, scale);
    top += static_cast<double>(panel.rows.size()) * kCellHeight + kPanelGap;
  }
  picture.Text(kLeft + width / 2, height - 40, "relative position in the prompt",
               "text-anchor=\"middle\"");
  constexpr double kLegend = 160;
  for (int i = 0; i < kLevels; ++i) {
    picture.Rectangle(kLeft + i * kLegend / kLevels, height - 24, kLegend / kLevels + 0.3, 10,
                      Colour(static_cast<double>(i) / (kLevels - 1)));
  }
  picture.Text(kLeft - 6, height - 15, "0", "text-anchor=\"end\"");
  picture.Text(kLeft + kLegend + 6, height - 15,
               fmt::format("selected in {:.0f} % of the steps or more", scale * 100),
               "text-anchor=\"start\"");
  picture.Rectangle(kLeft + kLegend + 250, height - 24, 20, 10, kAlwaysSent);
  picture.Text(kLeft + kLegend + 276, height - 15, "always sent", "text-anchor=\"start\"");
  return picture.Take();
}

}  // namespace smartgen::tools::profile
