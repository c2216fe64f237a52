// Calls back for every watched thing that is not finished in time, and again until it is.
//
// Thread-safe. Never destroyed (its thread runs as long as the process).
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace smartgen::chat {

class Watchdog {
 public:
  // `outer` calls its argument under whatever lock `fire` needs; those who call Start and Stop may
  // hold that lock. `fire` is called only while the thing is being watched.
  using Fire = std::function<void(uint64_t thread)>;
  using WithOuterLock = std::function<void(const std::function<void()>&)>;
  Watchdog(WithOuterLock outer, Fire fire);

  uint64_t Start(base::Duration limit, uint64_t thread);
  void Stop(uint64_t id);

 private:
  struct Watched {
    base::TimePoint due;
    uint64_t thread;
  };
  void Run();
  base::Duration UntilNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FireDue();

  const WithOuterLock outer_;
  const Fire fire_;
  base::Mutex mutex_;
  base::CondVar changed_;
  std::map<uint64_t, Watched> watched_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace smartgen::chat
