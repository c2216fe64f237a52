// bench ttst: time to the second token, mode by mode, over a link as slow as wanted.
#include <cstdio>

#include "tools/bench/benchmarks.h"
#include "tools/bench/common_options.h"

namespace smartgen::tools::bench {
namespace {

constexpr Command kCommand = {
    "bench ttst",
    "[--text FILES...] [--modes full,...] [--ratios 2,4.7,7.1] [--lengths 1024] "
    "[-- DAEMON OVERRIDES]",
    "time to the second token: prefill and decode daemons of its own, on a link as slow as wanted",
    nullptr};

struct Options {
  CommonOptions common;
  std::vector<std::string> modes;
  std::vector<std::string> ratios = {"2", "4.7", "7.1"};
  std::vector<std::string> smartgen;
  std::string sweep;
  int batch = 1;

  void Bind(config::Binder& b) {
    common.Bind(b);
    b.Field("modes", &modes,
            fmt::format("in the order in which they take turns: {}; empty: all but auto and random",
                        fmt::join(KnownModes(), ", ")));
    b.Field("ratios", &ratios, "R: how many times the prefill's time the whole KV takes to travel");
    b.Field("smartgen", &smartgen,
            fmt::format("KEY=VALUE options of each request: {}",
                        KnownRequestOptions().empty()
                            ? "none in this version"
                            : fmt::format("{}", fmt::join(KnownRequestOptions(), ", "))));
    b.Field("sweep", &sweep, fmt::format("one of {}", fmt::join(KnownSweeps(), ", ")));
    b.Field("batch", &batch, "requests at once, sharing the link");
    b.Check([this]() -> absl::Status {
      if (batch < 1 || batch > 1024) {
        return base::InvalidArgument("batch: want 1 to 1024, got {}", batch);
      }
      return absl::OkStatus();
    });
  }
};

std::vector<std::string> DefaultModes() {
  std::vector<std::string> modes;
  for (const std::string& mode : KnownModes()) {
    if (mode != "auto" && mode != "random") modes.push_back(mode);
  }
  return modes;
}

absl::StatusOr<BenchPlan> MakePlan(const Options& options, const Args& args,
                                   const std::vector<std::string>& overrides) {
  BenchPlan plan;
  plan.benchmark = "ttst";
  plan.command = fmt::format("smartgen bench ttst {}", fmt::join(args, " "));
  CasePlan cases;
  cases.modes = options.modes.empty() ? DefaultModes() : options.modes;
  ASSIGN_OR_RETURN(cases.options, ParseOptions(options.smartgen));
  cases.sweep = options.sweep;
  cases.batch = options.batch;
  ASSIGN_OR_RETURN(plan.cases, MakeCases(cases));
  ASSIGN_OR_RETURN(const auto ratios, ParseNumbers("ratios", options.ratios, 0.01, 1000));
  for (const double ratio : ratios) plan.links.push_back({ratio, 0});
  plan.overrides = overrides;
  return plan;
}

absl::Status RunTtst(const Options& options, const BenchPlan& plan) {
  ASSIGN_OR_RETURN(const auto result, RunPlan(options.common, plan));
  const auto& [setting, measurements] = result;
  std::fputs(RenderTables(setting, measurements).c_str(), stdout);
  std::fflush(stdout);
  RETURN_IF_ERROR(
      WriteOutputs(options.common, ToJson(setting, measurements), Plots(setting, measurements)));
  return CheckAllServed(measurements);
}

}  // namespace

int Ttst(const Args& args) {
  Options options;
  const Parsed parsed = ParseFlags(
      kCommand, args, [&](config::Binder& b) { options.Bind(b); }, 0, 1000);
  if (!parsed.go_on) return parsed.exit_code;
  const auto overrides = TakeTexts(parsed.positional, options.common.text);
  const auto plan = MakePlan(options, args, overrides);
  if (!plan.ok()) return Fail(kCommand.name, plan.status());
  const absl::Status status = RunTtst(options, *plan);
  return status.ok() ? 0 : Fail(kCommand.name, status);
}

}  // namespace smartgen::tools::bench
