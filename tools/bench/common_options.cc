#include "tools/bench/common_options.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tools/bench/machine.h"
#include "tools/bench/summary.h"
#include "tools/bench/svg.h"
#include "tools/local_model.h"

namespace smartgen::tools::bench {
namespace {

constexpr int kMaxTokens = 1 << 24;

void Progress(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

struct Range {
  const char* name;
  int value;
  int min;
  int max;
};

absl::Status CheckRanges(std::initializer_list<Range> ranges) {
  for (const Range& range : ranges) {
    if (range.value < range.min || range.value > range.max) {
      return base::InvalidArgument("{}: want {} to {}, got {}", range.name, range.min, range.max,
                                   range.value);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::vector<Prompt>>> MakePrompts(
    const ExperimentOptions& experiment, const std::vector<std::string>& files,
    const tokenizer::Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(const std::string text, ReadTexts(files));
  const auto tokens = tokenizer.Encode(text, /*parse_special=*/false);
  std::vector<std::vector<Prompt>> prompts;
  for (const int length : experiment.lengths) {
    ASSIGN_OR_RETURN(auto cut, CutPrompts(tokens, tokenizer, length, PromptsNeeded(experiment)));
    prompts.push_back(std::move(cut));
  }
  return prompts;
}

absl::StatusOr<ExperimentOptions> MakeExperiment(const CommonOptions& options,
                                                 const BenchPlan& plan, bool shaped) {
  ExperimentOptions experiment;
  ASSIGN_OR_RETURN(experiment.lengths,
                   ParseWholeNumbers("lengths", options.lengths, 1, kMaxTokens));
  experiment.links = shaped ? plan.links : std::vector<LinkWish>{{0, options.link_mbit * 1e6 / 8}};
  experiment.cases = plan.cases;
  experiment.prompts = options.prompts;
  experiment.tokens = options.tokens;
  experiment.calibration_runs = options.calibration_runs;
  experiment.compare_tokens = options.baseline == "local";
  experiment.start_timeout = options.start_timeout;
  experiment.progress = Progress;
  return experiment;
}

Setting MakeSetting(const CommonOptions& options, const BenchPlan& plan, const Network& network,
                    const RigOptions& rig, std::vector<std::string> texts) {
  Setting setting;
  setting.benchmark = plan.benchmark;
  setting.command = plan.command;
  setting.date = UtcNow();
  setting.link = network.Describe();
  setting.short_link = network.ShortName();
  setting.shaped = network.shaped();
  setting.texts = std::move(texts);
  setting.prompts = options.prompts;
  setting.tokens = options.tokens;
  // Of running daemons these are not known.
  if (!options.UsesRunningDaemons()) {
    setting.prefill_threads = rig.prefill_threads;
    setting.decode_threads = rig.decode_threads;
  }
  setting.prefills =
      options.UsesRunningDaemons() ? static_cast<int>(options.prefill.size()) : rig.prefills;
  setting.overrides = plan.overrides;
  return setting;
}

Rig RunningRig(const CommonOptions& options) {
  Rig rig;
  rig.decode_address = options.decode;
  rig.decode_metrics = options.decode_metrics;
  rig.prefill_addresses = options.prefill;
  rig.prefill_metrics = options.prefill_metrics;
  rig.client.security = options.security;
  return rig;
}

absl::StatusOr<std::unique_ptr<Network>> MakeNetwork(const CommonOptions& options) {
  if (options.UsesRunningDaemons()) return Network::AsItIs();
  ASSIGN_OR_RETURN(const Network::Kind kind, Network::ParseKind(options.network));
  ASSIGN_OR_RETURN(auto network, Network::Create(kind));
  if (!network->shaped()) {
    Progress(
        fmt::format("The link is NOT SHAPED ({}): both sides run on loopback, and no ratio or "
                    "bandwidth that was asked for applies.",
                    network->note()));
  }
  return network;
}

}  // namespace

void DaemonOptions::BindDaemons(config::Binder& b) {
  b.Field("model", &model, "GGUF file, safetensors folder or known name");
  b.Field("threads", &threads, "compute threads of each daemon");
  b.Field("prefill-threads", &prefill_threads, "of the prefill daemons; 0: as threads");
  b.Field("decode-threads", &decode_threads, "of the decode daemon; 0: as threads");
  b.Choice("compute", &compute, {"auto", "f32", "bf16"}, "what products are computed in");
  b.Field("bin-dir", &bin_dir, "folder of the daemons; empty: this program's own");
  b.Time("start-timeout", &start_timeout, "until the daemons must be ready");
}

absl::Status DaemonOptions::CheckDaemons() const {
  return CheckRanges({{"threads", threads, 1, 1024},
                      {"prefill-threads", prefill_threads, 0, 1024},
                      {"decode-threads", decode_threads, 0, 1024}});
}

absl::StatusOr<RigOptions> DaemonOptions::MakeRigOptions(std::vector<std::string> overrides) const {
  RigOptions rig;
  ASSIGN_OR_RETURN(rig.model, model::ResolveModelPath(model));
  rig.bin_dir = bin_dir;
  rig.prefill_threads = prefill_threads > 0 ? prefill_threads : threads;
  rig.decode_threads = decode_threads > 0 ? decode_threads : threads;
  rig.compute = compute;
  rig.overrides = std::move(overrides);
  return rig;
}

void OutputOptions::BindOutputs(config::Binder& b) {
  b.Field("json", &json, "file for everything that was measured");
  b.Field("svg-dir", &svg_dir, "folder for plots");
}

absl::Status OutputOptions::CheckOutputs() const {
  if (!svg_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(svg_dir, error);
    if (error) return base::Unavailable("svg-dir: cannot make {}: {}", svg_dir, error.message());
  }
  if (!json.empty() && !std::ofstream(json, std::ios::app)) {
    return base::Unavailable("json: cannot write {}", json);
  }
  return absl::OkStatus();
}

void CommonOptions::Bind(config::Binder& b) {
  BindDaemons(b);
  b.Field("text", &text, "files with the prompts' text; empty: /usr/share/common-licenses");
  b.Field("lengths", &lengths, "prompt lengths in tokens");
  b.Field("prompts", &prompts, "different prompts of each length; medians over them are shown");
  b.Field("tokens", &tokens, "tokens generated for each prompt");
  b.Field("prefills", &prefills, "prefill daemons; they share the link to the decode daemon");
  b.Choice("network", &network, {"auto", "namespaces", "loopback"},
           "namespaces: with a shaped link between them; loopback: not shaped; auto: the first "
           "where it can be had");
  b.Field("decode", &decode, "gRPC address of a running decode daemon; none are started then");
  b.Field("prefill", &prefill, "gRPC addresses of its prefill daemons, to see whether they rest");
  b.Field("decode-metrics", &decode_metrics, "with decode: URL that /metrics is appended to");
  b.Field("prefill-metrics", &prefill_metrics, "with decode: likewise, of each prefill daemon");
  b.Field("link-mbit", &link_mbit, "with decode: what the link carries, for T_t; 0: not known");
  b.Field("token", &security.token, "with decode: the daemons' token");
  b.Field("tls-ca", &security.tls_ca, "with decode: PEM file; the daemons are called over TLS");
  b.Field("tls-server-name", &security.tls_server_name, "with decode: the name in certificates");
  b.Choice("baseline", &baseline, {"local", "none"},
           "whether each run's tokens are compared with a local run of the same prompt");
  b.Field("calibration-runs", &calibration_runs, "prompts whose mean time to token 1 is T_p");
  BindOutputs(b);
  b.Check([this] { return Check(); });
}

absl::Status CommonOptions::Check() const {
  RETURN_IF_ERROR(CheckDaemons());
  RETURN_IF_ERROR(CheckRanges({{"prompts", prompts, 1, 10000},
                               {"tokens", tokens, 2, 1 << 20},
                               {"prefills", prefills, 1, 64},
                               {"calibration-runs", calibration_runs, 1, 100}}));
  if (!UsesRunningDaemons() &&
      (!prefill.empty() || !prefill_metrics.empty() || !decode_metrics.empty() || link_mbit != 0)) {
    return base::InvalidArgument(
        "prefill, prefill-metrics, decode-metrics and link-mbit: want --decode with them");
  }
  if (UsesRunningDaemons() && prefill.empty()) {
    return base::InvalidArgument("decode: want --prefill with it");
  }
  if (!(link_mbit >= 0)) {
    return base::InvalidArgument("link-mbit: want at least 0, got {}", link_mbit);
  }
  return absl::OkStatus();
}

std::vector<std::string> TakeTexts(const std::vector<std::string>& arguments,
                                   std::vector<std::string>& texts) {
  std::vector<std::string> overrides;
  for (const std::string& argument : arguments) {
    (argument.starts_with("--") ? overrides : texts).push_back(argument);
  }
  return overrides;
}

absl::StatusOr<std::vector<double>> ParseNumbers(std::string_view key,
                                                 const std::vector<std::string>& texts, double min,
                                                 double max) {
  std::vector<double> numbers;
  for (const std::string& text : texts) {
    double number = 0;
    const char* end = text.data() + text.size();
    const auto result = std::from_chars(text.data(), end, number);
    if (result.ec != std::errc() || result.ptr != end || !(number >= min) || !(number <= max)) {
      return base::InvalidArgument("{}: want numbers from {} to {}, got \"{}\"", key, min, max,
                                   text);
    }
    numbers.push_back(number);
  }
  if (numbers.empty()) return base::InvalidArgument("{}: want at least one", key);
  return numbers;
}

absl::StatusOr<std::vector<int>> ParseWholeNumbers(std::string_view key,
                                                   const std::vector<std::string>& texts, int min,
                                                   int max) {
  ASSIGN_OR_RETURN(const auto numbers, ParseNumbers(key, texts, min, max));
  std::vector<int> whole;
  for (const double number : numbers) {
    if (number != std::floor(number)) {
      return base::InvalidArgument("{}: want whole numbers, got {}", key, number);
    }
    whole.push_back(static_cast<int>(number));
  }
  return whole;
}

absl::StatusOr<std::pair<Setting, Measurements>> RunPlan(const CommonOptions& options,
                                                         const BenchPlan& plan) {
  RETURN_IF_ERROR(options.CheckOutputs());
  ASSIGN_OR_RETURN(RigOptions rig_options, options.MakeRigOptions(plan.overrides));
  rig_options.prefills = options.prefills;
  for (const Case& one : plan.cases) {
    rig_options.prefill_prefix_cache = rig_options.prefill_prefix_cache || one.prefix_hit > 0;
  }
  ASSIGN_OR_RETURN(const Words words, LoadWords(options.model));
  const auto texts = options.text.empty() ? DefaultTextFiles() : options.text;
  // Before any thread is made.
  ASSIGN_OR_RETURN(const auto network, MakeNetwork(options));
  ASSIGN_OR_RETURN(const ExperimentOptions experiment,
                   MakeExperiment(options, plan, network->shaped()));
  ASSIGN_OR_RETURN(const auto prompts, MakePrompts(experiment, texts, *words.tokenizer));
  Rig rig = RunningRig(options);
  if (!options.UsesRunningDaemons()) {
    ASSIGN_OR_RETURN(rig, MakeRig(*network, rig_options));
  }
  Measurements measurements;
  RETURN_IF_ERROR(RunWithDaemons(rig, [&](StopSource& stop) -> absl::Status {
    ASSIGN_OR_RETURN(measurements, Measure(experiment, prompts, words.tokenizer->vocab_size(),
                                           *network, rig, stop));
    return absl::OkStatus();
  }));
  return std::pair(MakeSetting(options, plan, *network, rig_options, texts),
                   std::move(measurements));
}

absl::Status WriteOutputs(const OutputOptions& options, const nlohmann::ordered_json& json,
                          const std::vector<std::pair<std::string, std::string>>& plots) {
  if (!options.json.empty()) {
    RETURN_IF_ERROR(WriteTextFile(options.json, json.dump(1) + "\n"));
    Progress("written: " + options.json);
  }
  if (options.svg_dir.empty()) return absl::OkStatus();
  for (const auto& [name, svg] : plots) {
    const std::string path = options.svg_dir + "/" + name;
    RETURN_IF_ERROR(WriteTextFile(path, svg));
    Progress("written: " + path);
  }
  return absl::OkStatus();
}

absl::Status CheckAllServed(const Measurements& measurements) {
  int failed = 0;
  std::string first;
  for (const Cell& cell : measurements.cells) {
    const Summary summary = Summarize(cell);
    if (failed == 0 && summary.failed > 0) {
      first = fmt::format("{}: {}", cell.what.name, summary.first_error);
    }
    failed += summary.failed;
  }
  if (failed == 0) return absl::OkStatus();
  return base::FailedPrecondition("{} requests failed; the first was {}", failed, first);
}

}  // namespace smartgen::tools::bench
