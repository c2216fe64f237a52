// profile show: what a profile says, and a picture of it.
#include <cstdio>

#include "tools/bench/svg.h"
#include "tools/profile/commands.h"
#include "tools/profile/heat_map.h"
#include "tools/profile/summary.h"

namespace smartgen::tools::profile {
namespace {

constexpr Command kCommand = {"profile show", "P [--svg FILE]",
                              "what a profile was made from and where its importance lies",
                              nullptr};

absl::Status RunShow(const std::string& path, const std::string& svg) {
  ASSIGN_OR_RETURN(const transfer::Profile profile, transfer::Profile::Load(path));
  std::printf("%s\n%s", OriginText(profile).c_str(), SummaryTable(profile).c_str());
  if (svg.empty()) return absl::OkStatus();
  const transfer::Profile::Origin& o = profile.origin();
  HeatMap map;
  map.title = fmt::format("What decode steps select of a prompt: {}", o.model_name);
  map.subtitle =
      fmt::format("{}, {:g} % of the context, {} texts, prompts of {} tokens",
                  o.selector == "dense" ? "exact scores" : o.selector, o.selection_budget * 100,
                  o.texts.size(), fmt::join(o.prompt_lengths, ", "));
  map.panels.push_back(PanelOf(profile, ""));
  return bench::WriteTextFile(svg, ToSvg(map));
}

}  // namespace

int Show(const Args& args) {
  std::string svg;
  const Parsed parsed = ParseFlags(
      kCommand, args,
      [&](config::Binder& b) { b.Field("svg", &svg, "a heat map to write: layers by position"); },
      1, 1);
  if (!parsed.go_on) return parsed.exit_code;
  const absl::Status status = RunShow(parsed.positional[0], svg);
  return status.ok() ? 0 : Fail(kCommand.name, status);
}

}  // namespace smartgen::tools::profile
