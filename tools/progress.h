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
  // `total`: the sum of what Advance will be told, in any unit that grows with time.
  explicit Progress(double total, const base::Clock* clock = base::Clock::Real());
  ~Progress();  // the line is taken away
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // What is being done now.
  void Begin(std::string_view what);
  // It is done, and was this much of the total.
  void Advance(double amount);

 private:
  void Draw();

  const double total_;
  const base::Clock* const clock_;
  const base::TimePoint start_;
  const bool terminal_;
  double done_ = 0;
  int tenths_ = 0;  // shown where there is no terminal
  std::string what_;
};

}  // namespace smartgen::tools
