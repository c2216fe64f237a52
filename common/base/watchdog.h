// Tells a thread that works from one that is stuck: /health must not say "serving" while nothing
// moves. The worker touches it at each step and says whether it has work; anybody may ask.
// Thread-safe.
#pragma once

#include <atomic>

#include "common/base/clock.h"

namespace smartgen::base {

class Watchdog {
 public:
  Watchdog(const Clock* clock, Duration limit)
      : clock_(clock), limit_(limit), last_ns_(clock->Now().ns) {}

  // A step was made.
  void Touch() { last_ns_.store(clock_->Now().ns, std::memory_order_relaxed); }
  // Time without work does not count.
  void SetBusy(bool busy) {
    if (busy_.exchange(busy, std::memory_order_relaxed) != busy) Touch();
  }
  // Work is there and no step was made for longer than the limit.
  bool Stuck() const {
    return busy_.load(std::memory_order_relaxed) &&
           clock_->Now() - TimePoint{last_ns_.load(std::memory_order_relaxed)} > limit_;
  }

 private:
  const Clock* const clock_;
  const Duration limit_;
  std::atomic<int64_t> last_ns_;
  std::atomic<bool> busy_{false};
};

}  // namespace smartgen::base
