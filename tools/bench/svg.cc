#include "tools/bench/svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <set>

namespace smartgen::tools::bench {
namespace {

// Told apart by people with any colour vision (after Okabe and Ito).
constexpr std::array<const char*, 8> kColours = {"#0072b2", "#e69f00", "#009e73", "#d55e00",
                                                 "#cc79a7", "#56b4e9", "#8c6d00", "#444444"};
constexpr double kWidth = 860;
constexpr double kHeight = 460;
constexpr double kLeft = 70;
constexpr double kRight = 20;
constexpr double kTop = 92;  // title, subtitle, legend
constexpr double kBottom = 56;
constexpr double kLegendRow = 18;
constexpr double kCharWidth = 7.0;  // of the legend's letters, about

std::string Escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        // Control characters are not allowed in XML at all.
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string Number(double value) {
  if (value == 0) return "0";
  const double size = std::abs(value);
  return size >= 100  ? fmt::format("{:.0f}", value)
         : size >= 10 ? fmt::format("{:.1f}", value)
         : size >= 1  ? fmt::format("{:.2f}", value)
                      : fmt::format("{:.3f}", value);
}

const char* Colour(size_t index) { return kColours[index % kColours.size()]; }

struct Swatch {
  const char* colour = nullptr;
  bool dashed = false;
};

// The frame that both kinds of plots share, and where values go in it.
class Canvas {
 public:
  // `swatches`: of the names, in the legend. y_min <= 0: values go down to it.
  Canvas(const PlotText& text, const std::vector<std::string>& names, double y_min, double y_max,
         const std::vector<Swatch>& swatches) {
    ticks_ = Ticks(std::max(y_max, -y_min));
    const double step = ticks_[1];
    while (ticks_.size() > 2 && ticks_[ticks_.size() - 2] >= y_max) ticks_.pop_back();
    while (ticks_.front() > y_min) ticks_.insert(ticks_.begin(), ticks_.front() - step);
    const double rows = LegendRows(names);
    top_ = kTop + (rows - 1) * kLegendRow;
    height_ = kHeight + (rows - 1) * kLegendRow;
    out_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:g} {:g}\" "
        "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#222\">\n"
        "<rect width=\"{:g}\" height=\"{:g}\" fill=\"#fff\"/>\n",
        kWidth, height_, kWidth, height_);
    Text(kLeft, 24, text.title, "font-size=\"16\" font-weight=\"bold\"");
    Text(kLeft, 43, text.subtitle, "fill=\"#666\" font-size=\"11\"");
    Legend(names, swatches);
    for (const double tick : ticks_) {
      Line(kLeft, Y(tick), kWidth - kRight, Y(tick), tick == 0 ? "#444" : "#ddd", 1);
      Text(kLeft - 8, Y(tick) + 4, fmt::format("{:g}", tick), "text-anchor=\"end\"");
    }
    Text((kLeft + kWidth - kRight) / 2, height_ - 12, text.x_label, "text-anchor=\"middle\"");
    Text(0, 0, text.y_label,
         fmt::format("text-anchor=\"middle\" transform=\"translate(18 {:g}) rotate(-90)\"",
                     (top_ + bottom()) / 2));
  }

  double Y(double value) const {
    const double share = (value - ticks_.front()) / (ticks_.back() - ticks_.front());
    return bottom() - share * (bottom() - top_);
  }
  double bottom() const { return height_ - kBottom; }
  static double Left() { return kLeft; }
  static double Span() { return kWidth - kLeft - kRight; }

  void Text(double x, double y, const std::string& text, const std::string& attributes) {
    out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, attributes,
                        Escape(text));
  }
  void Line(double x1, double y1, double x2, double y2, const char* colour, double width) {
    out_ += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
        "stroke-width=\"{:g}\"/>\n",
        x1, y1, x2, y2, colour, width);
  }
  void Add(const std::string& element) { out_ += element; }
  std::string Finish() { return out_ + "</svg>\n"; }

 private:
  static double EntryWidth(const std::string& name) {
    return 32 + kCharWidth * static_cast<double>(name.size());
  }
  static double LegendRows(const std::vector<std::string>& names) {
    double rows = 1;
    double x = kLeft;
    for (const std::string& name : names) {
      if (x + EntryWidth(name) > kWidth && x > kLeft) {
        ++rows;
        x = kLeft;
      }
      x += EntryWidth(name);
    }
    return rows;
  }
  void Legend(const std::vector<std::string>& names, const std::vector<Swatch>& swatches) {
    double x = kLeft;
    double y = 66;
    for (size_t i = 0; i < names.size(); ++i) {
      if (x + EntryWidth(names[i]) > kWidth && x > kLeft) {
        x = kLeft;
        y += kLegendRow;
      }
      if (swatches[i].dashed) {
        Line(x, y - 4, x + 5, y - 4, swatches[i].colour, 3);
        Line(x + 8, y - 4, x + 13, y - 4, swatches[i].colour, 3);
      } else {
        Add(fmt::format(
            "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"12\" height=\"12\" fill=\"{}\"/>\n", x, y - 10,
            swatches[i].colour));
      }
      Text(x + 17, y, names[i], "");
      x += EntryWidth(names[i]);
    }
  }

  std::string out_;
  std::vector<double> ticks_;
  double top_ = kTop;
  double height_ = kHeight;
};

template <typename Plot>
std::vector<std::string> Names(const Plot& plot) {
  std::vector<std::string> names;
  for (const auto& series : plot.series) names.push_back(series.name);
  return names;
}

std::vector<Swatch> Swatches(const BarPlot& plot) {
  std::vector<Swatch> swatches;
  for (size_t i = 0; i < plot.series.size(); ++i) swatches.push_back({Colour(i)});
  return swatches;
}

std::vector<Swatch> Swatches(const LinePlot& plot) {
  std::vector<Swatch> swatches;
  for (size_t i = 0; i < plot.series.size(); ++i) {
    const LinePlot::Series& series = plot.series[i];
    const size_t colour = series.colour >= 0 ? static_cast<size_t>(series.colour) : i;
    swatches.push_back({Colour(colour), series.dashed});
  }
  return swatches;
}

// Every x of the plot once, ascending.
std::vector<double> AllX(const LinePlot& plot) {
  std::set<double> all;
  for (const auto& series : plot.series) {
    for (const auto& point : series.points) all.insert(point.first);
  }
  return {all.begin(), all.end()};
}

// Where between the first and the last of `ticks` x lies, in logarithms; 0.5 where they are one.
double LogShare(double x, const std::vector<double>& ticks) {
  if (ticks.size() < 2) return 0.5;
  return std::log(x / ticks.front()) / std::log(ticks.back() / ticks.front());
}

}  // namespace

std::vector<double> Ticks(double max) {
  if (!(max > 0) || !std::isfinite(max)) return {0, 1};
  const double magnitude = std::pow(10, std::floor(std::log10(max)));
  double step = magnitude;
  for (const double factor : {0.2, 0.25, 0.5, 1.0, 2.0}) {
    step = factor * magnitude;
    if (max / step <= 6) break;
  }
  std::vector<double> ticks;
  for (int i = 0; ticks.empty() || ticks.back() < max; ++i) ticks.push_back(i * step);
  return ticks;
}

std::string ToSvg(const BarPlot& plot) {
  double max = 0;
  for (const auto& series : plot.series) {
    for (const auto& value : series.values) max = std::max(max, value ? value->max : 0);
  }
  Canvas canvas(plot.text, Names(plot), 0, max * 1.06, Swatches(plot));  // room for the figures
  const double group =
      Canvas::Span() / static_cast<double>(std::max<size_t>(plot.groups.size(), 1));
  const double bar = group * 0.84 / static_cast<double>(std::max<size_t>(plot.series.size(), 1));
  for (size_t g = 0; g < plot.groups.size(); ++g) {
    const double left = Canvas::Left() + group * (static_cast<double>(g) + 0.08);
    canvas.Text(left + group * 0.42, canvas.bottom() + 18, plot.groups[g],
                "text-anchor=\"middle\"");
    for (size_t s = 0; s < plot.series.size(); ++s) {
      const auto& values = plot.series[s].values;
      if (g >= values.size() || !values[g]) continue;
      const double x = left + bar * static_cast<double>(s);
      const double y = canvas.Y(values[g]->median);
      canvas.Add(fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", x,
          y, std::max(bar - 2, 1.0), canvas.bottom() - y, Colour(s)));
      const double middle = x + std::max(bar - 2, 1.0) / 2;
      canvas.Line(middle, canvas.Y(values[g]->min), middle, canvas.Y(values[g]->max), "#222", 1.2);
      canvas.Text(middle, canvas.Y(values[g]->max) - 4, Number(values[g]->median),
                  "text-anchor=\"middle\" font-size=\"10\"");
    }
  }
  return canvas.Finish();
}

std::string ToSvg(const LinePlot& plot) {
  double x_max = 0;
  double y_min = 0;
  double y_max = 0;
  for (const auto& series : plot.series) {
    for (const auto& [x, y] : series.points) {
      x_max = std::max(x_max, x);
      y_min = std::min(y_min, y);
      y_max = std::max(y_max, y);
    }
  }
  Canvas canvas(plot.text, Names(plot), y_min, y_max, Swatches(plot));
  const std::vector<double> x_ticks = plot.log_x ? AllX(plot) : Ticks(x_max);
  const auto to_x = [&](double x) {
    const double share = plot.log_x ? LogShare(x, x_ticks) : x / x_ticks.back();
    return Canvas::Left() + share * Canvas::Span();
  };
  for (const double tick : x_ticks) {
    canvas.Text(to_x(tick), canvas.bottom() + 18, fmt::format("{:g}", tick),
                "text-anchor=\"middle\"");
  }
  const std::vector<Swatch> swatches = Swatches(plot);
  for (size_t s = 0; s < plot.series.size(); ++s) {
    std::string points;
    for (const auto& [x, y] : plot.series[s].points) {
      points += fmt::format("{:.1f},{:.1f} ", to_x(x), canvas.Y(y));
    }
    canvas.Add(fmt::format(
        "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{} points=\"{}\"/>\n",
        swatches[s].colour, swatches[s].dashed ? " stroke-dasharray=\"6 4\"" : "", points));
  }
  return canvas.Finish();
}

absl::Status WriteTextFile(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  if (!out.flush()) return base::Unavailable("cannot write {}", path);
  return absl::OkStatus();
}

}  // namespace smartgen::tools::bench
