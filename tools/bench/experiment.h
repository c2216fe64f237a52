// The time-to-second-token experiment: every case on the same prompts, in turns, link after link.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "tools/bench/cases.h"
#include "tools/bench/network.h"
#include "tools/bench/prompts.h"
#include "tools/bench/session.h"

namespace smartgen::tools::bench {

// How fast the link is to be for a prompt length: T_t = ratio * T_p, or a rate of its own.
struct LinkWish {
  double ratio = 0;             // 0: `bytes_per_second` counts
  double bytes_per_second = 0;  // payload; 0 with ratio 0: not shaped
  friend bool operator==(const LinkWish&, const LinkWish&) = default;
};

struct Link {
  LinkWish wish;
  double bytes_per_second = 0;   // payload; as set, or as measured where not shaped
  double transfer_seconds = 0;   // T_t
  double ratio = 0;              // T_t / T_p
  std::optional<double> probed;  // bytes per second that one TCP connection got
  int64_t drops = 0;             // packets
};

// Made anew for each length and link, just before its runs: machines do not stay equally fast.
struct Calibration {
  int length = 0;
  int64_t kv_bytes = 0;
  std::vector<double> prefill_seconds;  // each run
  double t_p = 0;                       // their mean
  double local_seconds = 0;             // time to token 1 of a local run
  double step_seconds = 0;              // a decode step of that run, median
};

struct Run {
  int prompt = 0;  // index
  Generation generation;
  // Against a local run of the same prompt: nullopt not compared, -1 equal, else the first index
  // that differs.
  std::optional<int64_t> first_difference;
};

struct Cell {
  Calibration calibration;
  Link link;
  Case what;
  std::vector<Run> runs;
  Counters decode;  // growth, all runs together
  Counters prefill;
};

struct Measurements {
  ModelFacts model;
  std::vector<Cell> cells;  // by length, link, case
};

struct ExperimentOptions {
  std::vector<int> lengths;
  std::vector<LinkWish> links;
  std::vector<Case> cases;
  int prompts = 3;
  int tokens = 64;
  int calibration_runs = 3;
  std::string calibration_mode = "full";  // of the prompts that measure T_p
  bool compare_tokens = true;
  base::Duration start_timeout = std::chrono::minutes(5);
  std::function<void(const std::string&)> progress;  // a line, without its end
};

// How many prompts of each length Measure needs; the first ones are for the cases, the rest for
// calibration.
int PromptsNeeded(const ExperimentOptions& options);

// `prompts`: for each of options.lengths, PromptsNeeded of them. `vocab_size`: of the model.
// InvalidArgument: lengths beyond the context, a link that this machine cannot be.
absl::StatusOr<Measurements> Measure(const ExperimentOptions& options,
                                     const std::vector<std::vector<Prompt>>& prompts,
                                     int vocab_size, Network& network, const Rig& rig,
                                     StopSource& stop);

}  // namespace smartgen::tools::bench
