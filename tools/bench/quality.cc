// bench quality: what selecting KV costs in quality, selector by selector and budget by budget.
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "common/selector/matrix_file.h"
#include "common/selector/parameters.h"
#include "tools/bench/benchmarks.h"
#include "tools/bench/common_options.h"
#include "tools/bench/machine.h"
#include "tools/bench/network.h"
#include "tools/bench/quality_report.h"
#include "tools/bench/svg.h"
#include "tools/local_model.h"

namespace smartgen::tools::bench {
namespace {

constexpr Command kCommand = {
    "bench quality",
    "[--texts FILES...] [--lengths 1024,2048,4096] [--selectors quest,hata,infinigen] [--budgets "
    "5,10,20,100] [-- DAEMON OVERRIDES]",
    "what selecting KV costs: NLL of natural continuations and needles found, against full "
    "attention, through prefill and decode daemons of its own",
    nullptr};
// decoded's limit of forced tokens.
constexpr int kMaxContinuation = 4096;
const std::vector<std::string> kSelectors = {"quest", "hata", "infinigen"};

struct Options : DaemonOptions, OutputOptions {
  std::vector<std::string> texts;
  std::vector<std::string> lengths = {"1024", "2048", "4096"};
  std::vector<std::string> selectors = kSelectors;
  std::vector<std::string> budgets = {"5", "10", "20", "100"};
  std::vector<std::string> prompts = {"4"};
  std::vector<std::string> needles = {"1"};
  std::vector<std::string> depths = {"10", "50", "90"};
  int continuation_tokens = 64;
  int64_t seed = 1;
  int batch = 4;
  bool prefix_cache = true;
  std::string selector_parameters;

  void Bind(config::Binder& b) {
    BindDaemons(b);
    b.Field("texts", &texts, "files of natural text; empty: /usr/share/common-licenses");
    b.Field("lengths", &lengths, "prompt lengths in tokens");
    b.Field("selectors", &selectors, "of quest, hata, infinigen; dense is always the reference");
    b.Field("budgets", &budgets, "selection budgets, % of the context");
    b.Field(
        "prompts", &prompts,
        "texts of each length, at most as many as are long enough; one number, or one a length");
    b.Field("needles", &needles, "of each length at each depth; one number, or one a length");
    b.Field("depths", &depths, "where needles stand, % of the prompt's text");
    b.Field("continuation-tokens", &continuation_tokens, "scored behind each text's prompt");
    b.Field("seed", &seed, "of the needles");
    b.Field("batch", &batch, "requests at once");
    b.Field("prefix-cache", &prefix_cache,
            "prefill each prompt once and take its KV from the cache for the other variants; "
            "InfiniGen then chooses channels from the last page's queries");
    b.Field("selector-parameters", &selector_parameters,
            "file or folder that smartgen profile --train-hash, --train-skew wrote; empty: none");
    BindOutputs(b);
    b.Check([this] { return Check(); });
  }

  absl::Status Check() const {
    RETURN_IF_ERROR(CheckDaemons());
    if (continuation_tokens < 2 || continuation_tokens > kMaxContinuation) {
      return base::InvalidArgument("continuation-tokens: want 2 to {}, got {}", kMaxContinuation,
                                   continuation_tokens);
    }
    if (batch < 1 || batch > 64) {
      return base::InvalidArgument("batch: want 1 to 64, got {}", batch);
    }
    if (seed < 0) return base::InvalidArgument("seed: want at least 0, got {}", seed);
    for (const std::string& name : selectors) {
      if (std::find(kSelectors.begin(), kSelectors.end(), name) == kSelectors.end()) {
        return base::InvalidArgument("selectors: want some of {}, got \"{}\"",
                                     fmt::join(kSelectors, ", "), name);
      }
    }
    return absl::OkStatus();
  }
};

// One number for all lengths, or one for each.
absl::StatusOr<std::vector<int>> PerLength(std::string_view key,
                                           const std::vector<std::string>& texts, size_t lengths) {
  ASSIGN_OR_RETURN(std::vector<int> numbers, ParseWholeNumbers(key, texts, 0, 1000));
  if (numbers.size() == 1) numbers.resize(lengths, numbers[0]);
  if (numbers.size() != lengths) {
    return base::InvalidArgument("{}: want one number, or one for each of the {} lengths, got {}",
                                 key, lengths, numbers.size());
  }
  return numbers;
}

absl::StatusOr<ItemOptions> MakeItemOptions(const Options& options) {
  ItemOptions items;
  ASSIGN_OR_RETURN(items.lengths, ParseWholeNumbers("lengths", options.lengths, 64, 1 << 20));
  ASSIGN_OR_RETURN(items.texts, PerLength("prompts", options.prompts, items.lengths.size()));
  ASSIGN_OR_RETURN(items.needles, PerLength("needles", options.needles, items.lengths.size()));
  ASSIGN_OR_RETURN(items.depths, ParseNumbers("depths", options.depths, 0, 100));
  for (double& depth : items.depths) depth /= 100;
  const auto positive = [](int count) { return count > 0; };
  if (std::none_of(items.texts.begin(), items.texts.end(), positive) &&
      std::none_of(items.needles.begin(), items.needles.end(), positive)) {
    return base::InvalidArgument("prompts, needles: want at least one of either, got none");
  }
  items.continuation_tokens = options.continuation_tokens;
  items.seed = static_cast<uint64_t>(options.seed);
  return items;
}

absl::StatusOr<std::vector<Variant>> MakeVariants(const Options& options) {
  ASSIGN_OR_RETURN(const auto budgets, ParseNumbers("budgets", options.budgets, 0.1, 100));
  std::vector<Variant> variants = {{}};
  for (const std::string& selector : options.selectors) {
    for (const double budget : budgets) variants.push_back({selector, budget / 100});
  }
  return variants;
}

absl::StatusOr<std::vector<QualityItem>> CutItems(const Options& options, const ItemOptions& wanted,
                                                  const tokenizer::Tokenizer& tokenizer,
                                                  std::vector<std::string>& texts) {
  profile::CutOptions cut;
  cut.files = options.texts.empty() ? DefaultTextFiles() : options.texts;
  cut.lengths.assign(wanted.lengths.begin(), wanted.lengths.end());
  cut.steps = wanted.continuation_tokens;
  ASSIGN_OR_RETURN(const profile::Cuts cuts, profile::CutTexts(tokenizer, cut));
  if (!cuts.too_short.empty()) {
    std::fprintf(stderr, "texts that are too short: %s\n",
                 fmt::format("{}", fmt::join(cuts.too_short, ", ")).c_str());
  }
  texts = profile::TextNames(cuts.cuts);
  return MakeItems(wanted, cuts.cuts, tokenizer);
}

// What stands in the file or folder, so that every output can say it. Whether it belongs to the
// model is the daemons' check.
absl::Status ReadParameters(const std::string& path, QualitySetting& setting) {
  using selector::HeadMatrices;
  setting.selector_parameters = path;
  if (path.empty()) return absl::OkStatus();
  if (std::filesystem::is_directory(path)) {
    setting.has_skew = std::filesystem::exists(path + "/" + selector::kSkewFile);
    setting.has_hash_weights = std::filesystem::exists(path + "/" + selector::kHashFile);
    if (setting.has_skew || setting.has_hash_weights) return absl::OkStatus();
    return base::NotFound("selector-parameters: want {} or {} in {}, there is neither",
                          selector::kSkewFile, selector::kHashFile, path);
  }
  ASSIGN_OR_RETURN(const HeadMatrices::Purpose purpose, HeadMatrices::PurposeOf(path));
  setting.has_skew = purpose == HeadMatrices::Purpose::kSkew;
  setting.has_hash_weights = purpose == HeadMatrices::Purpose::kHash;
  return absl::OkStatus();
}

absl::Status CheckAllScored(const QualityMeasurements& measurements) {
  int failed = 0;
  absl::Status first;
  for (const QualityResult& result : measurements.results) {
    for (const Score& score : result.scores) {
      if (score.status.ok()) continue;
      if (failed++ == 0) first = score.status;
    }
  }
  if (failed == 0) return absl::OkStatus();
  return base::FailedPrecondition("{} scores failed; the first was {}", failed, first.ToString());
}

absl::Status RunQuality(const Options& options, const Args& args,
                        const std::vector<std::string>& overrides) {
  RETURN_IF_ERROR(options.CheckOutputs());
  ASSIGN_OR_RETURN(const ItemOptions wanted, MakeItemOptions(options));
  QualityOptions quality;
  ASSIGN_OR_RETURN(quality.variants, MakeVariants(options));
  quality.batch = options.batch;
  quality.start_timeout = options.start_timeout;
  QualitySetting setting;
  setting.command = fmt::format("smartgen bench quality {}", fmt::join(args, " "));
  setting.date = UtcNow();
  setting.continuation_tokens = options.continuation_tokens;
  setting.seed = wanted.seed;
  setting.prefix_cache = options.prefix_cache;
  setting.overrides = overrides;
  ASSIGN_OR_RETURN(const Words words, LoadWords(options.model));
  RETURN_IF_ERROR(ReadParameters(options.selector_parameters, setting));
  ASSIGN_OR_RETURN(auto items, CutItems(options, wanted, *words.tokenizer, setting.texts));

  std::vector<std::string> flags = overrides;
  if (!options.selector_parameters.empty()) {
    flags.push_back("--selector_parameters=" + options.selector_parameters);
  }
  ASSIGN_OR_RETURN(RigOptions rig_options, options.MakeRigOptions(std::move(flags)));
  rig_options.prefill_prefix_cache = options.prefix_cache;
  setting.prefill_threads = rig_options.prefill_threads;
  setting.decode_threads = rig_options.decode_threads;
  ASSIGN_OR_RETURN(const auto network, Network::Create(Network::Kind::kLoopback));
  ASSIGN_OR_RETURN(const Rig rig, MakeRig(*network, rig_options));
  QualityMeasurements measurements;
  quality.on_item = [&] {
    if (options.json.empty()) return;
    // Best effort: the whole is written, and its failure told, at the end.
    WriteTextFile(options.json, QualityJson(setting, measurements).dump(1) + "\n").IgnoreError();
  };
  const absl::Status run = RunWithDaemons(rig, [&](StopSource& stop) {
    return MeasureQuality(quality, std::move(items), *words.tokenizer, rig, stop, measurements);
  });
  if (measurements.results.empty()) return run;
  std::fputs(RenderQuality(setting, measurements).c_str(), stdout);
  std::fflush(stdout);
  RETURN_IF_ERROR(WriteOutputs(options, QualityJson(setting, measurements),
                               QualityPlots(setting, measurements)));
  RETURN_IF_ERROR(run);
  return CheckAllScored(measurements);
}

}  // namespace

int Quality(const Args& args) {
  Options options;
  const Parsed parsed = ParseFlags(
      kCommand, args, [&](config::Binder& b) { options.Bind(b); }, 0, 1000);
  if (!parsed.go_on) return parsed.exit_code;
  const auto overrides = TakeTexts(parsed.positional, options.texts);
  const absl::Status status = RunQuality(options, args, overrides);
  return status.ok() ? 0 : Fail(kCommand.name, status);
}

}  // namespace smartgen::tools::bench
