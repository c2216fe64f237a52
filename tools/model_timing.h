// How long prompts and decode steps of a model take on this machine: the measurements of
// `smartgen calibrate`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/executor/executor.h"
#include "common/kv/pool.h"
#include "common/transfer/cost_model.h"

namespace smartgen::tools {

struct TimingPlan {
  // Seconds are not filled in.
  std::vector<transfer::PrefillPoint> prefill;
  std::vector<transfer::StepPoint> steps;
};

// Points up to `max_tokens` (prefix and tokens together) and `max_batch`: a ladder of lengths by
// fours, some of them after cached prefixes, and steps at the corners of batch and context; between
// these, points that are held out. At least 64 tokens; a batch of 1 gives steps of one sequence.
TimingPlan PlanTiming(int64_t max_tokens, int64_t max_batch);
// KV tokens that the plan holds at once.
int64_t TokensHeld(const TimingPlan& plan);
// Leaves out steps that hold more KV than `max_tokens_held`; returns how many.
int64_t Shrink(TimingPlan& plan, int64_t max_tokens_held);

// Times prompts and steps on KV of an executor. Contexts are not computed: the KV of a short text
// is repeated, which takes the same time to read.
class ModelTimer {
 public:
  // `pool` and `executor` must outlive it. ResourceExhausted if the pool has no room.
  static absl::StatusOr<std::unique_ptr<ModelTimer>> Create(executor::Executor* executor,
                                                            kv::KvPool* pool,
                                                            int max_prefill_tokens);
  // Seconds of one run, in chunks of max_prefill_tokens.
  absl::StatusOr<double> Prefill(int64_t tokens, int64_t prefix);
  // Seconds of a step: the median of a few, after one that does not count.
  absl::StatusOr<double> Step(int64_t batch, int64_t context);

 private:
  ModelTimer(executor::Executor* executor, kv::KvPool* pool, int max_prefill_tokens)
      : executor_(executor), pool_(pool), max_prefill_tokens_(max_prefill_tokens), text_(pool) {}
  absl::Status Compute(kv::KvSequence& sequence, int64_t begin, int64_t end);
  // Makes tokens [0, tokens) of `sequence` local.
  void Fill(kv::KvSequence& sequence, int64_t tokens);

  executor::Executor* const executor_;
  kv::KvPool* const pool_;
  const int64_t max_prefill_tokens_;
  kv::KvSequence text_;  // whose KV is repeated
  std::vector<float> logits_;
};

// Measures the plan's points `runs` times, the whole plan in turns, so that what disturbs the
// machine for a while hits single runs; medians. Called before each measurement: `begin` with what
// is measured; after it: `end` with its share of TimingWork.
struct TimingEvents {
  std::function<void(const std::string& what)> begin;
  std::function<void(double work)> end;
};
absl::StatusOr<transfer::CostPoints> MeasureTiming(ModelTimer& timer, const TimingPlan& plan,
                                                   int runs, const TimingEvents& events);
// The plan's work, in about the time of a token.
double TimingWork(const TimingPlan& plan, int runs);

}  // namespace smartgen::tools
