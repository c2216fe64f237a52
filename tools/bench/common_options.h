// What the benchmarks that run daemons have in common: options, set-up, outputs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/config/binder.h"
#include "tools/bench/experiment.h"
#include "tools/bench/report.h"

namespace smartgen::tools::bench {

// Daemons that a benchmark starts.
struct DaemonOptions {
  std::string model = "smollm2-135m";
  // One a daemon: on a machine of two cores, where this is mostly run, the two sides then do not
  // take each other's.
  int threads = 1;
  int prefill_threads = 0;  // 0: `threads`
  int decode_threads = 0;   // 0: `threads`
  // Not auto: that is measured by each daemon for itself, and two that differ do not pair.
  std::string compute = "bf16";
  std::string bin_dir;
  base::Duration start_timeout = std::chrono::minutes(5);

  void BindDaemons(config::Binder& b);
  absl::Status CheckDaemons() const;
  absl::StatusOr<RigOptions> MakeRigOptions(std::vector<std::string> overrides) const;
};

// Where what was measured is written.
struct OutputOptions {
  std::string json;
  std::string svg_dir;

  void BindOutputs(config::Binder& b);
  // Before an hour of measuring, not after it. Makes svg_dir.
  absl::Status CheckOutputs() const;
};

struct CommonOptions : DaemonOptions, OutputOptions {
  std::vector<std::string> text;  // files; empty: DefaultTextFiles
  std::vector<std::string> lengths = {"1024"};
  int prompts = 3;
  int tokens = 64;
  int prefills = 1;
  std::string network = "auto";
  // Daemons that run already, perhaps on other machines; then none are started.
  std::string decode;
  std::vector<std::string> prefill;
  std::string decode_metrics;
  std::vector<std::string> prefill_metrics;
  double link_mbit = 0;
  rpc::Security security;
  std::string baseline = "local";
  int calibration_runs = 3;

  bool UsesRunningDaemons() const { return !decode.empty(); }
  void Bind(config::Binder& b);
  absl::Status Check() const;
};

// Of `--text a b c -- --KEY=VALUE`, b, c and --KEY=VALUE are plain arguments: the files go to
// `texts`, the overrides are returned.
std::vector<std::string> TakeTexts(const std::vector<std::string>& arguments,
                                   std::vector<std::string>& texts);

// InvalidArgument names `key` and the text that is no number, or lies outside [min, max].
absl::StatusOr<std::vector<double>> ParseNumbers(std::string_view key,
                                                 const std::vector<std::string>& texts, double min,
                                                 double max);

// Likewise, whole numbers only.
absl::StatusOr<std::vector<int>> ParseWholeNumbers(std::string_view key,
                                                   const std::vector<std::string>& texts, int min,
                                                   int max);

struct BenchPlan {
  std::string benchmark;  // "ttst"
  std::string command;    // as typed
  std::vector<Case> cases;
  std::vector<LinkWish> links;  // where the link cannot be set: replaced by what it is
  std::vector<std::string> overrides;
};

// Measures with daemons of its own. What it does and what it cannot do go to standard error.
absl::StatusOr<std::pair<Setting, Measurements>> RunPlan(const CommonOptions& options,
                                                         const BenchPlan& plan);

// Writes `json` to options.json and `plots` into options.svg_dir, where these are set.
absl::Status WriteOutputs(const OutputOptions& options, const nlohmann::ordered_json& json,
                          const std::vector<std::pair<std::string, std::string>>& plots);

// FailedPrecondition if any request failed; the first reason.
absl::Status CheckAllServed(const Measurements& measurements);

}  // namespace smartgen::tools::bench
