#include <algorithm>

#include "tools/bench/quality.h"
#include "tools/progress.h"

namespace smartgen::tools::bench {
namespace {

// Tokens of a greedy answer beyond those of the right one.
constexpr int64_t kMoreAnswer = 2;

class QualityRun {
 public:
  QualityRun(const QualityOptions& options, const tokenizer::Tokenizer& tokenizer, Session& session)
      : options_(options), tokenizer_(tokenizer), session_(session) {}

  absl::Status Run(std::vector<QualityItem> items, QualityMeasurements& measurements) {
    const base::Clock& clock = *base::Clock::Real();
    const base::TimePoint start = clock.Now();
    measurements.model = session_.model();
    measurements.variants = options_.variants;
    measurements.planned = items.size();
    double total = 0;
    for (const QualityItem& item : items) {
      RETURN_IF_ERROR(CheckLength(item));
      total += Work(item);
    }
    Progress progress(total);
    for (QualityItem& item : items) {
      progress.Begin(fmt::format("{} of {} tokens from {}", item.needle ? "needle" : "text",
                                 item.length, item.text));
      const double work = Work(item);
      QualityResult result;
      result.scores.resize(options_.variants.size());
      RETURN_IF_ERROR(RunItem(item, result.scores));
      result.item = std::move(item);
      measurements.results.push_back(std::move(result));
      measurements.seconds = base::ToSeconds(clock.Now() - start);
      if (options_.on_item) options_.on_item();
      progress.Advance(work);
    }
    return absl::OkStatus();
  }

 private:
  // A request for a score.
  struct Probe {
    Score* score = nullptr;
    GenerationSpec spec;
  };

  static int64_t AnswerTokens(const QualityItem& item) {
    return static_cast<int64_t>(item.forced.size()) + (item.needle ? kMoreAnswer : 0);
  }

  absl::Status CheckLength(const QualityItem& item) const {
    const int64_t all = static_cast<int64_t>(item.prompt.size()) + AnswerTokens(item);
    if (all <= session_.model().context_length) return absl::OkStatus();
    return base::InvalidArgument(
        "lengths: {} prompt tokens and {} behind them are more than the context of {}", item.length,
        AnswerTokens(item), session_.model().context_length);
  }

  // Roughly proportional to the time: a prompt's token once, its transfer and a decode step often.
  double Work(const QualityItem& item) const {
    constexpr double kTransferredToken = 0.05;
    constexpr double kStep = 10;
    const double requests = static_cast<double>(options_.variants.size()) * (item.needle ? 2 : 1);
    return item.length + requests * (item.length * kTransferredToken +
                                     kStep * static_cast<double>(AnswerTokens(item)));
  }

  GenerationSpec MakeSpec(const QualityItem& item, const Variant& variant) const {
    GenerationSpec spec;
    spec.prompt = item.prompt;
    spec.mode = variant.dense() ? "full" : "smartgen";
    if (!variant.dense()) {
      spec.options = {{"selector", variant.selector},
                      {"selection_budget", fmt::format("{}", variant.budget)}};
    }
    return spec;
  }

  void AddProbes(const QualityItem& item, const Variant& variant, Score& score,
                 std::vector<Probe>& probes) const {
    GenerationSpec spec = MakeSpec(item, variant);
    spec.logprobs = true;
    spec.forced = item.forced;
    spec.max_tokens = static_cast<int64_t>(item.forced.size());
    probes.push_back({&score, spec});
    if (!item.needle) return;
    spec.logprobs = false;
    spec.forced.resize(1);  // the lead
    spec.max_tokens = AnswerTokens(item);
    probes.push_back({&score, std::move(spec)});
  }

  absl::Status RunItem(const QualityItem& item, std::vector<Score>& scores) {
    std::vector<Probe> probes;
    for (size_t i = 0; i < scores.size(); ++i) {
      AddProbes(item, options_.variants[i], scores[i], probes);
    }
    RETURN_IF_ERROR(RunProbes({probes.data(), 1}));
    for (size_t at = 1; at < probes.size(); at += static_cast<size_t>(options_.batch)) {
      const size_t count = std::min(static_cast<size_t>(options_.batch), probes.size() - at);
      RETURN_IF_ERROR(RunProbes({probes.data() + at, count}));
    }
    return absl::OkStatus();
  }

  absl::Status RunProbes(std::span<Probe> probes) {
    std::vector<GenerationSpec> specs;
    for (const Probe& probe : probes) specs.push_back(probe.spec);
    ASSIGN_OR_RETURN(Outcome outcome, session_.Run(specs, options_.request_timeout));
    for (size_t i = 0; i < probes.size(); ++i) Take(probes[i], outcome.generations[i]);
    return absl::OkStatus();
  }

  void Take(const Probe& probe, Generation& generation) const {
    Score& score = *probe.score;
    const absl::Status status = Check(probe, generation);
    if (!status.ok()) {
      if (score.status.ok()) score.status = status;
      return;
    }
    score.cached_tokens = std::max(score.cached_tokens, generation.numbers["cached_tokens"]);
    if (probe.spec.logprobs) {
      score.logprobs.assign(generation.logprobs.begin() + 1, generation.logprobs.end());
      score.likeliest.assign(generation.likeliest.begin() + 1, generation.likeliest.end());
    } else {
      const std::span<const int32_t> tokens = generation.tokens;
      score.answer = tokenizer_.Decode(tokens.subspan(probe.spec.forced.size()), /*special=*/true);
    }
  }

  // What was measured is what was asked for.
  static absl::Status Check(const Probe& probe, const Generation& generation) {
    RETURN_IF_ERROR(generation.status);
    const auto mode = generation.texts.find("mode");
    const std::string taken = mode == generation.texts.end() ? "none" : mode->second;
    if (taken != "mode_" + probe.spec.mode) {
      return base::Internal("want mode {}, the request was served by {}", probe.spec.mode, taken);
    }
    const size_t forced = probe.spec.forced.size();
    const auto& tokens = generation.tokens;
    if (tokens.size() < forced ||
        !std::equal(probe.spec.forced.begin(), probe.spec.forced.end(), tokens.begin())) {
      return base::Internal("the {} forced tokens did not come: does decoded know forced_ids?",
                            forced);
    }
    if (probe.spec.logprobs && generation.logprobs.size() != forced) {
      return base::Internal("want log-probabilities of {} tokens, got {}", forced,
                            generation.logprobs.size());
    }
    return absl::OkStatus();
  }

  const QualityOptions& options_;
  const tokenizer::Tokenizer& tokenizer_;
  Session& session_;
};

}  // namespace

absl::Status MeasureQuality(const QualityOptions& options, std::vector<QualityItem> items,
                            const tokenizer::Tokenizer& tokenizer, const Rig& rig, StopSource& stop,
                            QualityMeasurements& measurements) {
  ASSIGN_OR_RETURN(const auto session, Session::Open(rig, &stop, options.start_timeout));
  return QualityRun(options, tokenizer, *session).Run(std::move(items), measurements);
}

}  // namespace smartgen::tools::bench
