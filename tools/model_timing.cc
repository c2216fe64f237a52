#include "tools/model_timing.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "common/base/clock.h"

namespace smartgen::tools {
namespace {

using transfer::PrefillPoint;
using transfer::StepPoint;

constexpr int64_t kFirstRung = 16;
constexpr int64_t kRungFactor = 4;
// Tokens that are really computed; their KV stands for any.
constexpr int64_t kTextTokens = 256;
constexpr int kTimedSteps = 5;
// A pair of tokens (attention) and a step against a token, for the progress bar only.
constexpr double kPairsPerToken = 10000;
constexpr double kTokensPerStep = 8;

double Seconds(base::TimePoint since) {
  return base::ToSeconds(base::Clock::Real()->Now() - since);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// Speed does not hang on the words.
std::vector<executor::TokenId> SomeTokens(int64_t begin, int64_t end, int vocab_size) {
  std::vector<executor::TokenId> tokens;
  for (int64_t i = begin; i < end; ++i) {
    tokens.push_back(static_cast<executor::TokenId>((i * 7919 + 13) % vocab_size));
  }
  return tokens;
}

// A prompt in the time of tokens.
double Work(const PrefillPoint& p) {
  const auto n = static_cast<double>(p.tokens);
  return n + n * (static_cast<double>(p.prefix) + n / 2) / kPairsPerToken;
}

double Work(const StepPoint& p) {
  const auto batch = static_cast<double>(p.batch);
  return (kTimedSteps + 1) *
         (kTokensPerStep + batch + batch * static_cast<double>(p.context) / kPairsPerToken);
}

std::string Describe(const PrefillPoint& p) {
  return p.prefix == 0 ? fmt::format("prompt of {} tokens", p.tokens)
                       : fmt::format("{} tokens after {} cached", p.tokens, p.prefix);
}

std::string Describe(const StepPoint& p) {
  return fmt::format("step of {} with {} tokens", p.batch, p.context);
}

}  // namespace

TimingPlan PlanTiming(int64_t max_tokens, int64_t max_batch) {
  TimingPlan plan;
  std::set<std::pair<int64_t, int64_t>> taken;
  const auto prefill = [&](int64_t tokens, int64_t prefix, bool held_out) {
    const int64_t cached = prefix / kv::kPageTokens * kv::kPageTokens;  // as the prefix cache's
    if (tokens + cached > max_tokens || (prefix > 0 && cached == 0)) return;
    if (!taken.insert({tokens, cached}).second) return;
    plan.prefill.push_back({tokens, cached, 0, held_out});
  };
  const int64_t far = max_tokens * 3 / 4;
  for (int64_t n = kFirstRung; n < max_tokens; n *= kRungFactor) {
    prefill(n, 0, false);
    prefill(n, far, false);
    if (n > kFirstRung) prefill(n, far / 3, false);
  }
  prefill(max_tokens, 0, false);
  for (int64_t n = kFirstRung * 2; n < max_tokens; n *= kRungFactor) {
    prefill(n, 0, true);
    prefill(n, max_tokens / 2, true);
  }

  taken.clear();
  const auto step = [&](int64_t batch, int64_t context, bool held_out) {
    if (batch > max_batch || context >= max_tokens) return;
    if (taken.insert({batch, context}).second) plan.steps.push_back({batch, context, 0, held_out});
  };
  std::vector<int64_t> batches = {1};
  while (batches.back() < max_batch) batches.push_back(std::min(batches.back() * 2, max_batch));
  for (const int64_t batch : batches) {
    for (const int64_t context : {kFirstRung, max_tokens / 4, max_tokens - 1}) {
      step(batch, context, false);
    }
  }
  step(1, max_tokens / 2, true);
  for (int64_t batch = 3; batch < max_batch; batch *= 2) {
    step(batch, max_tokens / 8, true);
    step(batch, max_tokens / 2, true);
  }
  return plan;
}

int64_t TokensHeld(const TimingPlan& plan) {
  int64_t held = 0;
  for (const PrefillPoint& p : plan.prefill) held = std::max(held, p.prefix + p.tokens);
  for (const StepPoint& p : plan.steps) {
    // Whole pages, and one token more for each.
    held = std::max(held, p.batch * kv::KvPool::PagesFor(p.context + 1) * kv::kPageTokens);
  }
  return held + kTextTokens;
}

int64_t Shrink(TimingPlan& plan, int64_t max_tokens_held) {
  return static_cast<int64_t>(std::erase_if(plan.steps, [&](const StepPoint& p) {
    return TokensHeld({.prefill = {}, .steps = {p}}) > max_tokens_held;
  }));
}

absl::StatusOr<std::unique_ptr<ModelTimer>> ModelTimer::Create(executor::Executor* executor,
                                                               kv::KvPool* pool,
                                                               int max_prefill_tokens) {
  auto timer =
      std::unique_ptr<ModelTimer>(new ModelTimer(executor, pool, std::max(max_prefill_tokens, 1)));
  const int64_t tokens =
      std::min(kTextTokens, pool->layout().token_capacity / kv::kPageTokens * kv::kPageTokens);
  RETURN_IF_ERROR(timer->text_.Reserve(tokens));
  RETURN_IF_ERROR(timer->Compute(timer->text_, 0, tokens));
  return timer;
}

absl::Status ModelTimer::Compute(kv::KvSequence& sequence, int64_t begin, int64_t end) {
  const auto tokens = SomeTokens(begin, end, executor_->config().vocab_size);
  logits_.resize(executor_->config().vocab_size);
  for (int64_t at = begin; at < end; at += max_prefill_tokens_) {
    const int64_t next = std::min(end, at + max_prefill_tokens_);
    executor::PrefillChunk chunk;
    chunk.sequence = &sequence;
    chunk.start = at;
    chunk.tokens =
        std::span(tokens).subspan(static_cast<size_t>(at - begin), static_cast<size_t>(next - at));
    if (next == end) chunk.last_logits = logits_;
    RETURN_IF_ERROR(executor_->Prefill(chunk));
  }
  return absl::OkStatus();
}

void ModelTimer::Fill(kv::KvSequence& sequence, int64_t tokens) {
  const auto text_pages = static_cast<int64_t>(text_.pages().size());
  for (int layer = 0; layer < pool_->layout().num_layers(); ++layer) {
    const auto bytes = static_cast<size_t>(pool_->layout().PageBytes(layer));
    for (int64_t page = 0; page < kv::KvPool::PagesFor(tokens); ++page) {
      std::memcpy(sequence.Page(layer, page), text_.Page(layer, page % text_pages), bytes);
    }
    sequence.MarkLocal(layer, 0, tokens);
  }
}

absl::StatusOr<double> ModelTimer::Prefill(int64_t tokens, int64_t prefix) {
  kv::KvSequence sequence(pool_);
  RETURN_IF_ERROR(sequence.Reserve(prefix + tokens));
  Fill(sequence, prefix);
  const base::TimePoint start = base::Clock::Real()->Now();
  RETURN_IF_ERROR(Compute(sequence, prefix, prefix + tokens));
  return Seconds(start);
}

absl::StatusOr<double> ModelTimer::Step(int64_t batch, int64_t context) {
  std::vector<std::unique_ptr<kv::KvSequence>> sequences;
  const auto vocab = static_cast<size_t>(executor_->config().vocab_size);
  std::vector<float> logits(vocab * static_cast<size_t>(batch));
  std::vector<executor::DecodeSlot> slots;
  for (int64_t i = 0; i < batch; ++i) {
    sequences.push_back(std::make_unique<kv::KvSequence>(pool_));
    RETURN_IF_ERROR(sequences.back()->Reserve(context + 1));
    Fill(*sequences.back(), context);
    executor::DecodeSlot& slot = slots.emplace_back();
    slot.sequence = sequences.back().get();
    slot.position = context;
    slot.logits = std::span(logits).subspan(vocab * static_cast<size_t>(i), vocab);
  }
  std::vector<double> seconds;
  for (int step = 0; step <= kTimedSteps; ++step) {
    const base::TimePoint start = base::Clock::Real()->Now();
    RETURN_IF_ERROR(executor_->Decode(slots));
    if (step > 0) seconds.push_back(Seconds(start));
  }
  return Median(std::move(seconds));
}

double TimingWork(const TimingPlan& plan, int runs) {
  double work = 0;
  for (const PrefillPoint& p : plan.prefill) work += Work(p);
  for (const StepPoint& p : plan.steps) work += Work(p);
  return work * runs;
}

absl::StatusOr<transfer::CostPoints> MeasureTiming(ModelTimer& timer, const TimingPlan& plan,
                                                   int runs, const TimingEvents& events) {
  std::vector<std::vector<double>> prefill(plan.prefill.size());
  std::vector<std::vector<double>> steps(plan.steps.size());
  for (int run = 0; run < runs; ++run) {
    for (size_t i = 0; i < plan.prefill.size(); ++i) {
      const PrefillPoint& p = plan.prefill[i];
      events.begin(Describe(p));
      ASSIGN_OR_RETURN(const double seconds, timer.Prefill(p.tokens, p.prefix));
      prefill[i].push_back(seconds);
      events.end(Work(p));
    }
    for (size_t i = 0; i < plan.steps.size(); ++i) {
      const StepPoint& p = plan.steps[i];
      events.begin(Describe(p));
      ASSIGN_OR_RETURN(const double seconds, timer.Step(p.batch, p.context));
      steps[i].push_back(seconds);
      events.end(Work(p));
    }
  }
  transfer::CostPoints points{.prefill = plan.prefill, .steps = plan.steps, .links = {}};
  for (size_t i = 0; i < prefill.size(); ++i) points.prefill[i].seconds = Median(prefill[i]);
  for (size_t i = 0; i < steps.size(); ++i) points.steps[i].seconds = Median(steps[i]);
  return points;
}

}  // namespace smartgen::tools
