// How far a long command is, on standard error.
#pragma once

#include <string>
#include <string_view>

#include "common/base/clock.h"

namespace smartgen::tools {

// "[########............]  40 %  1:05 left  WHAT". `share` is clamped to [0, 1]; seconds_left < 0:
// left out.
std::string ProgressLine(double share, double seconds_left, std::string_view what);

// On a terminal one line that is drawn again and again; elsewhere a line each tenth of the way.
class Progress {
 public:
  // `total`: what is done in the end, in any unit that grows with time.
  explicit Progress(double total = 1, const base::Clock* clock = base::Clock::Real());
  ~Progress();  // the line is taken away
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // What is being done now.
  void Begin(std::string_view what);
  // It is done, and was this much of the total.
  void Advance(double amount);
  // This much of the total is done, and `what` is under way: may be called often.
  void Update(double done, std::string_view what);

 private:
  void DrawIfDue(base::Duration between);
  void Draw();

  const double total_;
  const base::Clock* const clock_;
  const base::TimePoint start_;
  const bool terminal_;
  double done_ = 0;
  int tenths_ = 0;  // shown where there is no terminal
  base::TimePoint drawn_{};
  std::string what_;
};

}  // namespace smartgen::tools
