// Parts of decode steps that are computed here (smartgen.md, section 6), between the layers of
// prompts.
#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <utility>

#include "common/base/log.h"
#include "prefill_server/engine.h"
#include "prefill_server/engine_metrics.h"

namespace smartgen::prefill_server {
namespace {

// What a quiet time saves up: handed-over steps may take so much at once after it. A debt has no
// bound: what was taken is given back in full.
constexpr double kMaxCreditSeconds = 0.2;
// Well below the time after which the other side asks again.
constexpr base::Duration kTellDeferral = std::chrono::milliseconds(500);
// More steps than transfers can be are a broken peer's; the oldest is dropped (it asks again).
constexpr size_t kMaxWaitingSteps = 4096;
// Tokens made anew before a step: many times what the other side ever asks for.
constexpr size_t kMaxReplayed = 256;
// Weight of a new step in the pace of steps, which changes slowly as a context grows.
constexpr double kPaceWeight = 0.5;

std::vector<std::byte> Bytes(std::span<const float> values) {
  const auto bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}

}  // namespace

void PrefillEngine::SubmitSplit(std::vector<SplitStep> steps) {
  {
    base::MutexLock lock(mutex_);
    for (SplitStep& step : steps) {
      // Asked again, or for the next token since the answer had come after all.
      std::erase_if(splits_, [&](const SplitStep& other) { return other.id == step.id; });
      splits_.push_back(std::move(step));
      if (splits_.size() > kMaxWaitingSteps) splits_.pop_front();
    }
  }
  mailbox_.Post([] {});  // wakes the engine
}

void PrefillEngine::SubmitAttend(std::vector<AttendStep> steps) {
  {
    base::MutexLock lock(mutex_);
    for (AttendStep& step : steps) {
      std::erase_if(attends_, [&](const AttendStep& other) {
        return other.id == step.id && other.layer == step.layer;
      });
      attends_.push_back(std::move(step));
      if (attends_.size() > kMaxWaitingSteps) attends_.pop_front();
    }
  }
  mailbox_.Post([] {});
}

void PrefillEngine::ResendMetadata(const base::TransferId& id,
                                   std::vector<transfer::LayerRange> ranges) {
  mailbox_.Post([this, id, ranges = std::move(ranges)] {
    const std::shared_ptr<Job> job = HeldJob(id);
    if (job == nullptr || job->metadata == nullptr) return;
    const auto sink = [&](int layer, int64_t begin, int64_t end, bool header,
                          std::vector<std::byte> bytes) {
      return job->spec.link->Metadata(id, layer, begin, end, header, std::move(bytes));
    };
    absl::Status status;
    for (const transfer::LayerRange& range : ranges) {
      if (status.ok()) status = job->metadata->Resend(range.layer, range.begin, range.end, sink);
    }
    if (!status.ok() && !job->cancelled()) {
      AbortTransfer(job, base::Annotate(status, "selection metadata again"));
    }
  });
}

bool PrefillEngine::MayHandOver() {
  const base::TimePoint now = parts_.clock->Now();
  const double passed = base::ToSeconds(now - handover_credit_at_);
  handover_credit_at_ = now;
  handover_credit_ =
      std::min(kMaxCreditSeconds, handover_credit_ + passed * options_.handover_share);
  handover_charged_ = !queue_.empty() || !running_.empty();
  if (!handover_charged_ || handover_credit_ > 0) {
    handover_deferred_ = false;
    return true;
  }
  if (!std::exchange(handover_deferred_, true)) {
    hot_->handover_deferred.Add();
    deferral_told_at_ = now;
  }
  return false;
}

void PrefillEngine::TellDeferral() {
  const base::TimePoint now = parts_.clock->Now();
  if (now - deferral_told_at_ < kTellDeferral) return;
  deferral_told_at_ = now;
  std::set<std::shared_ptr<Job>> jobs;
  {
    base::MutexLock lock(mutex_);
    const auto add = [&](const base::TransferId& id) {
      if (const auto it = jobs_.find(id); it != jobs_.end()) jobs.insert(it->second);
    };
    for (const SplitStep& step : splits_) add(step.id);
    for (const AttendStep& step : attends_) add(step.id);
  }
  for (const auto& job : jobs) job->spec.link->NotifyDeferred(job->spec.id);
}

bool PrefillEngine::RunHandover() {
  std::vector<SplitStep> splits;
  std::vector<AttendStep> attends;
  {
    base::MutexLock lock(mutex_);
    if (splits_.empty() && attends_.empty()) return false;
  }
  if (!MayHandOver()) {
    TellDeferral();
    return false;
  }
  {
    base::MutexLock lock(mutex_);
    const auto limit = static_cast<size_t>(options_.max_handover_batch);
    while (!splits_.empty() && splits.size() < limit) {
      splits.push_back(std::move(splits_.front()));
      splits_.pop_front();
    }
    while (!attends_.empty() && attends.size() < limit) {
      attends.push_back(std::move(attends_.front()));
      attends_.pop_front();
    }
  }
  const base::TimePoint begin = parts_.clock->Now();
  const auto seconds = [&] { return base::ToSeconds(parts_.clock->Now() - begin); };
  if (!splits.empty()) RunSplits(std::move(splits));
  const double split_seconds = seconds();
  if (!attends.empty()) RunAttends(std::move(attends));
  hot_->split_seconds.Add(split_seconds);
  hot_->attend_seconds.Add(seconds() - split_seconds);
  if (handover_charged_) handover_credit_ -= seconds();
  return true;
}

std::shared_ptr<Job> PrefillEngine::HeldJob(const base::TransferId& id) {
  std::shared_ptr<Job> job;
  {
    base::MutexLock lock(mutex_);
    if (const auto it = jobs_.find(id); it != jobs_.end()) job = it->second;
  }
  // Released, expired or cancelled meanwhile: the other side knows, or is told.
  if (job == nullptr || job->cancelled() || !job->computed()) return nullptr;
  return job;
}

void PrefillEngine::AbortTransfer(const std::shared_ptr<Job>& job, const absl::Status& status) {
  SMARTGEN_LOG(warn, "prefill", "a handed-over step failed transfer={}: {}",
               job->spec.id.ToString(), base::MessageOf(status));
  job->spec.link->NotifyAborted(job->spec.id, base::MessageOf(status));
  Cancel(job, status);
}

struct PrefillEngine::RunningSplit {
  std::shared_ptr<Job> job;
  std::shared_ptr<kv::KvSequence> sequence;
  SplitStep step;
  executor::SlotRead read;

  // Layers [layer, all) of `token` at `position`; `hidden` in and out.
  executor::DecodeSlot Slot(int64_t position, int32_t token, int layer, std::span<float> hidden) {
    executor::DecodeSlot slot;
    slot.sequence = sequence.get();
    slot.position = position;
    slot.token = token;
    slot.layer_begin = layer;
    slot.hidden = hidden;
    if (job->metadata != nullptr) {
      read.selector = job->metadata->selector();
      read.metadata = job->metadata->store();
      slot.read = &read;
    }
    return slot;
  }
};

absl::Status PrefillEngine::CheckSplit(const Job& job, const SplitStep& step) const {
  const auto hidden_dim = static_cast<size_t>(parts_.executor->config().hidden_dim);
  const int layers = parts_.pool->layout().num_layers();
  const int64_t capacity = parts_.pool->layout().token_capacity;
  if (step.layer < 0 || step.layer >= layers ||
      step.hidden.size() != (step.layer == 0 ? 0 : hidden_dim) || step.position < job.tokens() ||
      step.position >= capacity) {
    return base::InvalidArgument(
        "split step: layer {} of {}, {} hidden values (want {}), position {} (want {} to {})",
        step.layer, layers, step.hidden.size(), hidden_dim, step.position, job.tokens(),
        capacity - 1);
  }
  const auto before = static_cast<int64_t>(step.before.size());
  if (before > static_cast<int64_t>(kMaxReplayed) || step.position - before > job.held_tokens ||
      (before > 0 && step.layer > 0)) {
    return base::InvalidArgument(
        "split step: position {} from layer {} on with {} tokens before it, but KV of {} is here",
        step.position, step.layer, before, job.held_tokens);
  }
  return absl::OkStatus();
}

// Tokens that the other side made: their KV is there, and is not born here a second time.
absl::Status PrefillEngine::Replay(RunningSplit& split) {
  const int64_t first = split.step.position - static_cast<int64_t>(split.step.before.size());
  std::vector<float> hidden(split.step.hidden.size());
  while (split.job->held_tokens < split.step.position) {
    const int64_t position = split.job->held_tokens;
    const int32_t token = split.step.before[static_cast<size_t>(position - first)];
    const executor::DecodeSlot slot = split.Slot(position, token, 0, hidden);
    RETURN_IF_ERROR(RunSlots({&slot, 1}));
    ++split.job->held_tokens;
  }
  return absl::OkStatus();
}

void PrefillEngine::RunSplits(std::vector<SplitStep> steps) {
  const auto hidden_dim = static_cast<size_t>(parts_.executor->config().hidden_dim);
  std::vector<RunningSplit> running;
  for (SplitStep& step : steps) {
    const std::shared_ptr<Job> job = HeldJob(step.id);
    const std::shared_ptr<kv::KvSequence> sequence = job == nullptr ? nullptr : job->sequence();
    if (sequence == nullptr) continue;
    absl::Status status = CheckSplit(*job, step);
    if (status.ok()) status = sequence->Reserve(step.position + 1);
    RunningSplit split{job, sequence, std::move(step), {}};
    split.step.hidden.resize(hidden_dim);
    if (status.ok()) status = Replay(split);
    if (!status.ok()) {
      AbortTransfer(job, status);
      continue;
    }
    running.push_back(std::move(split));
  }
  std::vector<executor::DecodeSlot> slots;
  for (RunningSplit& one : running) {
    slots.push_back(one.Slot(one.step.position, one.step.token, one.step.layer, one.step.hidden));
  }
  if (slots.empty()) return;
  AnnounceReplies(running);
  const base::TimePoint begin = parts_.clock->Now();
  const absl::Status together = RunSlots(slots);
  if (together.ok()) NotePace(running, base::ToSeconds(parts_.clock->Now() - begin));
  for (size_t i = 0; i < running.size(); ++i) {
    RunningSplit& one = running[i];
    // One that cannot be computed must not take the others with it.
    const absl::Status status = together.ok() ? together : RunSlots({&slots[i], 1});
    if (const auto& trace = one.job->spec.trace; trace != nullptr) {
      trace->Add(trace::Kind::kSplitComputed, begin,
                 {one.step.position, one.step.layer, static_cast<int64_t>(slots.size())});
    }
    FinishSplit(one, status);
  }
  hot_->split_steps.Add(static_cast<double>(running.size()));
}

int PrefillEngine::MostLayers(std::span<const RunningSplit> running) const {
  int first = parts_.executor->config().num_layers();
  for (const RunningSplit& one : running) first = std::min(first, one.step.layer);
  return parts_.executor->config().num_layers() - first;
}

void PrefillEngine::AnnounceReplies(std::span<const RunningSplit> running) {
  const auto pace = split_pace_.find(PaceOf(running));
  if (pace == split_pace_.end()) return;
  const double seconds = pace->second * MostLayers(running);
  const base::TimePoint at = parts_.clock->Now() + base::FromSeconds(seconds);
  for (const RunningSplit& one : running) one.job->spec.link->ExpectReply(one.step.id, at);
}

void PrefillEngine::NotePace(std::span<const RunningSplit> running, double seconds) {
  const double now = seconds / MostLayers(running);
  const auto [pace, first] = split_pace_.emplace(PaceOf(running), now);
  if (!first) pace->second += kPaceWeight * (now - pace->second);
}

std::pair<size_t, int> PrefillEngine::PaceOf(std::span<const RunningSplit> running) {
  uint64_t tokens = 0;
  for (const RunningSplit& one : running) tokens += static_cast<uint64_t>(one.step.position);
  return {running.size(), std::bit_width(tokens)};
}

void PrefillEngine::FinishSplit(RunningSplit& split, absl::Status status) {
  const base::TransferId& id = split.step.id;
  DecodeLink& link = *split.job->spec.link;
  const int64_t position = split.step.position;
  if (status.ok()) {
    split.job->held_tokens = std::max(split.job->held_tokens, position + 1);
    status = link.Born(id, split.step.layer, position);
  }
  if (status.ok()) {
    status =
        link.Reply(id, static_cast<uint64_t>(position), split.step.layer, Bytes(split.step.hidden));
  }
  if (!status.ok() && !split.job->cancelled()) AbortTransfer(split.job, status);
}

absl::Status PrefillEngine::RunSlots(std::span<const executor::DecodeSlot> slots) {
  const bool selects = std::any_of(slots.begin(), slots.end(),
                                   [](const auto& slot) { return slot.read != nullptr; });
  if (!selects) return parts_.executor->Decode(slots);
  ASSIGN_OR_RETURN(const auto run, parts_.executor->StartStep(slots));
  ASSIGN_OR_RETURN(const auto state, run->Advance());
  if (state == executor::StepRun::State::kDone) return absl::OkStatus();
  return base::Internal("a step whose KV is all here would wait");
}

struct PrefillEngine::RunningAttend {
  std::shared_ptr<Job> job;
  std::shared_ptr<kv::KvSequence> sequence;
  AttendStep step;
  std::vector<float> answer;  // outputs of all heads, then their lse
  executor::AttendJob attend;
};

absl::Status PrefillEngine::CheckAttend(const Job& job, const AttendStep& step) const {
  const model::ModelConfig& config = parts_.executor->config();
  if (step.layer < 0 || step.layer >= config.num_layers() || step.begin < 0 ||
      step.begin >= step.end || step.end > job.tokens()) {
    return base::InvalidArgument("attend: layer {} of {}, tokens [{}, {}) of {}", step.layer,
                                 config.num_layers(), step.begin, step.end, job.tokens());
  }
  const model::LayerConfig& layer = config.layers[step.layer];
  const int64_t values = int64_t{layer.num_heads} * layer.head_dim;
  if (static_cast<int64_t>(step.queries.size()) != values) {
    return base::InvalidArgument("attend: want {} query values, got {}", values,
                                 step.queries.size());
  }
  return absl::OkStatus();
}

void PrefillEngine::RunAttends(std::vector<AttendStep> steps) {
  std::vector<std::unique_ptr<RunningAttend>> running;
  std::vector<executor::AttendJob> together;
  for (AttendStep& step : steps) {
    const std::shared_ptr<Job> job = HeldJob(step.id);
    std::shared_ptr<kv::KvSequence> sequence = job == nullptr ? nullptr : job->sequence();
    if (sequence == nullptr) continue;
    if (const absl::Status status = CheckAttend(*job, step); !status.ok()) {
      AbortTransfer(job, status);
      continue;
    }
    auto one = std::make_unique<RunningAttend>();
    one->job = job;
    one->sequence = std::move(sequence);
    one->step = std::move(step);
    const size_t values = one->step.queries.size();
    one->answer.resize(
        values + static_cast<size_t>(parts_.executor->config().layers[one->step.layer].num_heads));
    one->attend = {.sequence = one->sequence.get(),
                   .layer = one->step.layer,
                   .begin = one->step.begin,
                   .end = one->step.end,
                   .queries = one->step.queries,
                   .out = std::span<float>(one->answer).first(values),
                   .lse = std::span<float>(one->answer).subspan(values)};
    together.push_back(one->attend);
    running.push_back(std::move(one));
  }
  if (running.empty()) return;
  const base::TimePoint begin = parts_.clock->Now();
  const absl::Status all = parts_.executor->Attend(together);
  for (const auto& one : running) {
    // One that cannot be computed does not take the others with it.
    absl::Status status = all;
    if (!all.ok() && running.size() > 1) status = parts_.executor->Attend({&one->attend, 1});
    if (const auto& trace = one->job->spec.trace; trace != nullptr) {
      trace->Add(trace::Kind::kAttendComputed, begin,
                 {one->step.position, one->step.layer, one->step.end - one->step.begin});
    }
    if (status.ok()) {
      status = one->job->spec.link->Reply(one->step.id, static_cast<uint64_t>(one->step.position),
                                          one->step.layer, Bytes(one->answer));
    }
    if (!status.ok() && !one->job->cancelled()) AbortTransfer(one->job, status);
  }
}

}  // namespace smartgen::prefill_server
