#include "prefill_server/job.h"

#include <cstdlib>

#include "common/base/log.h"

namespace smartgen::prefill_server {

void Job::Cancel(const absl::Status& reason) {
  base::MutexLock lock(mutex_);
  if (cancelled_.load(std::memory_order_relaxed)) return;
  cancel_reason_ = reason;
  cancelled_.store(true, std::memory_order_release);
}

absl::Status Job::cancel_reason() const {
  base::MutexLock lock(mutex_);
  return cancel_reason_;
}

void Job::SetSequence(std::shared_ptr<kv::KvSequence> sequence) {
  {
    base::MutexLock lock(mutex_);
    sequence_.swap(sequence);
  }
  // The old one, if this was its last holder, returns its pages here, without our lock.
}

std::shared_ptr<kv::KvSequence> Job::sequence() const {
  base::MutexLock lock(mutex_);
  return sequence_;
}

void Job::Advance(JobState next) {
  const bool allowed = (state_ == JobState::kQueued && next != JobState::kQueued) ||
                       (state_ == JobState::kRunning && next == JobState::kEnded);
  if (!allowed) {
    SMARTGEN_LOG(critical, "prefill", "job {}: no transition from state {} to {}",
                 spec.id.ToString(), static_cast<int>(state_), static_cast<int>(next));
    std::abort();
  }
  state_ = next;
  if (spec.trace != nullptr) {
    spec.trace->Enter(next == JobState::kRunning ? trace::Kind::kPrefill : trace::Kind::kLease);
  }
}

}  // namespace smartgen::prefill_server
