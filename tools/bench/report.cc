#include "tools/bench/report.h"

#include <algorithm>

#include "tools/bench/summary.h"
#include "tools/bench/table.h"

namespace smartgen::tools::bench {
namespace {

constexpr size_t kFirstSteps = 10;
constexpr const char* kReference = "full";
// Its second token comes after T_p and a step: what no transfer can beat.
constexpr const char* kLocal = "local";

std::string Seconds(double value) { return fmt::format("{:.3f}", value); }
std::string Seconds(const std::optional<Spread>& value) {
  return value ? Seconds(value->median) : "";
}
std::string Range(const std::optional<Spread>& value) {
  return value ? fmt::format("{:.3f}–{:.3f}", value->min, value->max) : "";
}
std::string Milliseconds(double value) { return fmt::format("{:.1f}", value * 1e3); }
std::string Megabytes(double value) { return fmt::format("{:.2f}", value * 1e-6); }

std::string Optional(const std::optional<double>& value, const char* format, double scale = 1) {
  return value ? fmt::format(fmt::runtime(format), *value * scale) : "";
}

std::string Equal(const Summary& summary) {
  if (summary.compared == 0) return "";
  if (summary.equal == summary.compared) return "yes";
  return fmt::format("no: {} of {}, first at {}", summary.compared - summary.equal,
                     summary.compared, summary.first_difference);
}

std::string Remark(const Summary& summary) {
  std::vector<std::string> remarks;
  if (summary.failed > 0) {
    remarks.push_back(
        fmt::format("{} of {} failed: {}", summary.failed, summary.runs, summary.first_error));
  }
  if (!summary.served_otherwise.empty()) remarks.push_back("served by " + summary.served_otherwise);
  if (summary.unwanted_cached_tokens > 0) {
    remarks.push_back(
        fmt::format("{:.0f} tokens from a prefix cache", summary.unwanted_cached_tokens));
  }
  return fmt::format("{}", fmt::join(remarks, "; "));
}

std::string LinkCell(const Link& link) {
  if (link.wish.ratio > 0) return fmt::format("{:g}", link.wish.ratio);
  return link.ratio > 0 ? fmt::format("{:.2f}", link.ratio) : "";
}

std::string TimesTable(const Measurements& measurements) {
  Table table;
  for (const char* name : {"tokens", "R"}) table.AddColumn(name);
  table.AddColumn("case", /*left=*/true);
  for (const char* name :
       {"T_p s", "T_t s", "TTFT s", "TTST gap s", "TTST e2e s", "min–max", "sooner than full",
        "of local", "TBT ms", "p99", "last token s", "all local s", "TBT before", "after",
        "on-demand", "waits", "stall s", "handovers", "handover s"}) {
    table.AddColumn(name);
  }
  table.AddColumn("tokens equal", /*left=*/true);
  table.AddColumn("remarks", /*left=*/true);
  for (const Cell& cell : measurements.cells) {
    const Summary summary = Summarize(cell);
    const Cell* full = FindReference(measurements.cells, cell, kReference);
    const std::optional<double> speedup =
        full == nullptr ? std::nullopt : Speedup(Summarize(*full), summary);
    const Cell* local = FindReference(measurements.cells, cell, kLocal);
    const std::optional<double> of_local =
        local == nullptr ? std::nullopt : Speedup(summary, Summarize(*local));
    const bool between = summary.tbt_mean > 0;
    table.AddRow({fmt::format("{}", cell.calibration.length),
                  LinkCell(cell.link),
                  cell.what.name,
                  Seconds(cell.calibration.t_p),
                  cell.link.transfer_seconds > 0 ? Seconds(cell.link.transfer_seconds) : "",
                  Seconds(summary.ttft),
                  Seconds(summary.gap),
                  Seconds(summary.e2e),
                  Range(summary.e2e),
                  Optional(speedup, "{:.2f}x"),
                  Optional(of_local, "{:.2f}"),
                  between ? Milliseconds(summary.tbt_mean) : "",
                  between ? Milliseconds(summary.tbt_p99) : "",
                  Seconds(summary.last),
                  Optional(summary.all_local_seconds, "{:.3f}"),
                  Optional(summary.tbt_before, "{:.1f}", 1e3),
                  Optional(summary.tbt_after, "{:.1f}", 1e3),
                  Optional(summary.ondemand_ratio, "{:.1f} %", 100),
                  Optional(summary.wait_steps, "{:.1f}"),
                  Optional(summary.stall_seconds, "{:.3f}"),
                  Optional(summary.handover_steps, "{:.1f}"),
                  Optional(summary.handover_seconds, "{:.3f}"),
                  Equal(summary),
                  Remark(summary)});
  }
  return table.Render();
}

std::string StepsTable(const Measurements& measurements) {
  Table table;
  for (const char* name : {"tokens", "R"}) table.AddColumn(name);
  table.AddColumn("case", /*left=*/true);
  for (size_t i = 1; i <= kFirstSteps; ++i) table.AddColumn(fmt::format("{}", i));
  for (const Cell& cell : measurements.cells) {
    const Summary summary = Summarize(cell);
    std::vector<std::string> row = {fmt::format("{}", cell.calibration.length), LinkCell(cell.link),
                                    cell.what.name};
    for (size_t i = 0; i < std::min(kFirstSteps, summary.steps.size()); ++i) {
      row.push_back(Milliseconds(summary.steps[i]));
    }
    table.AddRow(std::move(row));
  }
  return table.Render();
}

std::string BytesTable(const Measurements& measurements) {
  std::vector<std::string> paths;
  for (const Cell& cell : measurements.cells) {
    for (const auto& [path, bytes] : Summarize(cell).bytes) {
      if (std::find(paths.begin(), paths.end(), path) == paths.end()) paths.push_back(path);
    }
  }
  if (paths.empty()) return "";
  Table table;
  for (const char* name : {"tokens", "R"}) table.AddColumn(name);
  table.AddColumn("case", /*left=*/true);
  table.AddColumn("KV MB");
  for (const std::string& path : paths) table.AddColumn(path);
  table.AddColumn("all");
  for (const Cell& cell : measurements.cells) {
    const Summary summary = Summarize(cell);
    std::vector<std::string> row = {fmt::format("{}", cell.calibration.length), LinkCell(cell.link),
                                    cell.what.name,
                                    Megabytes(static_cast<double>(cell.calibration.kv_bytes))};
    for (const std::string& path : paths) {
      const auto found = summary.bytes.find(path);
      row.push_back(found == summary.bytes.end() ? "" : Megabytes(found->second));
    }
    row.push_back(Megabytes(summary.bytes_total));
    table.AddRow(std::move(row));
  }
  return "\nKV sent by path, MB a request:\n\n" + table.Render();
}

}  // namespace

std::string LinkName(const Link& link) {
  if (link.wish.ratio > 0) return fmt::format("R = {:g}", link.wish.ratio);
  if (link.wish.bytes_per_second > 0) {
    return fmt::format("{:g} Mbit/s", link.wish.bytes_per_second * 8e-6);
  }
  return "not shaped";
}

std::string SettingLine(const Setting& setting, const Measurements& measurements) {
  std::string line = fmt::format("{}, {}", measurements.model.name, measurements.model.compute);
  if (setting.prefill_threads > 0) {
    line += fmt::format("; threads: prefill {}, decode {}", setting.prefill_threads,
                        setting.decode_threads);
  }
  return line + fmt::format("; {} prompts; {}", setting.prompts, setting.short_link);
}

std::string RenderTables(const Setting& setting, const Measurements& measurements) {
  std::string text = fmt::format(
      "{}\nLink: {}\nMedians over {} prompts; TTST gap: from token 1 to token 2, e2e: from the "
      "request's "
      "arrival to token 2.\n\n",
      SettingLine(setting, measurements), setting.link, setting.prompts);
  text += TimesTable(measurements);
  if (setting.tokens > 2) {
    text += fmt::format("\nThe first {} steps (from token n to token n + 1), ms:\n\n", kFirstSteps);
    text += StepsTable(measurements);
  }
  return text + BytesTable(measurements);
}

}  // namespace smartgen::tools::bench
