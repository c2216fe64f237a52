#include "common/base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>

namespace smartgen::base {
namespace {

constexpr int kSpins = 2000;  // about 20 us: bridges the gap between two operators of one layer

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace

struct ThreadPool::Job {
  const std::function<void(int64_t, int)>* task;
  int64_t count;
  std::atomic<int64_t> next{0};
};

ThreadPool::ThreadPool(int threads) {
  if (threads <= 0) threads = UsableCores();
  for (int worker = 1; worker < threads; ++worker) {
    workers_.emplace_back([this, worker] { WorkerLoop(worker); });
  }
}

ThreadPool::~ThreadPool() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    ++generation_;
  }
  wake_.NotifyAll();
  for (std::thread& t : workers_) t.join();
}

void ThreadPool::Run(Job& job, int worker) {
  for (;;) {
    const int64_t i = job.next.fetch_add(1, std::memory_order_relaxed);
    if (i >= job.count) return;
    (*job.task)(i, worker);
  }
}

void ThreadPool::ParallelFor(int64_t count, const std::function<void(int64_t, int)>& task) {
  if (count <= 0) return;
  MutexLock caller(caller_mutex_);
  if (workers_.empty() || count == 1) {
    for (int64_t i = 0; i < count; ++i) task(i, 0);
    return;
  }
  Job job{.task = &task, .count = count};
  {
    MutexLock lock(mutex_);
    job_ = &job;
    ++generation_;
  }
  wake_.NotifyAll();
  Run(job, 0);
  // Withdraw the job, then wait for the workers that still hold it: it lives on this stack.
  {
    MutexLock lock(mutex_);
    job_ = nullptr;
  }
  for (int spins = 0; active_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kSpins) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::WorkerLoop(int worker) {
  uint64_t seen = 0;
  while (!stop_) {
    for (int spins = 0; spins < kSpins && generation_.load(std::memory_order_acquire) == seen;
         ++spins) {
      Pause();
    }
    Job* job = nullptr;
    {
      MutexLock lock(mutex_);
      while (generation_.load() == seen && !stop_) {
        wake_.WaitFor(mutex_, std::chrono::seconds(1));
      }
      seen = generation_.load();
      job = job_;
      if (job != nullptr) active_.fetch_add(1, std::memory_order_relaxed);
    }
    if (job == nullptr) continue;
    Run(*job, worker);
    active_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace smartgen::base
