// Counts a service's calls that gRPC is not yet done with.
//
// A server that stops lets the answers it has finished go out before it cuts connections. gRPC's
// own grace would wait for every stream, and a health Watch or a control stream never ends by
// itself; this waits for the calls that matter. Thread-safe.
#pragma once

#include <cstdint>

#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace smartgen::rpc {

class OpenCalls {
 public:
  void Add() {
    base::MutexLock lock(mutex_);
    ++count_;
  }
  void Remove() {
    base::MutexLock lock(mutex_);
    if (--count_ == 0) none_.NotifyAll();
  }
  // False: some were still open when the time was over.
  bool WaitForNone(base::Duration patience) {
    const base::Clock& clock = *base::Clock::Real();
    const base::Deadline deadline = base::Deadline::After(clock, patience);
    base::MutexLock lock(mutex_);
    while (count_ > 0 && !deadline.Expired(clock)) none_.WaitFor(mutex_, deadline.Remaining(clock));
    return count_ == 0;
  }

 private:
  base::Mutex mutex_;
  base::CondVar none_;
  int64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace smartgen::rpc
