// What the runs of a cell come to.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/bench/experiment.h"
#include "tools/bench/figures.h"

namespace smartgen::tools::bench {

struct Summary {
  int runs = 0;    // requests
  int failed = 0;  // these count for nothing below
  std::string first_error;
  std::optional<Spread> ttft, gap, e2e, last;  // seconds; last: to the last token
  // Between tokens from the third on, all runs together.
  double tbt_mean = 0;
  double tbt_p99 = 0;
  std::vector<double> steps;  // medians; [0] is the gap
  std::vector<double> ctl;    // medians of the time to the n-th token; [0] is the TTFT
  int compared = 0;
  int equal = 0;
  int64_t first_difference = -1;  // the earliest of all runs; -1: none
  // KV bytes that the prefill side sent, by path, a request.
  std::map<std::string, double> bytes;
  double bytes_total = 0;
  std::map<std::string, double> numbers;  // the decode side's RequestStats, medians
  // What served them, where it is not what was asked for: "local (prefill unreachable)".
  std::string served_otherwise;
  // Prompt tokens that a prefix cache had though it should not (the most of all runs).
  double unwanted_cached_tokens = 0;
  // Of modes that select: the share of selected entries that were not here when their layer began.
  std::optional<double> ondemand_ratio;
  // From arrival till all KV was on the decode side, of the runs in which that came to pass; and
  // the time between tokens before and after it (TTST left out), all runs together.
  std::optional<double> all_local_seconds;
  std::optional<double> tbt_before;
  std::optional<double> tbt_after;
  // Tokens that the prefill side helped to make, a request; and its time for that.
  std::optional<double> handover_steps;
  std::optional<double> handover_seconds;
  std::optional<double> wait_steps;     // steps that waited for fetched entries, a request
  std::optional<double> stall_seconds;  // for how long, a request
};

Summary Summarize(const Cell& cell);

// How many times sooner than `reference` the second token came (e2e medians).
std::optional<double> Speedup(const Summary& reference, const Summary& summary);

// The first cell of `mode` with the same length, link, batch and prefix hit; null: there is none.
const Cell* FindReference(const std::vector<Cell>& cells, const Cell& like,
                          const std::string& mode);

}  // namespace smartgen::tools::bench
