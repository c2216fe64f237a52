// A bar on standard error that says how far a long command is.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/clock.h"

namespace smartgen::tools::profile {

// One thread.
class Progress {
 public:
  // Not `shown`: draws nothing.
  Progress(bool shown, const base::Clock& clock);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `share` of all is done (0 to 1); `what` is under way. Draws at most ten times a second.
  void Update(double share, const std::string& what);

  // "[#####...............]  25 %  GPL-3 at 1024, 1:05 left"
  static std::string Line(double share, const std::string& what, double elapsed_seconds);

 private:
  void Clear();

  const bool shown_;
  const base::Clock& clock_;
  const base::TimePoint start_;
  base::TimePoint drawn_;
  size_t width_ = 0;  // of the line that stands there
};

// Standard error is a terminal.
bool StandardErrorIsTerminal();

}  // namespace smartgen::tools::profile
