// What the commands that run the model have in common.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/config/binder.h"
#include "tools/local_model.h"
#include "tools/profile/selection_counts.h"
#include "tools/profile/selection_run.h"
#include "tools/profile/texts.h"
#include "tools/progress.h"

namespace smartgen::tools::profile {

// Plain arguments that a command takes: more than any folder of texts.
inline constexpr size_t kMaxTexts = 100000;

struct RunOptions {
  std::string model = "smollm2-135m";
  std::vector<std::string> text;
  std::vector<std::string> lengths = {"1024", "2048", "4096"};
  int steps = 32;
  int cuts = 1;
  std::string selector = "infinigen";
  double budget = 0.2;
  std::string selector_parameters;
  std::string compute = "auto";
  int threads = 0;
  int max_prefill_tokens = 2048;

  void Bind(config::Binder& b);
  // Of `--text a b c`, b and c are plain arguments.
  void AddTexts(const std::vector<std::string>& more) {
    text.insert(text.end(), more.begin(), more.end());
  }
  // When all is set.
  absl::Status Check() const;

  absl::StatusOr<std::vector<int64_t>> Lengths() const;
  absl::StatusOr<selector::Options> Selector() const;
  absl::StatusOr<executor::ExecutorOptions> Executor() const;
};

// What to count selections on.
struct Prompts {
  Words words;
  std::vector<int64_t> lengths;
  std::vector<Cut> cuts;
};

// Reads the model's words and cuts the texts; says on standard error what texts were too short.
absl::StatusOr<Prompts> LoadPrompts(const RunOptions& options);

// Runs every cut and hands out its counts, in order.
absl::Status CountSelections(
    const RunOptions& options, const Prompts& prompts,
    const std::function<absl::Status(const Cut& cut, const SelectionCounts& counts)>& take);

}  // namespace smartgen::tools::profile
