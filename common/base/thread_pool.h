// A fixed set of threads for compute. The calling thread takes part in the work, so a pool of N
// uses N - 1 threads of its own. Workers spin for a few microseconds between two calls and then
// sleep: endlessly spinning threads starve each other when three daemons share two cores.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "common/base/mutex.h"

namespace smartgen::base {

class ThreadPool {
 public:
  // threads >= 1, the caller's included. 0 means one for each core that this process may run on.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(i, worker) for every i in [0, count), worker in [0, size()), and returns when all
  // are done. Indices are handed out one at a time in ascending order. One caller at a time; calls
  // from several threads queue up behind each other. `task` must not throw and must not call
  // ParallelFor.
  void ParallelFor(int64_t count, const std::function<void(int64_t i, int worker)>& task);

 private:
  struct Job;
  void WorkerLoop(int worker);
  static void Run(Job& job, int worker);

  Mutex caller_mutex_;  // one ParallelFor at a time
  Mutex mutex_;
  CondVar wake_;
  std::atomic<uint64_t> generation_{0};
  Job* job_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::atomic<int> active_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace smartgen::base
