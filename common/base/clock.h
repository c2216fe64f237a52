// Every time read goes through a Clock, so that tests run on simulated time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace smartgen::base {

using Duration = std::chrono::nanoseconds;

// A point on the monotonic clock. Only differences mean anything.
struct TimePoint {
  int64_t ns = 0;
  friend auto operator<=>(const TimePoint&, const TimePoint&) = default;
  friend TimePoint operator+(TimePoint t, Duration d) { return {t.ns + d.count()}; }
  friend TimePoint operator-(TimePoint t, Duration d) { return {t.ns - d.count()}; }
  friend Duration operator-(TimePoint a, TimePoint b) { return Duration(a.ns - b.ns); }
};

inline double ToSeconds(Duration d) { return static_cast<double>(d.count()) * 1e-9; }
inline Duration FromSeconds(double s) { return Duration(static_cast<int64_t>(s * 1e9)); }

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
  // Seconds since 1970, for what people and OpenAI's `created` field read.
  virtual int64_t UnixSeconds() const = 0;
  // The machine's own clock; never destroyed.
  static Clock* Real();
};

// Time moves only when told to. Thread-safe.
class SimulatedClock final : public Clock {
 public:
  TimePoint Now() const override { return {now_ns_.load()}; }
  int64_t UnixSeconds() const override { return 1'700'000'000 + now_ns_.load() / 1'000'000'000; }
  void Advance(Duration d) { now_ns_ += d.count(); }

 private:
  std::atomic<int64_t> now_ns_{1};
};

// A moment after which waiting stops. Carried by value through every stage of a request.
class Deadline {
 public:
  // Never expires: only for code that the caller bounds otherwise.
  static Deadline Infinite() { return Deadline(TimePoint{INT64_MAX}); }
  static Deadline At(TimePoint t) { return Deadline(t); }
  // A duration that leads past the end of time gives Infinite.
  static Deadline After(const Clock& clock, Duration d) {
    const TimePoint now = clock.Now();
    if (now.ns > 0 && d.count() > INT64_MAX - now.ns) return Infinite();
    return Deadline(now + d);
  }

  bool IsInfinite() const { return at_.ns == INT64_MAX; }
  bool Expired(const Clock& clock) const { return clock.Now() >= at_; }
  // Zero when expired; never negative.
  Duration Remaining(const Clock& clock) const {
    if (IsInfinite()) return Duration(INT64_MAX / 4);
    const Duration left = at_ - clock.Now();
    return left.count() > 0 ? left : Duration(0);
  }
  TimePoint at() const { return at_; }
  static Deadline Earlier(Deadline a, Deadline b) { return a.at_ < b.at_ ? a : b; }

 private:
  explicit Deadline(TimePoint at) : at_(at) {}
  TimePoint at_;
};

}  // namespace smartgen::base
