// Measurements as a table, as JSON and as plots.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tools/bench/experiment.h"

namespace smartgen::tools::bench {

// How the measurements were made, for every output.
struct Setting {
  std::string benchmark;  // "ttst"
  std::string command;    // as typed
  std::string date;
  std::string link;        // Network::Describe
  std::string short_link;  // Network::ShortName
  bool shaped = false;
  std::vector<std::string> texts;
  int prompts = 0;
  int tokens = 0;
  int prefills = 1;
  int prefill_threads = 0;  // 0: not known
  int decode_threads = 0;
  std::vector<std::string> overrides;
};

// Markdown tables with their headings: times, steps, bytes.
std::string RenderTables(const Setting& setting, const Measurements& measurements);
nlohmann::ordered_json ToJson(const Setting& setting, const Measurements& measurements);
nlohmann::ordered_json ToJson(const ModelFacts& model);
// File name (no folder) and SVG text: time to second token by case and link for each length, and
// the time of each token for each length and link.
std::vector<std::pair<std::string, std::string>> Plots(const Setting& setting,
                                                       const Measurements& measurements);

// The name of a cell's link in plots and file names: "R = 4.7", "100 Mbit/s".
std::string LinkName(const Link& link);
// One line on model, machine and link, for subtitles.
std::string SettingLine(const Setting& setting, const Measurements& measurements);

}  // namespace smartgen::tools::bench
