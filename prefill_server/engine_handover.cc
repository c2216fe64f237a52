// Parts of decode steps that are computed here (smartgen.md, section 6), between the layers of
// prompts.
#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/log.h"
#include "prefill_server/engine.h"
#include "prefill_server/engine_metrics.h"

namespace smartgen::prefill_server {
namespace {

// Handed-over steps may take this much at once after a quiet time, and owe this much at most.
constexpr double kMaxCreditSeconds = 0.2;
// More steps than transfers can be are a broken peer's; the oldest is dropped (it asks again).
constexpr size_t kMaxWaitingSteps = 4096;

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

bool PrefillEngine::MayHandOver() {
  const base::TimePoint now = parts_.clock->Now();
  const double passed = base::ToSeconds(now - handover_credit_at_);
  handover_credit_at_ = now;
  handover_credit_ =
      std::min(kMaxCreditSeconds, handover_credit_ + passed * options_.handover_share);
  if (queue_.empty() && running_.empty()) return true;
  if (handover_credit_ > 0) {
    handover_deferred_ = false;
    return true;
  }
  if (!std::exchange(handover_deferred_, true)) hot_->handover_deferred.Add();
  return false;
}

bool PrefillEngine::RunHandover() {
  std::vector<SplitStep> splits;
  std::vector<AttendStep> attends;
  {
    base::MutexLock lock(mutex_);
    if (splits_.empty() && attends_.empty()) return false;
  }
  if (!MayHandOver()) return false;
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
  handover_credit_ = std::max(-kMaxCreditSeconds, handover_credit_ - seconds());
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

void PrefillEngine::RunSplits(std::vector<SplitStep> steps) {
  const auto hidden_dim = static_cast<size_t>(parts_.executor->config().hidden_dim);
  const int layers = parts_.pool->layout().num_layers();
  struct Running {
    std::shared_ptr<Job> job;
    std::shared_ptr<kv::KvSequence> sequence;
    SplitStep step;
    executor::SlotRead read;
  };
  std::vector<Running> running;
  for (SplitStep& step : steps) {
    const std::shared_ptr<Job> job = HeldJob(step.id);
    const std::shared_ptr<kv::KvSequence> sequence = job == nullptr ? nullptr : job->sequence();
    if (sequence == nullptr) continue;
    absl::Status status;
    if (step.layer < 0 || step.layer >= layers ||
        step.hidden.size() != (step.layer == 0 ? 0 : hidden_dim) || step.position < job->tokens() ||
        step.position >= sequence->layout().token_capacity) {
      status = base::InvalidArgument(
          "split step: layer {} of {}, {} hidden values (want {}), position {} (want {} to {})",
          step.layer, layers, step.hidden.size(), hidden_dim, step.position, job->tokens(),
          sequence->layout().token_capacity - 1);
    } else {
      status = sequence->Reserve(step.position + 1);
    }
    if (!status.ok()) {
      AbortTransfer(job, status);
      continue;
    }
    step.hidden.resize(hidden_dim);
    running.push_back({job, sequence, std::move(step), {}});
  }
  std::vector<executor::DecodeSlot> slots;
  for (Running& one : running) {
    executor::DecodeSlot slot;
    slot.sequence = one.sequence.get();
    slot.position = one.step.position;
    slot.token = one.step.token;
    slot.layer_begin = one.step.layer;
    slot.hidden = one.step.hidden;
    if (one.job->metadata != nullptr) {
      one.read.selector = one.job->metadata->selector();
      one.read.metadata = one.job->metadata->store();
      slot.read = &one.read;
    }
    slots.push_back(slot);
  }
  if (slots.empty()) return;
  const absl::Status together = RunSlots(slots);
  for (size_t i = 0; i < running.size(); ++i) {
    Running& one = running[i];
    const base::TransferId& id = one.step.id;
    // One that cannot be computed must not take the others with it.
    absl::Status status = together;
    if (!together.ok()) status = RunSlots({&slots[i], 1});
    if (status.ok()) status = one.job->spec.link->Born(id, one.step.layer, one.step.position);
    if (status.ok()) {
      status = one.job->spec.link->Reply(id, static_cast<uint64_t>(one.step.position),
                                         one.step.layer, Bytes(one.step.hidden));
    }
    if (!status.ok() && !one.job->cancelled()) AbortTransfer(one.job, status);
  }
  hot_->split_steps.Add(static_cast<double>(running.size()));
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

void PrefillEngine::RunAttends(std::vector<AttendStep> steps) {
  const model::ModelConfig& config = parts_.executor->config();
  for (AttendStep& step : steps) {
    const std::shared_ptr<Job> job = HeldJob(step.id);
    const std::shared_ptr<kv::KvSequence> sequence = job == nullptr ? nullptr : job->sequence();
    if (sequence == nullptr) continue;
    absl::Status status;
    if (step.layer < 0 || step.layer >= config.num_layers() || step.begin < 0 ||
        step.begin >= step.end || step.end > job->tokens()) {
      status = base::InvalidArgument("attend: layer {} of {}, tokens [{}, {}) of {}", step.layer,
                                     config.num_layers(), step.begin, step.end, job->tokens());
    } else {
      const model::LayerConfig& layer = config.layers[step.layer];
      const auto heads = static_cast<size_t>(layer.num_heads);
      const size_t values = heads * static_cast<size_t>(layer.head_dim);
      if (step.queries.size() != values) {
        status = base::InvalidArgument("attend: want {} query values, got {}", values,
                                       step.queries.size());
      } else {
        std::vector<float> answer(values + heads);
        executor::AttendJob attend;
        attend.sequence = sequence.get();
        attend.layer = step.layer;
        attend.begin = step.begin;
        attend.end = step.end;
        attend.queries = step.queries;
        attend.out = std::span<float>(answer).first(values);
        attend.lse = std::span<float>(answer).subspan(values);
        status = parts_.executor->Attend({&attend, 1});
        if (status.ok()) {
          status = job->spec.link->Reply(step.id, static_cast<uint64_t>(step.position), step.layer,
                                         Bytes(answer));
        }
      }
    }
    if (!status.ok() && !job->cancelled()) AbortTransfer(job, status);
  }
}

}  // namespace smartgen::prefill_server
