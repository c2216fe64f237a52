#include "tools/bench/cases.h"

#include <algorithm>
#include <array>

#include "proto/decode.pb.h"

namespace smartgen::tools::bench {
namespace {

// A sweep over one request option, of the one mode that it matters to.
struct OptionSweep {
  std::string_view name;
  std::string_view mode;
  std::string_view option;
  std::vector<std::string_view> values;
};

const std::vector<OptionSweep>& OptionSweeps() {
  static const std::vector<OptionSweep> sweeps = {
      {"speculative", "smartgen", "speculative_ratio", {"0.05", "0.1", "0.2"}},
      {"budget", "smartgen", "selection_budget", {"0.05", "0.1", "0.2", "0.4", "0.6"}},
      {"selector", "smartgen", "selector", {"quest", "hata", "infinigen"}},
      {"handover", "exact", "handover", {"split", "attend"}},
  };
  return sweeps;
}

constexpr std::array<double, 3> kPrefixHits = {0, 0.75, 0.9};
constexpr std::array<int, 4> kBatches = {1, 2, 4, 6};

RequestOptions With(RequestOptions options,
                    std::initializer_list<std::pair<std::string, std::string>> more) {
  for (const auto& [name, value] : more) options[name] = value;
  return options;
}

Case Plain(const CasePlan& plan, const std::string& mode) {
  return {mode, mode, mode == "local" ? RequestOptions() : plan.options, plan.batch, 0};
}

std::vector<Case> SweepOption(const CasePlan& plan, const OptionSweep& sweep) {
  std::vector<Case> cases;
  for (const std::string& mode : plan.modes) {
    if (mode != sweep.mode) {
      cases.push_back(Plain(plan, mode));
      continue;
    }
    for (const std::string_view value : sweep.values) {
      Case varied = Plain(plan, mode);
      varied.name = fmt::format("{} {}={}", mode, sweep.option, value);
      varied.options[std::string(sweep.option)] = value;
      cases.push_back(std::move(varied));
    }
  }
  return cases;
}

std::vector<Case> SweepPrefix(const CasePlan& plan) {
  std::vector<Case> cases;
  for (const double hit : kPrefixHits) {
    for (const std::string& mode : plan.modes) {
      Case varied = Plain(plan, mode);
      varied.name = fmt::format("{} prefix {:.0f}%", mode, hit * 100);
      varied.prefix_hit = hit;
      cases.push_back(std::move(varied));
    }
  }
  return cases;
}

std::vector<Case> SweepBatch(const CasePlan& plan) {
  std::vector<Case> cases;
  for (const int batch : kBatches) {
    for (const std::string& mode : plan.modes) {
      Case varied = Plain(plan, mode);
      varied.name = fmt::format("{} batch {}", mode, batch);
      varied.batch = batch;
      cases.push_back(std::move(varied));
    }
  }
  return cases;
}

std::vector<Case> SweepAblation(const CasePlan& plan) {
  RequestOptions given = plan.options;
  // Steps that the prefill side makes would use none of the parts.
  given.emplace("handover", "none");
  return {
      {"partial", "partial", With(given, {{"parallel", "off"}, {"prefetch", "off"}}), plan.batch,
       0},
      {"+ profile", "smartgen",
       With(given, {{"parallel", "off"}, {"prefetch", "off"}, {"speculation", "off"}}), plan.batch,
       0},
      {"+ parallel on-demand", "smartgen", With(given, {{"speculation", "off"}}), plan.batch, 0},
      {"+ speculative", "smartgen", given, plan.batch, 0},
  };
}

absl::StatusOr<std::vector<Case>> Unchecked(const CasePlan& plan) {
  if (plan.sweep.empty()) {
    std::vector<Case> cases;
    for (const std::string& mode : plan.modes) cases.push_back(Plain(plan, mode));
    return cases;
  }
  if (plan.sweep == "prefix") return SweepPrefix(plan);
  if (plan.sweep == "batch") return SweepBatch(plan);
  if (plan.sweep == "ablation") return SweepAblation(plan);
  for (const OptionSweep& sweep : OptionSweeps()) {
    if (sweep.name != plan.sweep) continue;
    if (std::find(plan.modes.begin(), plan.modes.end(), sweep.mode) == plan.modes.end()) {
      return base::InvalidArgument("sweep {}: want \"{}\" among the modes, got {}", plan.sweep,
                                   sweep.mode, fmt::join(plan.modes, ", "));
    }
    return SweepOption(plan, sweep);
  }
  return base::InvalidArgument("sweep: want one of {}, got \"{}\"", fmt::join(KnownSweeps(), ", "),
                               plan.sweep);
}

}  // namespace

std::vector<std::string> KnownSweeps() {
  std::vector<std::string> names;
  for (const OptionSweep& sweep : OptionSweeps()) names.emplace_back(sweep.name);
  names.insert(names.end(), {"prefix", "batch", "ablation"});
  return names;
}

absl::StatusOr<std::vector<Case>> MakeCases(const CasePlan& plan) {
  if (plan.modes.empty()) return base::InvalidArgument("modes: want at least one");
  ASSIGN_OR_RETURN(std::vector<Case> cases, Unchecked(plan));
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& one = cases[i];
    const auto same = [&](const Case& other) { return other.name == one.name; };
    if (std::any_of(cases.begin() + static_cast<std::ptrdiff_t>(i) + 1, cases.end(), same)) {
      return base::InvalidArgument("modes: {} is named twice", one.name);
    }
    // What the protocol does not know is said now, not after an hour.
    const auto request = MakeRequest({{1}, 1, one.mode, one.options}, "");
    if (!request.ok()) return request.status();
  }
  return cases;
}

absl::StatusOr<RequestOptions> ParseOptions(const std::vector<std::string>& texts) {
  RequestOptions options;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    if (equals == 0 || equals == std::string::npos) {
      return base::InvalidArgument("smartgen: want KEY=VALUE, got \"{}\"", text);
    }
    const std::string name = text.substr(0, equals);
    if (!options.emplace(name, text.substr(equals + 1)).second) {
      return base::InvalidArgument("smartgen: {} is given twice", name);
    }
  }
  return options;
}

}  // namespace smartgen::tools::bench
