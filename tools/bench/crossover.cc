// bench crossover: from which bandwidth on a prefill machine pays, for one request and its second
// token.
#include <algorithm>
#include <cstdio>

#include "tools/bench/benchmarks.h"
#include "tools/bench/common_options.h"
#include "tools/bench/figures.h"
#include "tools/bench/summary.h"
#include "tools/bench/svg.h"
#include "tools/bench/table.h"

namespace smartgen::tools::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr Command kCommand = {
    "bench crossover",
    "[--text FILES...] [--bandwidths 20,100,500] [--lengths 1024] [--prefill-threads N] "
    "[-- DAEMON OVERRIDES]",
    "time to the second token of a local prefill against a remote one, predicted and measured; "
    "with --calibration FILE predicted alone, for any length and bandwidth",
    nullptr};
// prefilld's default of max_prefill_tokens.
constexpr int kChunkTokens = 2048;
constexpr const char* kLocal = "local";

struct Options {
  CommonOptions common;
  std::vector<std::string> modes = {"full"};
  std::vector<std::string> bandwidths = {"20", "50", "100", "200", "500"};

  Options() { common.tokens = 4; }
  void Bind(config::Binder& b) {
    common.Bind(b);
    b.Field("modes", &modes, "what local is compared with");
    b.Field("bandwidths", &bandwidths, "of the link, Mbit/s of payload");
  }
};

absl::StatusOr<BenchPlan> MakePlan(const Options& options, const Args& args,
                                   const std::vector<std::string>& overrides) {
  BenchPlan plan;
  plan.benchmark = "crossover";
  plan.command = fmt::format("smartgen bench crossover {}", fmt::join(args, " "));
  CasePlan cases;
  cases.modes = {kLocal};
  cases.modes.insert(cases.modes.end(), options.modes.begin(), options.modes.end());
  ASSIGN_OR_RETURN(plan.cases, MakeCases(cases));
  ASSIGN_OR_RETURN(const auto bandwidths, ParseNumbers("bandwidths", options.bandwidths, 0.1, 1e6));
  for (const double bandwidth : bandwidths) plan.links.push_back({0, bandwidth * 1e6 / 8});
  plan.overrides = overrides;
  return plan;
}

int Pieces(const Measurements& m, const Calibration& c) {
  return m.model.layout.num_layers() * ((c.length + kChunkTokens - 1) / kChunkTokens);
}

std::vector<const Cell*> FirstOfEachLength(const Measurements& m) {
  std::vector<const Cell*> first;
  for (const Cell& cell : m.cells) {
    const auto same = [&](const Cell* c) {
      return c->calibration.length == cell.calibration.length;
    };
    if (std::none_of(first.begin(), first.end(), same)) first.push_back(&cell);
  }
  return first;
}

// None: there is no formula for this mode.
std::optional<double> Predict(const Measurements& m, const Cell& cell) {
  const Calibration& c = cell.calibration;
  if (cell.what.mode == kLocal) return PredictUnhindered(c.local_seconds, c.step_seconds);
  if (cell.what.mode == "exact") return PredictUnhindered(c.t_p, c.step_seconds);
  if (cell.what.mode != "full") return std::nullopt;
  return PredictFull(c.t_p, cell.link.transfer_seconds, Pieces(m, c), c.step_seconds);
}

double Megabits(const Link& link) { return link.bytes_per_second * 8e-6; }

std::string Seconds(const std::optional<double>& value) {
  return value ? fmt::format("{:.3f}", *value) : "";
}

std::string RenderCrossover(const Setting& setting, const Measurements& m) {
  std::string text = fmt::format(
      "{}\nLink: {}\nSeconds from the request's arrival to token 2; medians over {} prompts.\n\n",
      SettingLine(setting, m), setting.link, setting.prompts);
  Table table;
  for (const char* name : {"tokens", "Mbit/s", "T_t / T_p"}) table.AddColumn(name);
  table.AddColumn("case", /*left=*/true);
  for (const char* name : {"predicted", "measured", "min–max", "measured / local"}) {
    table.AddColumn(name);
  }
  for (const Cell& cell : m.cells) {
    const Summary summary = Summarize(cell);
    const Cell* local = FindReference(m.cells, cell, kLocal);
    const auto sooner = Speedup(summary, Summarize(*local));
    table.AddRow(
        {fmt::format("{}", cell.calibration.length), fmt::format("{:.4g}", Megabits(cell.link)),
         fmt::format("{:.2f}", cell.link.ratio), cell.what.name, Seconds(Predict(m, cell)),
         summary.e2e ? Seconds(summary.e2e->median) : "failed",
         summary.e2e ? fmt::format("{:.3f}–{:.3f}", summary.e2e->min, summary.e2e->max) : "",
         sooner ? fmt::format("{:.2f}", *sooner) : ""});
  }
  text += table.Render() + "\n";
  for (const Cell* cell : FirstOfEachLength(m)) {
    const Calibration& c = cell->calibration;
    const auto rate = CrossoverRate(c.kv_bytes, c.t_p, c.local_seconds, Pieces(m, c));
    text += fmt::format("{} tokens: prefill there {:.3f} s, here {:.3f} s; ", c.length, c.t_p,
                        c.local_seconds);
    text +=
        rate ? fmt::format("a full transfer pays from {:.0f} Mbit/s on (predicted)\n", *rate * 8e-6)
             : "a full transfer never pays: the prefill side is no faster\n";
  }
  return text;
}

Json CrossoverJson(const Setting& setting, const Measurements& m) {
  Json json = ToJson(setting, m);
  for (size_t i = 0; i < m.cells.size(); ++i) {
    const auto predicted = Predict(m, m.cells[i]);
    if (predicted) json["cells"][i]["predicted_ttst_e2e_seconds"] = *predicted;
    const Calibration& c = m.cells[i].calibration;
    const auto rate = CrossoverRate(c.kv_bytes, c.t_p, c.local_seconds, Pieces(m, c));
    if (rate) json["cells"][i]["predicted_crossover_bytes_per_second"] = *rate;
  }
  return json;
}

std::string CrossoverPlot(const Setting& setting, const Measurements& m, int length) {
  LinePlot plot;
  plot.text = {fmt::format("Second token by bandwidth, {} prompt tokens", length),
               SettingLine(setting, m), "link, Mbit/s", "seconds from arrival to token 2"};
  plot.log_x = true;
  std::vector<std::string> names;
  for (const Cell& cell : m.cells) {
    if (std::find(names.begin(), names.end(), cell.what.name) == names.end()) {
      names.push_back(cell.what.name);
    }
  }
  for (const std::string& name : names) {
    LinePlot::Series measured;
    measured.name = name;
    measured.colour = static_cast<int>(plot.series.size() / 2);
    LinePlot::Series predicted = measured;
    predicted.name = name + ", predicted";
    predicted.dashed = true;
    for (const Cell& cell : m.cells) {
      if (cell.calibration.length != length || cell.what.name != name) continue;
      const Summary summary = Summarize(cell);
      if (summary.e2e) measured.points.emplace_back(Megabits(cell.link), summary.e2e->median);
      const auto guess = Predict(m, cell);
      if (guess) predicted.points.emplace_back(Megabits(cell.link), *guess);
    }
    plot.series.push_back(std::move(measured));
    plot.series.push_back(std::move(predicted));
  }
  return ToSvg(plot);
}

absl::Status RunCrossover(const Options& options, const BenchPlan& plan) {
  ASSIGN_OR_RETURN(const auto result, RunPlan(options.common, plan));
  const auto& [setting, measurements] = result;
  std::fputs(RenderCrossover(setting, measurements).c_str(), stdout);
  std::fflush(stdout);
  std::vector<std::pair<std::string, std::string>> plots;
  for (const Cell* cell : FirstOfEachLength(measurements)) {
    const int length = cell->calibration.length;
    plots.emplace_back(fmt::format("crossover_{}.svg", length),
                       CrossoverPlot(setting, measurements, length));
  }
  RETURN_IF_ERROR(WriteOutputs(options.common, CrossoverJson(setting, measurements), plots));
  return CheckAllServed(measurements);
}

}  // namespace

int Crossover(const Args& args) {
  if (AsksForForecast(args)) return CrossoverForecast(args);
  Options options;
  const Parsed parsed = ParseFlags(
      kCommand, args, [&](config::Binder& b) { options.Bind(b); }, 0, 1000);
  if (!parsed.go_on) return parsed.exit_code;
  const auto overrides = TakeTexts(parsed.positional, options.common.text);
  const auto plan = MakePlan(options, args, overrides);
  if (!plan.ok()) return Fail(kCommand.name, plan.status());
  const absl::Status status = RunCrossover(options, *plan);
  return status.ok() ? 0 : Fail(kCommand.name, status);
}

}  // namespace smartgen::tools::bench
