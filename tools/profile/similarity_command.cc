// profile similarity: whether prompts of other lengths and texts select the same positions.
#include <cstdio>
#include <map>

#include "tools/bench/svg.h"
#include "tools/bench/table.h"
#include "tools/profile/commands.h"
#include "tools/profile/heat_map.h"
#include "tools/profile/run_options.h"
#include "tools/profile/similarity.h"

namespace smartgen::tools::profile {
namespace {

using Json = nlohmann::ordered_json;

constexpr Command kCommand = {
    "profile similarity",
    "--model M --text FILES... [--lengths 4096,8000] [--svg FILE] [--json FILE]",
    "how alike the positions are that steps select at other lengths and in other texts", nullptr};

struct Options {
  RunOptions run;
  std::string svg;
  std::string json;

  void Bind(config::Binder& b) {
    run.lengths = {"4096", "8000"};
    run.Bind(b);
    b.Field("svg", &svg, "heat maps to write, one a length");
    b.Field("json", &json, "the numbers, to write");
  }
};

std::string Table(const std::vector<Comparison>& comparisons) {
  bench::Table table;
  table.AddColumn("prompts", /*left=*/true);
  for (const char* name : {"pairs", "rank correlation", "overlap of best 20 %, %"}) {
    table.AddColumn(name);
  }
  for (const Comparison& c : comparisons) {
    table.AddRow({c.what, fmt::format("{}", c.pairs),
                  fmt::format("{:.3f}", c.mean.rank_correlation),
                  fmt::format("{:.1f}", c.mean.top_overlap * 100)});
  }
  return table.Render() + "By chance the rank correlation is 0 and the overlap 20 %.\n";
}

Json ToJson(const Options& options, const Prompts& prompts,
            const std::vector<Comparison>& comparisons) {
  Json rows = Json::array();
  for (const Comparison& c : comparisons) {
    rows.push_back(Json{{"prompts", c.what},
                        {"pairs", c.pairs},
                        {"rank_correlation", c.mean.rank_correlation},
                        {"top_20_percent_overlap", c.mean.top_overlap}});
  }
  return Json{{"model", prompts.words.file->config().name},
              {"model_fingerprint", prompts.words.file->fingerprint()},
              {"selector", options.run.selector},
              {"budget", options.run.budget},
              {"lengths", prompts.lengths},
              {"steps", options.run.steps},
              {"texts", TextNames(prompts.cuts)},
              {"comparisons", rows}};
}

absl::Status RunSimilarity(const Options& options) {
  RETURN_IF_ERROR(options.run.Check());
  ASSIGN_OR_RETURN(const Prompts prompts, LoadPrompts(options.run));
  std::vector<PromptRows> rows;
  std::map<int64_t, ProfileBuilder> means;
  RETURN_IF_ERROR(
      CountSelections(options.run, prompts, [&](const Cut& cut, const SelectionCounts& counts) {
        rows.push_back({cut.text, cut.length, RowsOf(counts)});
        means.try_emplace(cut.length, counts.layers()).first->second.Add(counts);
        return absl::OkStatus();
      }));
  const std::vector<Comparison> comparisons = CompareAll(rows);
  std::fputs(Table(comparisons).c_str(), stdout);
  if (!options.json.empty()) {
    RETURN_IF_ERROR(
        bench::WriteTextFile(options.json, ToJson(options, prompts, comparisons).dump(2) + "\n"));
  }
  if (options.svg.empty()) return absl::OkStatus();
  HeatMap map;
  map.title =
      fmt::format("Positions that decode steps select: {}", prompts.words.file->config().name);
  map.subtitle = fmt::format("{}, {:g} % of the context, {} texts", options.run.selector,
                             options.run.budget * 100, TextNames(prompts.cuts).size());
  for (const auto& [length, mean] : means) {
    map.panels.push_back(PanelOf(mean.Rows(), fmt::format("prompts of {} tokens", length)));
  }
  return bench::WriteTextFile(options.svg, ToSvg(map));
}

}  // namespace

int Similarity(const Args& args) {
  Options options;
  const Parsed parsed = ParseFlags(
      kCommand, args, [&](config::Binder& b) { options.Bind(b); }, 0, kMaxTexts);
  if (!parsed.go_on) return parsed.exit_code;
  options.run.AddTexts(parsed.positional);
  const absl::Status status = RunSimilarity(options);
  return status.ok() ? 0 : Fail(kCommand.name, status);
}

}  // namespace smartgen::tools::profile
