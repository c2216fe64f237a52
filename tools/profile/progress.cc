#include "tools/profile/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "common/base/status.h"

namespace smartgen::tools::profile {
namespace {

constexpr base::Duration kBetween = std::chrono::milliseconds(100);
constexpr int kBar = 20;

}  // namespace

bool StandardErrorIsTerminal() { return isatty(STDERR_FILENO) == 1; }

Progress::Progress(bool shown, const base::Clock& clock)
    : shown_(shown), clock_(clock), start_(clock.Now()), drawn_(start_ - kBetween) {}

Progress::~Progress() { Clear(); }

void Progress::Clear() {
  if (width_ == 0) return;
  std::fprintf(stderr, "\r%*s\r", static_cast<int>(width_), "");
  width_ = 0;
}

void Progress::Update(double share, const std::string& what) {
  if (!shown_) return;
  const base::TimePoint now = clock_.Now();
  if (now - drawn_ < kBetween && share < 1) return;
  drawn_ = now;
  const std::string line = Line(share, what, base::ToSeconds(now - start_));
  const size_t left = width_ > line.size() ? width_ - line.size() : 0;
  std::fprintf(stderr, "\r%s%*s", line.c_str(), static_cast<int>(left), "");
  std::fflush(stderr);
  width_ = line.size();
}

std::string Progress::Line(double share, const std::string& what, double elapsed_seconds) {
  share = std::clamp(share, 0.0, 1.0);
  const int full = static_cast<int>(share * kBar);
  std::string line =
      fmt::format("[{:#<{}}{:.<{}}] {:3.0f} %  {}", "", full, "", kBar - full, share * 100, what);
  // Before that the guess is worth nothing.
  if (share > 0.01 && share < 1) {
    const auto left = static_cast<int64_t>(elapsed_seconds / share * (1 - share));
    line += fmt::format(", {}:{:02} left", left / 60, left % 60);
  }
  return line;
}

}  // namespace smartgen::tools::profile
