// Work handed to one thread (a daemon's engine) by many. Thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <utility>

#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace smartgen::base {

class Mailbox {
 public:
  using Task = std::function<void()>;

  // False after Close; the task is dropped then.
  bool Post(Task task) {
    {
      MutexLock lock(mutex_);
      if (closed_) return false;
      tasks_.push_back(std::move(task));
    }
    wake_.NotifyOne();
    return true;
  }
  // All tasks posted so far, in order. Called by the thread that works them off.
  std::deque<Task> Take() {
    MutexLock lock(mutex_);
    return std::exchange(tasks_, {});
  }
  // Returns when there is a task, after Close, or after `duration`.
  void WaitFor(Duration duration) {
    MutexLock lock(mutex_);
    if (tasks_.empty() && !closed_) wake_.WaitFor(mutex_, duration);
  }
  void Close() {
    {
      MutexLock lock(mutex_);
      closed_ = true;
    }
    wake_.NotifyAll();
  }

 private:
  Mutex mutex_;
  CondVar wake_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace smartgen::base
