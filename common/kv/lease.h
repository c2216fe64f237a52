// Who may hold pages till when. Expiry needs nobody's help: a timer thread frees what is due.
//
// States of a lease: granted -> (renewed)* -> released | expired. Each lease ends exactly once; the
// owner's callback learns how. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <thread>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/status.h"

namespace smartgen::kv {

class LeaseTable {
 public:
  enum class End { kReleased, kExpired, kShutdown };
  using OnEnd = std::function<void(End)>;
  // A lease without an end would defeat its purpose.
  static constexpr base::Duration kMaxDuration = std::chrono::hours(24);

  // With `start_timer` a thread looks every `tick`; tests call ExpireDue themselves.
  LeaseTable(const base::Clock* clock, base::Duration tick, bool start_timer);
  // Ends what is left with kShutdown. Not from within a callback.
  ~LeaseTable();

  // AlreadyExists if the id holds one. `on_end` is called exactly once, without the table's lock,
  // from the thread that ended it.
  absl::Status Grant(const base::TransferId& id, base::Duration duration, OnEnd on_end);
  // Counts from now. NotFound if it has ended or is due, though not swept yet: never revives.
  absl::Status Renew(const base::TransferId& id, base::Duration duration);
  // False if there is none (ended before, or never was): harmless.
  bool Release(const base::TransferId& id);
  // Ends all that are due with kExpired; returns how many.
  int64_t ExpireDue();
  int64_t size() const;

 private:
  struct Lease {
    base::TimePoint due;
    OnEnd on_end;
  };
  void TimerLoop();

  const base::Clock* clock_;
  const base::Duration tick_;
  mutable base::Mutex mutex_;
  base::CondVar wake_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<base::TransferId, Lease> leases_ ABSL_GUARDED_BY(mutex_);
  std::thread timer_;
};

}  // namespace smartgen::kv
