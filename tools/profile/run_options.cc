#include "tools/profile/run_options.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "common/transfer/profile.h"
#include "tools/bench/common_options.h"

namespace smartgen::tools::profile {
namespace {

constexpr double kMaxLength = 1 << 24;
// What profiles call it (transfer::Profile::Origin), and what this command does.
constexpr std::string_view kExact = "dense-scores";

}  // namespace

void RunOptions::Bind(config::Binder& b) {
  b.Field("model", &model, "GGUF file, safetensors folder or known name");
  b.Field("text", &text, "text files; more may follow as plain arguments");
  b.Field("lengths", &lengths, "prompt lengths in tokens");
  b.Field("steps", &steps, "decode steps after each prompt");
  b.Field("cuts", &cuts, "prompts of each text and length");
  b.Choice("selector", &selector, {"quest", "hata", "infinigen", std::string(kExact)},
           "what chooses the entries that a step reads");
  b.Field("budget", &budget, "share of the context that a step reads");
  b.Field("selector-parameters", &selector_parameters,
          "file or folder that --train-hash and --train-skew wrote");
  b.Choice("compute", &compute, {"auto", "f32", "bf16"}, "what products are computed in");
  b.Field("threads", &threads, "0: one a core");
  b.Field("max_prefill_tokens", &max_prefill_tokens, "longer prompts are run in chunks");
}

absl::Status RunOptions::Check() const {
  if (text.empty()) return base::InvalidArgument("text: want at least one file");
  if (cuts < 1) return base::InvalidArgument("cuts: want at least 1, got {}", cuts);
  if (max_prefill_tokens < 1) {
    return base::InvalidArgument("max_prefill_tokens: want at least 1, got {}", max_prefill_tokens);
  }
  if (steps < 1 || steps > max_prefill_tokens) {
    return base::InvalidArgument("steps: want 1 to {}, got {}", max_prefill_tokens, steps);
  }
  if (!(budget > 0 && budget < 1)) {
    return base::InvalidArgument("budget: want more than 0 and less than 1, got {}", budget);
  }
  return Lengths().status();
}

absl::StatusOr<std::vector<int64_t>> RunOptions::Lengths() const {
  ASSIGN_OR_RETURN(const std::vector<double> numbers,
                   bench::ParseNumbers("lengths", lengths, 1, kMaxLength));
  std::vector<int64_t> out;
  for (const double x : numbers) {
    if (x != std::floor(x)) return base::InvalidArgument("lengths: want whole numbers, got {}", x);
    out.push_back(static_cast<int64_t>(x));
  }
  return out;
}

absl::StatusOr<selector::Options> RunOptions::Selector() const {
  selector::Options out;
  ASSIGN_OR_RETURN(out.kind, selector::ParseKind(selector == kExact ? "dense" : selector));
  out.budget_share = budget;
  out.dense_layers = transfer::kDenseLayers;
  return out;
}

absl::StatusOr<executor::ExecutorOptions> RunOptions::Executor() const {
  executor::ExecutorOptions out;
  ASSIGN_OR_RETURN(out.compute, executor::ParseComputeType(compute));
  out.threads = threads;
  out.max_prefill_tokens = max_prefill_tokens;
  return out;
}

absl::StatusOr<Prompts> LoadPrompts(const RunOptions& options) {
  Prompts prompts;
  ASSIGN_OR_RETURN(prompts.lengths, options.Lengths());
  ASSIGN_OR_RETURN(prompts.words, LoadWords(options.model));
  CutOptions cut;
  cut.files = options.text;
  cut.lengths = prompts.lengths;
  cut.steps = options.steps;
  cut.cuts = options.cuts;
  ASSIGN_OR_RETURN(Cuts cuts, CutTexts(*prompts.words.tokenizer, cut));
  if (!cuts.too_short.empty()) {
    std::fprintf(stderr, "too short and left out: %s\n",
                 fmt::format("{}", fmt::join(cuts.too_short, ", ")).c_str());
  }
  prompts.cuts = std::move(cuts.cuts);
  return prompts;
}

absl::Status CountSelections(
    const RunOptions& options, const Prompts& prompts,
    const std::function<absl::Status(const Cut& cut, const SelectionCounts& counts)>& take) {
  SelectionRun::Options run_options;
  ASSIGN_OR_RETURN(run_options.selector, options.Selector());
  ASSIGN_OR_RETURN(run_options.executor, options.Executor());
  run_options.max_prompt_tokens = *std::max_element(prompts.lengths.begin(), prompts.lengths.end());
  run_options.steps = options.steps;
  run_options.parameters = options.selector_parameters;
  ASSIGN_OR_RETURN(const auto run, SelectionRun::Create(*prompts.words.file, run_options));

  double all = 0, done = 0;
  for (const Cut& cut : prompts.cuts) all += static_cast<double>(cut.ids.size());
  Progress progress;
  for (const Cut& cut : prompts.cuts) {
    const auto size = static_cast<double>(cut.ids.size());
    const std::string what = fmt::format("{} at {}", cut.text, cut.length);
    SelectionCounts counts(run->layers(), cut.length);
    RETURN_IF_ERROR(run->Run(
        cut.ids,
        [&](int layer, const selector::Selection& selection) { counts.Add(layer, selection); },
        [&](double share) { progress.Update((done + share * size) / all, what); }));
    RETURN_IF_ERROR(take(cut, counts));
    done += size;
  }
  return absl::OkStatus();
}

}  // namespace smartgen::tools::profile
