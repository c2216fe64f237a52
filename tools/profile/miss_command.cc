// profile miss: how much a profile saves over pushing by position or at random.
#include <algorithm>
#include <cstdio>

#include "common/transfer/built_in_profiles.h"
#include "tools/bench/common_options.h"
#include "tools/bench/svg.h"
#include "tools/profile/commands.h"
#include "tools/profile/miss.h"
#include "tools/profile/run_options.h"

namespace smartgen::tools::profile {
namespace {

using Json = nlohmann::ordered_json;

constexpr Command kCommand = {
    "profile miss", "--model M [--profile P] --text FILES... [--share 0.21,0.5] [--json FILE]",
    "the share of selected entries that a push by profile, by position and at random misses",
    nullptr};

struct Options {
  RunOptions run;
  std::string profile;
  std::vector<std::string> shares = {"0.21", "0.5"};
  std::string json;

  void Bind(config::Binder& b) {
    run.lengths = {"1536", "3072"};
    run.Bind(b);
    b.Field("profile", &profile, "empty: the one built in for the model");
    b.Field("share", &shares, "blocks that are pushed, as shares of all");
    b.Field("json", &json, "the numbers, to write");
  }
};

absl::StatusOr<transfer::Profile> LoadProfile(const Options& options, const model::Model& model) {
  const int layers = model.config().num_layers();
  if (options.profile.empty()) {
    auto built_in = transfer::BuiltInProfiles(model.fingerprint(), layers);
    if (built_in.empty()) {
      return base::NotFound("no profile is built in for model {} ({}); give --profile",
                            model.config().name, model.fingerprint());
    }
    // As prefilld chooses.
    for (transfer::Profile& profile : built_in) {
      if (profile.origin().selector == options.run.selector) return std::move(profile);
    }
    return std::move(built_in.front());
  }
  ASSIGN_OR_RETURN(transfer::Profile profile, transfer::Profile::Load(options.profile));
  RETURN_IF_ERROR(base::Annotate(profile.CheckFor(model.fingerprint(), layers), options.profile));
  return profile;
}

Json ToJson(const Options& options, const Prompts& prompts, const transfer::Profile& profile,
            const std::vector<MissCounter::Row>& rows) {
  Json out = Json::array();
  for (const MissCounter::Row& row : rows) {
    out.push_back(Json{{"length", row.length > 0 ? Json(row.length) : Json()},
                       {"share", row.share},
                       {"prompts", row.prompts},
                       {"profile", row.ratios.profile},
                       {"sequential", row.ratios.sequential},
                       {"random", row.ratios.random},
                       {"below_sequential", row.ratios.BelowSequential()},
                       {"below_random", row.ratios.BelowRandom()}});
  }
  return Json{{"model", prompts.words.file->config().name},
              {"model_fingerprint", prompts.words.file->fingerprint()},
              {"selector", options.run.selector},
              {"budget", options.run.budget},
              {"steps", options.run.steps},
              {"texts", TextNames(prompts.cuts)},
              {"profile_selector", profile.origin().selector},
              {"profile_texts", profile.origin().texts},
              {"on_demand_ratios", out}};
}

absl::Status RunMiss(const Options& options) {
  RETURN_IF_ERROR(options.run.Check());
  ASSIGN_OR_RETURN(const auto shares, bench::ParseNumbers("share", options.shares, 0, 1));
  ASSIGN_OR_RETURN(const Prompts prompts, LoadPrompts(options.run));
  ASSIGN_OR_RETURN(const transfer::Profile profile, LoadProfile(options, *prompts.words.file));
  for (const std::string& text : TextNames(prompts.cuts)) {
    const auto& seen = profile.origin().texts;
    if (std::find(seen.begin(), seen.end(), text) == seen.end()) continue;
    std::fprintf(stderr, "note: the profile was made with %s\n", text.c_str());
  }
  std::vector<int> windows;
  for (const model::LayerConfig& layer : prompts.words.file->config().layers) {
    windows.push_back(layer.window);
  }
  MissCounter counter(&profile, windows, shares);
  RETURN_IF_ERROR(
      CountSelections(options.run, prompts, [&](const Cut&, const SelectionCounts& counts) {
        counter.Add(counts);
        return absl::OkStatus();
      }));
  const std::vector<MissCounter::Row> rows = counter.Rows();
  std::printf("on-demand ratio, selector %s, %d steps after each prompt\n\n%s",
              options.run.selector.c_str(), options.run.steps, MissTable(rows).c_str());
  if (options.json.empty()) return absl::OkStatus();
  return bench::WriteTextFile(options.json, ToJson(options, prompts, profile, rows).dump(2) + "\n");
}

}  // namespace

int Miss(const Args& args) {
  Options options;
  const Parsed parsed = ParseFlags(
      kCommand, args, [&](config::Binder& b) { options.Bind(b); }, 0, kMaxTexts);
  if (!parsed.go_on) return parsed.exit_code;
  options.run.AddTexts(parsed.positional);
  const absl::Status status = RunMiss(options);
  return status.ok() ? 0 : Fail(kCommand.name, status);
}

}  // namespace smartgen::tools::profile
