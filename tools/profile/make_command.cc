// profile: makes a profile, and selectors' parameters, from texts.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "common/base/thread_pool.h"
#include "tools/profile/commands.h"
#include "tools/profile/run_options.h"
#include "tools/profile/summary.h"
#include "tools/profile/training.h"

namespace smartgen::tools::profile {
namespace {

constexpr Command kCommand = {
    "profile",
    "--model M --text FILES... [--out P] [--train-hash F] [--train-skew F]\n"
    "       smartgen profile show P | similarity --text FILES... | miss --text FILES...",
    "measure what decode steps select of a prompt's KV, for what is pushed first", nullptr};

struct Options {
  RunOptions run;
  std::string out;
  double smoothing = 0.125;
  std::string train_hash;
  std::string train_skew;

  void Bind(config::Binder& b) {
    run.Bind(b);
    b.Field("out", &out, "the profile to write; prefilld's option `profile` reads it");
    b.Field("smoothing", &smoothing,
            "each block's value is averaged as far to both sides as this share of the distance to "
            "the nearer end");
    b.Field("train-hash", &train_hash,
            "hash weights to write for the selector hata; the daemons' option "
            "`selector_parameters` reads them");
    b.Field("train-skew", &train_skew,
            "skew matrices to write for the selector infinigen, likewise");
  }
  absl::Status Check() const {
    RETURN_IF_ERROR(run.Check());
    if (out.empty() && train_hash.empty() && train_skew.empty()) {
      return base::InvalidArgument("want at least one of --out, --train-hash and --train-skew");
    }
    if (!(smoothing >= 0 && smoothing <= 1)) {
      return base::InvalidArgument("smoothing: want 0 to 1, got {}", smoothing);
    }
    return absl::OkStatus();
  }
};

std::string FileName(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

// What was typed, less what belongs to this machine.
std::string CommandText(const RunOptions& o, const Prompts& prompts) {
  std::string text = fmt::format(
      "smartgen profile --model {} --text {} files --lengths {} --steps {} --cuts {} --selector {} "
      "--budget {:g}",
      FileName(o.model), o.text.size(), fmt::join(prompts.lengths, ","), o.steps, o.cuts,
      o.selector, o.budget);
  if (!o.selector_parameters.empty()) {
    text += fmt::format(" --selector-parameters {}", FileName(o.selector_parameters));
  }
  return text;
}

absl::StatusOr<std::vector<AttentionSample>> TakeSamples(const RunOptions& options,
                                                         const Prompts& prompts,
                                                         Progress& progress) {
  AttentionSampler::Options sampler_options;
  ASSIGN_OR_RETURN(sampler_options.executor, options.Executor());
  sampler_options.max_tokens = *std::max_element(prompts.lengths.begin(), prompts.lengths.end());
  ASSIGN_OR_RETURN(const auto sampler,
                   AttentionSampler::Create(*prompts.words.file, sampler_options));
  std::vector<AttentionSample> samples;
  for (const Cut& cut : prompts.cuts) {
    progress.Update(static_cast<double>(samples.size()) / static_cast<double>(prompts.cuts.size()),
                    fmt::format("queries and keys of {} at {}", cut.text, cut.length));
    ASSIGN_OR_RETURN(AttentionSample sample,
                     sampler->Sample(std::span(cut.ids).first(static_cast<size_t>(cut.length))));
    samples.push_back(std::move(sample));
  }
  return samples;
}

absl::Status Train(const Options& options, const Prompts& prompts) {
  const model::Model& model = *prompts.words.file;
  std::vector<AttentionSample> samples;
  {
    Progress progress;
    ASSIGN_OR_RETURN(samples, TakeSamples(options.run, prompts, progress));
  }
  base::ThreadPool pool(options.run.threads);
  if (!options.train_skew.empty()) {
    Progress progress;
    ASSIGN_OR_RETURN(const auto skew, MakeSkew(samples, model, pool, [&](double share) {
                       progress.Update(share, "skew matrices");
                     }));
    RETURN_IF_ERROR(skew.Save(options.train_skew));
  }
  if (options.train_hash.empty()) return absl::OkStatus();
  TrainedHash hash;
  {
    Progress progress;
    selector::HashTrainingOptions hash_options;
    hash_options.bits = selector::Options{}.hash_bits;
    ASSIGN_OR_RETURN(hash, TrainHashWeights(samples, model, hash_options, pool, [&](double share) {
                       progress.Update(share, "hash weights");
                     }));
  }
  RETURN_IF_ERROR(hash.weights.Save(options.train_hash));
  if (hash.recall_trained > 0) {
    std::printf(
        "hash weights: of a query's top 10 %% of the keys %.1f %% found in a prompt that was "
        "not trained on (random weights: %.1f %%)\n",
        hash.recall_trained * 100, hash.recall_random * 100);
  }
  return absl::OkStatus();
}

absl::Status MakeProfile(const Options& options, const Prompts& prompts) {
  const model::Model& model = *prompts.words.file;
  // Parameters that were just made are the ones to select with.
  RunOptions run = options.run;
  const std::string& made = run.selector == "hata"        ? options.train_hash
                            : run.selector == "infinigen" ? options.train_skew
                                                          : run.selector_parameters;
  if (!made.empty()) run.selector_parameters = made;
  ProfileBuilder builder(model.config().num_layers());
  RETURN_IF_ERROR(CountSelections(run, prompts, [&](const Cut&, const SelectionCounts& counts) {
    builder.Add(counts);
    return absl::OkStatus();
  }));
  ASSIGN_OR_RETURN(const selector::Options selector, run.Selector());
  transfer::Profile::Origin origin;
  origin.model_fingerprint = model.fingerprint();
  origin.model_name = model.config().name.empty() ? FileName(run.model) : model.config().name;
  origin.selector = std::string(selector::KindName(selector.kind));
  origin.selection_budget = run.budget;
  origin.prompt_lengths = prompts.lengths;
  origin.texts = TextNames(prompts.cuts);
  origin.command = fmt::format("{} --smoothing {:g}", CommandText(run, prompts), options.smoothing);
  ASSIGN_OR_RETURN(const transfer::Profile profile,
                   transfer::Profile::Create(builder.Rows(options.smoothing), std::move(origin)));
  RETURN_IF_ERROR(profile.Save(options.out));
  std::printf(
      "%lld prompts of %zu texts; the best 20 %% of the blocks hold %.1f %% of what is "
      "selected, the best 50 %% hold %.1f %%\n",
      static_cast<long long>(builder.prompts()), profile.origin().texts.size(),
      Coverage(profile, 0.2) * 100, Coverage(profile, 0.5) * 100);
  return absl::OkStatus();
}

absl::Status RunMake(const Options& options) {
  RETURN_IF_ERROR(options.Check());
  ASSIGN_OR_RETURN(const Prompts prompts, LoadPrompts(options.run));
  if (!options.train_hash.empty() || !options.train_skew.empty()) {
    RETURN_IF_ERROR(Train(options, prompts));
  }
  return options.out.empty() ? absl::OkStatus() : MakeProfile(options, prompts);
}

}  // namespace

int Make(const Args& args) {
  Options options;
  const Parsed parsed = ParseFlags(
      kCommand, args, [&](config::Binder& b) { options.Bind(b); }, 0, kMaxTexts);
  if (!parsed.go_on) return parsed.exit_code;
  options.run.AddTexts(parsed.positional);
  const absl::Status status = RunMake(options);
  return status.ok() ? 0 : Fail(kCommand.name, status);
}

}  // namespace smartgen::tools::profile
