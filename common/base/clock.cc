#include "common/base/clock.h"

namespace smartgen::base {
namespace {

class RealClock final : public Clock {
 public:
  TimePoint Now() const override {
    return {
        std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch())
            .count()};
  }
  int64_t UnixSeconds() const override {
    return std::chrono::duration_cast<std::chrono::seconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
};

}  // namespace

Clock* Clock::Real() {
  static RealClock* clock = new RealClock;
  return clock;
}

}  // namespace smartgen::base
