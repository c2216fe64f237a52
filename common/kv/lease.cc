#include "common/kv/lease.h"

#include <utility>
#include <vector>

namespace smartgen::kv {
namespace {

absl::Status CheckDuration(base::Duration duration) {
  if (duration.count() > 0 && duration <= LeaseTable::kMaxDuration) return absl::OkStatus();
  return base::InvalidArgument("lease duration: want above 0 and at most {} s, got {} s",
                               base::ToSeconds(LeaseTable::kMaxDuration),
                               base::ToSeconds(duration));
}

}  // namespace

LeaseTable::LeaseTable(const base::Clock* clock, base::Duration tick, bool start_timer)
    : clock_(clock), tick_(tick) {
  if (start_timer) timer_ = std::thread([this] { TimerLoop(); });
}

LeaseTable::~LeaseTable() {
  {
    base::MutexLock lock(mutex_);
    stop_ = true;
  }
  wake_.NotifyAll();
  if (timer_.joinable()) timer_.join();
  std::map<base::TransferId, Lease> left;
  {
    base::MutexLock lock(mutex_);
    left.swap(leases_);
  }
  for (auto& [id, lease] : left) lease.on_end(End::kShutdown);
}

void LeaseTable::TimerLoop() {
  for (;;) {
    {
      base::MutexLock lock(mutex_);
      if (stop_) return;
      wake_.WaitFor(mutex_, tick_);
      if (stop_) return;
    }
    ExpireDue();
  }
}

absl::Status LeaseTable::Grant(const base::TransferId& id, base::Duration duration, OnEnd on_end) {
  RETURN_IF_ERROR(CheckDuration(duration));
  if (on_end == nullptr) return base::InvalidArgument("lease {}: no callback", id.ToString());
  base::MutexLock lock(mutex_);
  if (stop_) return base::FailedPrecondition("lease {}: the table shuts down", id.ToString());
  const base::TimePoint due = clock_->Now() + duration;
  if (!leases_.try_emplace(id, Lease{due, std::move(on_end)}).second) {
    return base::AlreadyExists("lease {}: granted before and not ended", id.ToString());
  }
  return absl::OkStatus();
}

absl::Status LeaseTable::Renew(const base::TransferId& id, base::Duration duration) {
  RETURN_IF_ERROR(CheckDuration(duration));
  base::MutexLock lock(mutex_);
  const base::TimePoint now = clock_->Now();
  const auto it = leases_.find(id);
  // What is due has ended, also where the timer has not come round yet.
  if (it == leases_.end() || it->second.due <= now) {
    return base::NotFound("lease {}: ended or never granted", id.ToString());
  }
  it->second.due = now + duration;
  return absl::OkStatus();
}

bool LeaseTable::Release(const base::TransferId& id) {
  OnEnd on_end;
  {
    base::MutexLock lock(mutex_);
    const auto it = leases_.find(id);
    if (it == leases_.end()) return false;
    on_end = std::move(it->second.on_end);
    leases_.erase(it);
  }
  on_end(End::kReleased);
  return true;
}

int64_t LeaseTable::ExpireDue() {
  std::vector<OnEnd> due;
  {
    base::MutexLock lock(mutex_);
    const base::TimePoint now = clock_->Now();
    for (auto it = leases_.begin(); it != leases_.end();) {
      if (it->second.due > now) {
        ++it;
        continue;
      }
      due.push_back(std::move(it->second.on_end));
      it = leases_.erase(it);
    }
  }
  for (OnEnd& on_end : due) on_end(End::kExpired);
  return static_cast<int64_t>(due.size());
}

int64_t LeaseTable::size() const {
  base::MutexLock lock(mutex_);
  return static_cast<int64_t>(leases_.size());
}

}  // namespace smartgen::kv
