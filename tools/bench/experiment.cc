#include "tools/bench/experiment.h"

#include <algorithm>
#include <cmath>

#include "common/kv/layout.h"
#include "tools/bench/figures.h"

namespace smartgen::tools::bench {
namespace {

constexpr base::Duration kProbe = std::chrono::milliseconds(500);
// A shaped link that one connection cannot fill to this share is not what was asked for.
constexpr double kLeastOfRate = 0.8;
constexpr int kStepTokens = 8;  // for a first idea of a step's time

int LargestBatch(const std::vector<Case>& cases) {
  int batch = 1;
  for (const Case& one : cases) batch = std::max(batch, one.batch);
  return batch;
}

std::string Show(const Link& link) {
  if (link.wish == LinkWish()) return "the link as it is";
  return link.wish.ratio > 0 ? fmt::format("R {:g}", link.wish.ratio)
                             : fmt::format("{:.1f} Mbit/s", link.bytes_per_second * 8e-6);
}

class Experiment {
 public:
  Experiment(const ExperimentOptions& options, const std::vector<std::vector<Prompt>>& prompts,
             int vocab_size, Network& network, Session& session)
      : options_(options),
        prompts_(prompts),
        vocab_size_(vocab_size),
        network_(network),
        session_(session),
        batch_(LargestBatch(options.cases)) {
    measurements_.model = session.model();
  }

  absl::StatusOr<Measurements> Run() {
    RETURN_IF_ERROR(CheckLengths());
    RETURN_IF_ERROR(Announce());
    for (size_t i = 0; i < options_.lengths.size(); ++i) {
      for (const LinkWish& wish : options_.links) RETURN_IF_ERROR(RunLink(i, wish));
    }
    return std::move(measurements_);
  }

 private:
  absl::Status CheckLengths() const {
    for (const int length : options_.lengths) {
      if (length + int64_t{options_.tokens} <= session_.model().context_length) continue;
      return base::InvalidArgument(
          "lengths: {} prompt tokens and {} generated ones are more than the context of {}", length,
          options_.tokens, session_.model().context_length);
    }
    return absl::OkStatus();
  }

  void Say(const std::string& line) const {
    if (options_.progress) options_.progress(line);
  }

  base::Duration Patience(double seconds) const {
    return base::FromSeconds(60 + 10 * seconds + options_.tokens);
  }

  absl::StatusOr<Generation> One(const Prompt& prompt, const std::string& mode, int64_t max_tokens,
                                 double seconds) {
    ASSIGN_OR_RETURN(Outcome outcome,
                     session_.Run({{prompt, max_tokens, mode, {}}}, Patience(seconds)));
    RETURN_IF_ERROR(outcome.generations[0].status);
    return std::move(outcome.generations[0]);
  }

  // T_p: the time to token 1 of prompts that the prefill side has not seen, nothing transferred.
  absl::StatusOr<Calibration> Calibrate(size_t index, int runs) {
    RETURN_IF_ERROR(network_.SetRate(0));
    Calibration calibration;
    calibration.length = options_.lengths[index];
    calibration.kv_bytes = KvBytes(session_.model().layout, calibration.length);
    const auto prompt = [&](int number) {
      Prompt one = prompts_[index][static_cast<size_t>(options_.prompts * batch_ + number)];
      if (SweepsPrefix()) Vary(one, 0);  // calibrations before this one left it in the cache
      return one;
    };
    constexpr double kSlow = 600;  // a prefill of unknown speed
    for (int run = 0; run < runs; ++run) {
      ASSIGN_OR_RETURN(const Generation generation,
                       One(prompt(run), options_.calibration_mode, 1, kSlow));
      calibration.prefill_seconds.push_back(generation.token_seconds[0]);
    }
    calibration.t_p = Mean(calibration.prefill_seconds);
    ASSIGN_OR_RETURN(
        const Generation local,
        One(prompt(0), "local", std::min(kStepTokens, std::max(options_.tokens, 2)), kSlow));
    calibration.local_seconds = local.token_seconds[0];
    calibration.step_seconds = Percentile(TimesOf(local.token_seconds).steps, 0.5);
    return calibration;
  }

  // A look at each length: weights are read from disk, buffers allocated, and it can be said how
  // long all will take. An upper bound: modes that hide the transfer are quicker.
  absl::Status Announce() {
    double seconds = 0;
    for (size_t i = 0; i < options_.lengths.size(); ++i) {
      ASSIGN_OR_RETURN(const Calibration c, Calibrate(i, 1));
      const double decode = options_.tokens * c.step_seconds;
      for (const LinkWish& wish : options_.links) {
        seconds += (options_.calibration_runs + 1) * c.t_p;
        for (const Case& one : options_.cases) {
          const double transfer = one.mode == "local" ? 0 : MakeLink(c, wish).transfer_seconds;
          total_ += options_.prompts * one.batch;
          seconds += options_.prompts * (one.batch * (c.t_p + transfer) + decode);
        }
      }
      if (options_.compare_tokens) seconds += options_.prompts * batch_ * (c.t_p + decode);
    }
    Say(fmt::format("{} requests, at most about {:.0f} min", total_, std::ceil(seconds / 60)));
    return absl::OkStatus();
  }

  static Link MakeLink(const Calibration& calibration, const LinkWish& wish) {
    Link link;
    link.wish = wish;
    link.bytes_per_second = wish.ratio > 0
                                ? RateForRatio(calibration.kv_bytes, calibration.t_p, wish.ratio)
                                : wish.bytes_per_second;
    Derive(calibration, link);
    return link;
  }

  static void Derive(const Calibration& calibration, Link& link) {
    if (link.bytes_per_second <= 0) return;
    link.transfer_seconds = static_cast<double>(calibration.kv_bytes) / link.bytes_per_second;
    link.ratio = link.transfer_seconds / calibration.t_p;
  }

  absl::StatusOr<Link> SetLink(const Calibration& calibration, const LinkWish& wish) {
    Link link = MakeLink(calibration, wish);
    if (!network_.ours()) return link;
    RETURN_IF_ERROR(network_.SetRate(link.bytes_per_second));
    ASSIGN_OR_RETURN(link.probed, network_.MeasureRate(kProbe));
    if (link.bytes_per_second == 0) {
      link.bytes_per_second = *link.probed;
      Derive(calibration, link);
    } else if (*link.probed < kLeastOfRate * link.bytes_per_second) {
      return base::InvalidArgument(
          "{} tokens at {}: the link would have to carry {:.1f} MB/s, this machine's carries "
          "{:.1f}",
          calibration.length, Show(link), link.bytes_per_second * 1e-6, *link.probed * 1e-6);
    }
    return link;
  }

  absl::Status RunLink(size_t index, const LinkWish& wish) {
    ASSIGN_OR_RETURN(const Calibration calibration, Calibrate(index, options_.calibration_runs));
    Say(fmt::format("{} tokens: T_p {:.3f} s, KV {:.2f} MB, decode step {:.1f} ms",
                    calibration.length, calibration.t_p,
                    static_cast<double>(calibration.kv_bytes) * 1e-6,
                    calibration.step_seconds * 1e3));
    ASSIGN_OR_RETURN(const Link link, SetLink(calibration, wish));
    if (link.probed) {
      Say(fmt::format("{} tokens, {}: {:.2f} MB/s (one connection gets {:.2f}), T_t {:.2f} s",
                      calibration.length, Show(link), link.bytes_per_second * 1e-6,
                      *link.probed * 1e-6, link.transfer_seconds));
    }
    std::vector<Cell> cells;
    for (const Case& one : options_.cases) {
      Cell& cell = cells.emplace_back();
      cell.calibration = calibration;
      cell.link = link;
      cell.what = one;
    }
    for (int prompt = 0; prompt < options_.prompts; ++prompt) {
      for (Cell& cell : cells) RETURN_IF_ERROR(RunCase(index, prompt, cell));
    }
    ASSIGN_OR_RETURN(const int64_t drops, network_.Drops());
    for (Cell& cell : cells) {
      cell.link.drops = drops;
      measurements_.cells.push_back(std::move(cell));
    }
    return absl::OkStatus();
  }

  bool SweepsPrefix() const {
    return std::any_of(options_.cases.begin(), options_.cases.end(),
                       [](const Case& c) { return c.prefix_hit > 0; });
  }
  // Another token there in every call.
  void Vary(Prompt& prompt, size_t at) {
    prompt[at] = static_cast<int32_t>((prompt[at] + ++nonce_) % vocab_size_);
  }

  // A token at the end of the part that is cached, different in every run: what an earlier run left
  // in the cache ends before it.
  absl::Status PrepareCache(const Case& what, double seconds, Prompt& prompt) {
    const auto cached = static_cast<int64_t>(what.prefix_hit * static_cast<double>(prompt.size())) /
                        kv::kPageTokens * kv::kPageTokens;
    Vary(prompt, static_cast<size_t>(cached));
    if (cached == 0) return absl::OkStatus();
    const Prompt head(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(cached));
    return One(head, options_.calibration_mode, 1, seconds).status();
  }

  absl::Status RunCase(size_t index, int number, Cell& cell) {
    const Calibration& calibration = cell.calibration;
    const double seconds = cell.what.batch * (calibration.t_p + cell.link.transfer_seconds +
                                              options_.tokens * calibration.step_seconds);
    const bool sweeps_prefix = SweepsPrefix();
    std::vector<GenerationSpec> specs;
    std::vector<int> used;
    for (int i = 0; i < cell.what.batch; ++i) {
      used.push_back(number * batch_ + i);
      Prompt prompt = prompts_[index][static_cast<size_t>(used.back())];
      if (sweeps_prefix) RETURN_IF_ERROR(PrepareCache(cell.what, seconds, prompt));
      specs.push_back({std::move(prompt), options_.tokens, cell.what.mode, cell.what.options});
    }
    // Before the run: it must not fall into the time of what it is compared with.
    const bool compare = options_.compare_tokens && !sweeps_prefix;
    if (compare) {
      for (const int prompt : used) RETURN_IF_ERROR(MakeBaseline(index, prompt, seconds));
    }
    ASSIGN_OR_RETURN(Outcome outcome, session_.Run(specs, Patience(seconds)));
    for (size_t i = 0; i < outcome.generations.size(); ++i) {
      Generation& generation = outcome.generations[i];
      ++done_;
      bench::Run run;
      run.prompt = used[i];
      if (compare && generation.status.ok()) {
        run.first_difference =
            FirstDifference(generation.tokens, baselines_[{index, used[i]}].tokens);
      }
      SayRun(cell, generation);
      run.generation = std::move(generation);
      cell.runs.push_back(std::move(run));
    }
    AddTo(cell.decode, outcome.decode);
    AddTo(cell.prefill, outcome.prefill);
    return absl::OkStatus();
  }

  absl::Status MakeBaseline(size_t index, int prompt, double seconds) {
    if (baselines_.contains({index, prompt})) return absl::OkStatus();
    ASSIGN_OR_RETURN(
        baselines_[std::pair(index, prompt)],
        One(prompts_[index][static_cast<size_t>(prompt)], "local", options_.tokens, seconds));
    return absl::OkStatus();
  }

  void SayRun(const Cell& cell, const Generation& generation) const {
    const std::string where = fmt::format("[{}/{}] {} tokens, {}, {}", done_, total_,
                                          cell.calibration.length, Show(cell.link), cell.what.name);
    if (!generation.status.ok()) {
      Say(fmt::format("{}: failed: {}", where, base::MessageOf(generation.status)));
      return;
    }
    const TokenTimes times = TimesOf(generation.token_seconds);
    Say(fmt::format("{}: TTFT {:.3f} s, second token {:.3f} s after it, last {:.3f} s", where,
                    times.ttft, times.gap.value_or(0), generation.token_seconds.back()));
  }

  const ExperimentOptions& options_;
  const std::vector<std::vector<Prompt>>& prompts_;
  const int vocab_size_;
  Network& network_;
  Session& session_;
  const int batch_;
  Measurements measurements_;
  std::map<std::pair<size_t, int>, Generation> baselines_;  // by length's index and prompt
  int total_ = 0;                                           // requests
  int done_ = 0;
  int64_t nonce_ = 0;
};

}  // namespace

int PromptsNeeded(const ExperimentOptions& options) {
  return options.prompts * LargestBatch(options.cases) + options.calibration_runs;
}

absl::StatusOr<Measurements> Measure(const ExperimentOptions& options,
                                     const std::vector<std::vector<Prompt>>& prompts,
                                     int vocab_size, Network& network, const Rig& rig,
                                     StopSource& stop) {
  ASSIGN_OR_RETURN(const auto session, Session::Open(rig, &stop, options.start_timeout));
  return Experiment(options, prompts, vocab_size, network, *session).Run();
}

}  // namespace smartgen::tools::bench
