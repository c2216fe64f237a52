// How other threads reach the engine's thread. Outlives the engine, because channels hold it.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace smartgen::channel {

// Thread-safe.
class CommandQueue {
 public:
  using Command = std::function<void()>;

  // False after Stop: the command was not taken and is gone.
  bool Post(Command command) {
    {
      base::MutexLock lock(mutex_);
      if (stopped_) return false;
      commands_.push_back(std::move(command));
    }
    changed_.NotifyOne();
    return true;
  }
  // What was posted, in order; waits for it up to `patience`.
  std::vector<Command> Take(base::Duration patience) {
    base::MutexLock lock(mutex_);
    if (commands_.empty() && patience.count() > 0) changed_.WaitFor(mutex_, patience);
    return std::exchange(commands_, {});
  }
  // What was posted and not taken yet; nothing is taken on from here on.
  std::vector<Command> Stop() {
    base::MutexLock lock(mutex_);
    stopped_ = true;
    return std::exchange(commands_, {});
  }

 private:
  base::Mutex mutex_;
  base::CondVar changed_;
  std::vector<Command> commands_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace smartgen::channel
