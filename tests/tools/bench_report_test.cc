#include "tools/bench/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tools/bench/counters.h"
#include "tools/bench/summary.h"
#include "tools/bench/svg.h"
#include "tools/bench/table.h"

namespace smartgen::tools::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

TEST(TableTest, ColumnsAreAlignedAndEmptyOnesLeftOut) {
  Table table;
  table.AddColumn("n");
  table.AddColumn("name", /*left=*/true);
  table.AddColumn("unknown");
  table.AddRow({"1", "a–b", ""});
  table.AddRow({"100", "", ""});
  EXPECT_EQ(table.Render(),
            "|   n | name |\n"
            "|----:|------|\n"
            "|   1 | a–b  |\n"
            "| 100 | -    |\n");
}

// Every element is closed, in order, and text holds no bare special character: what a parser asks
// for of documents as plain as ours.
bool WellFormed(const std::string& xml) {
  std::vector<std::string> open;
  for (size_t at = 0; at < xml.size();) {
    if (xml[at] == '&') {
      const size_t end = xml.find(';', at);
      const std::string entity = xml.substr(at, end - at + 1);
      if (entity != "&amp;" && entity != "&lt;" && entity != "&gt;" && entity != "&quot;") {
        return false;
      }
    }
    if (xml[at] != '<') {
      ++at;
      continue;
    }
    const size_t end = xml.find('>', at);
    if (end == std::string::npos) return false;
    const std::string tag = xml.substr(at + 1, end - at - 1);
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0) return false;
    const std::string name =
        tag.substr(tag[0] == '/', tag.find_first_of(" /", 1) - (tag[0] == '/'));
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return false;
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
    at = end + 1;
  }
  return open.empty();
}

TEST(SvgTest, TicksAreRoundAndReachTheLargestValue) {
  EXPECT_THAT(Ticks(5), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(Ticks(0), ElementsAre(0, 1));
  for (const double max : {0.0013, 0.9, 1.0, 7.3, 42.0, 64.0, 1001.0}) {
    const std::vector<double> ticks = Ticks(max);
    EXPECT_GE(ticks.back(), max);
    EXPECT_GE(ticks.size(), 4u) << max;
    EXPECT_LE(ticks.size(), 8u) << max;
  }
}

TEST(SvgTest, BarsAreWellFormedWhateverTheNamesHold) {
  BarPlot plot;
  plot.text = {"<T> & \"U\"", "sub", "x", "y"};
  plot.groups = {"R = 2", "R < 5"};
  plot.series = {{"a&b", {Spread{1, 0.5, 2}, std::nullopt}},
                 {"c", {Spread{2, 1, 3}, Spread{3, 3, 3}}}};
  const std::string svg = ToSvg(plot);
  EXPECT_TRUE(WellFormed(svg)) << svg;
  EXPECT_THAT(svg, HasSubstr("&lt;T&gt; &amp; &quot;U&quot;"));
  EXPECT_THAT(svg, HasSubstr(">a&amp;b<"));
}

TEST(SvgTest, BarsStandForTheirValues) {
  BarPlot plot;
  plot.groups = {"g"};
  plot.series = {{"one", {Spread{1, 1, 1}}}, {"two", {Spread{2, 2, 2}}}};
  const std::string svg = ToSvg(plot);
  std::vector<double> heights;
  for (size_t at = svg.find("<rect x=", svg.find("rotate")); at != std::string::npos;
       at = svg.find("<rect x=", at + 1)) {
    heights.push_back(std::stod(svg.substr(svg.find("height=\"", at) + 8)));
  }
  ASSERT_EQ(heights.size(), 2u);
  EXPECT_NEAR(heights[1], 2 * heights[0], 0.2);
}

TEST(SvgTest, LinesAreWellFormedAndHaveEveryPoint) {
  LinePlot plot;
  plot.text = {"t", "s", "n", "seconds"};
  plot.series = {{"a", {{1, 1}, {2, 3}, {3, 4}}, false}, {"b", {{1, 2}}, true}};
  const std::string svg = ToSvg(plot);
  EXPECT_TRUE(WellFormed(svg)) << svg;
  const size_t at = svg.find("points=\"") + 8;
  const std::string points = svg.substr(at, svg.find('"', at) - at);
  EXPECT_EQ(std::count(points.begin(), points.end(), ','), 3);
}

TEST(SvgTest, APlotOfNothingIsWellFormed) {
  EXPECT_TRUE(WellFormed(ToSvg(BarPlot())));
  EXPECT_TRUE(WellFormed(ToSvg(LinePlot())));
}

constexpr const char* kMetrics =
    "# HELP smartgen_transfer_bytes_total Bytes\n"
    "smartgen_transfer_bytes_total{path=\"full\",direction=\"sent\"} 100\n"
    "smartgen_transfer_bytes_total{path=\"ondemand\",direction=\"sent\"} 5\n"
    "smartgen_transfer_bytes_total{path=\"full\",direction=\"received\"} 7\n"
    "smartgen_kv_pages{state=\"free\"} 12\n"
    "smartgen_ttft_seconds_bucket{le=\"1\"} 3\n"
    "smartgen_ttft_seconds_sum 1.5e1\n";

TEST(CountersTest, WhatOnlyGrowsIsRead) {
  EXPECT_THAT(ParseCounters(kMetrics),
              UnorderedElementsAre(
                  Pair("smartgen_transfer_bytes_total{path=\"full\",direction=\"sent\"}", 100),
                  Pair("smartgen_transfer_bytes_total{path=\"ondemand\",direction=\"sent\"}", 5),
                  Pair("smartgen_transfer_bytes_total{path=\"full\",direction=\"received\"}", 7),
                  Pair("smartgen_ttft_seconds_sum", 15)));
}

TEST(CountersTest, GrowthLeavesOutWhatHasNotGrown) {
  const Counters growth =
      Growth({{"a_total", 1}, {"b_total", 2}}, {{"a_total", 4}, {"b_total", 2}, {"c_total", 1}});
  EXPECT_THAT(growth, UnorderedElementsAre(Pair("a_total", 3), Pair("c_total", 1)));
}

TEST(CountersTest, ValuesByALabel) {
  EXPECT_THAT(ByLabel(ParseCounters(kMetrics), "smartgen_transfer_bytes_total", "path",
                      "direction=\"sent\""),
              UnorderedElementsAre(Pair("full", 100), Pair("ondemand", 5)));
}

bench::Run MakeRun(std::vector<double> seconds, std::optional<int64_t> difference = -1) {
  bench::Run run;
  run.generation.token_seconds = std::move(seconds);
  run.generation.tokens.assign(run.generation.token_seconds.size(), 7);
  run.generation.texts["mode"] = "mode_full";
  run.first_difference = difference;
  return run;
}

Cell MakeCell(const std::string& mode, std::vector<bench::Run> runs) {
  Cell cell;
  cell.calibration = {1024, 1000, {1}, 1, 1, 0.1};
  cell.link.wish.ratio = 2;
  cell.what = {mode, mode, {}, 1, 0};
  cell.runs = std::move(runs);
  for (bench::Run& run : cell.runs) run.generation.texts["mode"] = "mode_" + mode;
  return cell;
}

TEST(SummaryTest, MediansOverRuns) {
  const Summary summary = Summarize(
      MakeCell("full", {MakeRun({1, 2, 2.5}), MakeRun({1, 4, 4.25}), MakeRun({2, 9, 9.75})}));
  EXPECT_EQ(summary.e2e->median, 4);
  EXPECT_EQ(summary.e2e->min, 2);
  EXPECT_EQ(summary.e2e->max, 9);
  EXPECT_EQ(summary.gap->median, 3);
  EXPECT_DOUBLE_EQ(summary.tbt_mean, 0.5);
  EXPECT_THAT(summary.ctl, ElementsAre(1, 4, 4.25));
  EXPECT_EQ(summary.equal, 3);
}

TEST(SummaryTest, AFailedRunCountsForNothingButIsCounted) {
  bench::Run failed = MakeRun({100});
  failed.generation.status = base::Unavailable("gone");
  const Summary summary = Summarize(MakeCell("full", {MakeRun({1, 2}), failed}));
  EXPECT_EQ(summary.failed, 1);
  EXPECT_EQ(summary.first_error, "gone");
  EXPECT_EQ(summary.ttft->max, 1);
}

TEST(SummaryTest, TheFirstOfAllDifferencesIsNamed) {
  const Summary summary = Summarize(MakeCell(
      "full", {MakeRun({1, 2}, 9), MakeRun({1, 2}, 4), MakeRun({1, 2}), MakeRun({1, 2}, {})}));
  EXPECT_EQ(summary.compared, 3);
  EXPECT_EQ(summary.equal, 1);
  EXPECT_EQ(summary.first_difference, 4);
}

TEST(SummaryTest, AnotherModeThanAskedForIsNamed) {
  Cell cell = MakeCell("full", {MakeRun({1, 2})});
  cell.runs[0].generation.texts["mode"] = "mode_local";
  cell.runs[0].generation.texts["fallback_reason"] = "no room";
  EXPECT_EQ(Summarize(cell).served_otherwise, "mode_local (no room)");
}

TEST(SummaryTest, BytesArePerRequest) {
  Cell cell = MakeCell("full", {MakeRun({1, 2}), MakeRun({1, 2})});
  cell.prefill = ParseCounters(kMetrics);
  const Summary summary = Summarize(cell);
  EXPECT_THAT(summary.bytes, UnorderedElementsAre(Pair("full", 50), Pair("ondemand", 2.5)));
  EXPECT_EQ(summary.bytes_total, 52.5);
}

TEST(SummaryTest, TokensBeforeAndAfterAllWasLocalAreToldApart) {
  Cell cell = MakeCell("exact", {MakeRun({1, 2, 4, 6, 6.5, 7})});
  auto& numbers = cell.runs[0].generation.numbers;
  numbers["all_local_seconds"] = 6.2;  // within the step from 6 to 6.5, which counts for neither
  numbers["selected_entries"] = 200;
  numbers["remote_entries"] = 10;
  numbers["handover_steps"] = 3;
  const Summary summary = Summarize(cell);
  EXPECT_EQ(summary.all_local_seconds, 6.2);
  EXPECT_EQ(summary.tbt_before, 2);
  EXPECT_EQ(summary.tbt_after, 0.5);
  EXPECT_EQ(summary.ondemand_ratio, 0.05);
  EXPECT_EQ(summary.handover_steps, 3);
  EXPECT_FALSE(summary.wait_steps.has_value());
}

TEST(SummaryTest, ThePrefillSidesTimeIsPerRequestAndOverAllKinds) {
  Cell cell = MakeCell("exact", {MakeRun({1, 2}), MakeRun({1, 2})});
  cell.prefill = {{"smartgen_handover_seconds_total{kind=\"split\"}", 3},
                  {"smartgen_handover_seconds_total{kind=\"attend\"}", 1}};
  EXPECT_EQ(Summarize(cell).handover_seconds, 2);
}

TEST(SummaryTest, WithoutCountersTheBytesAreThoseThatArrived) {
  Cell cell = MakeCell("full", {MakeRun({1, 2})});
  cell.runs[0].generation.numbers["path_bytes.full"] = 77;
  EXPECT_THAT(Summarize(cell).bytes, ElementsAre(Pair("full", 77)));
}

TEST(SummaryTest, TheReferenceHasTheSameLinkBatchAndPrefixHit) {
  std::vector<Cell> cells = {MakeCell("full", {}), MakeCell("full", {}), MakeCell("full", {})};
  cells[0].link.wish.ratio = 7;
  cells[1].what.batch = 4;
  cells[1].what.name = "full batch 4";
  Cell like = MakeCell("exact", {});
  EXPECT_EQ(FindReference(cells, like, "full"), &cells[2]);
  like.what.batch = 4;
  EXPECT_EQ(FindReference(cells, like, "full"), &cells[1]);
  EXPECT_EQ(FindReference(cells, like, "local"), nullptr);
}

TEST(SummaryTest, TokensFromAPrefixCacheThatShouldBeOffAreSeen) {
  Cell cell = MakeCell("full", {MakeRun({1, 2})});
  cell.runs[0].generation.numbers["cached_tokens"] = 32;
  EXPECT_EQ(Summarize(cell).unwanted_cached_tokens, 32);
  cell.what.prefix_hit = 0.75;
  EXPECT_EQ(Summarize(cell).unwanted_cached_tokens, 0);
}

Measurements Two() {
  Measurements m;
  m.model.name = "m";
  m.cells.push_back(MakeCell("full", {MakeRun({1, 4, 5})}));
  m.cells.push_back(MakeCell("exact", {MakeRun({1, 2, 3}, 1)}));
  return m;
}

TEST(ReportTest, TheTableHasTheGainOverFullAndTheFirstDifference) {
  const std::string text = RenderTables({.prompts = 1, .tokens = 3}, Two());
  EXPECT_THAT(text, HasSubstr("2.00x"));
  EXPECT_THAT(text, HasSubstr("no: 1 of 1, first at 1"));
  // Nobody exported these.
  EXPECT_THAT(text, Not(HasSubstr("handover")));
}

TEST(ReportTest, JsonHasEveryRun) {
  const auto json = ToJson({.benchmark = "ttst"}, Two());
  EXPECT_EQ(json["cells"].size(), 2u);
  EXPECT_EQ(json["cells"][1]["summary"]["sooner_than_full"], 2.0);
  EXPECT_EQ(json["cells"][1]["runs"][0]["token_seconds"].size(), 3u);
  EXPECT_EQ(json["cells"][1]["runs"][0]["first_difference"], 1);
  EXPECT_FALSE(json["cells"][1]["summary"].contains("ondemand_ratio"));
}

TEST(ReportTest, APlotForEachLengthAndEachLink) {
  std::vector<std::string> names;
  for (const auto& [name, svg] : Plots({}, Two())) {
    names.push_back(name);
    EXPECT_TRUE(WellFormed(svg)) << name;
  }
  EXPECT_THAT(names, ElementsAre("ttst_1024.svg", "ctl_1024_R2.svg"));
}

}  // namespace
}  // namespace smartgen::tools::bench
