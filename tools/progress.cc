#include "tools/progress.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace smartgen::tools {
namespace {

constexpr int kBarWidth = 24;
// Erases the line and goes back to its begin.
constexpr const char* kClearLine = "\r\x1b[2K";
constexpr base::Duration kBetweenUpdates = std::chrono::milliseconds(100);

}  // namespace

std::string ProgressLine(double share, double seconds_left, std::string_view what) {
  const double at = std::isnan(share) ? 0 : std::clamp(share, 0.0, 1.0);
  const auto filled = static_cast<size_t>(at * kBarWidth);
  std::string line = fmt::format("[{}{}] {:3.0f} %", std::string(filled, '#'),
                                 std::string(kBarWidth - filled, '.'), std::floor(at * 100));
  if (seconds_left >= 0 && seconds_left < 1e6) {
    const auto seconds = static_cast<int64_t>(std::ceil(seconds_left));
    line += fmt::format("  {}:{:02d} left", seconds / 60, seconds % 60);
  }
  if (!what.empty()) line += fmt::format("  {}", what);
  return line;
}

Progress::Progress(double total, const base::Clock* clock)
    : total_(std::max(total, 1e-9)),
      clock_(clock),
      start_(clock->Now()),
      terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (terminal_) std::fputs(kClearLine, stderr);
}

void Progress::Begin(std::string_view what) {
  what_ = what;
  if (terminal_) Draw();
}

void Progress::Advance(double amount) {
  done_ += amount;
  DrawIfDue(base::Duration{});
}

void Progress::Update(double done, std::string_view what) {
  done_ = done;
  what_ = what;
  DrawIfDue(kBetweenUpdates);
}

void Progress::DrawIfDue(base::Duration between) {
  const int tenths = static_cast<int>(done_ / total_ * 10 + 1e-9);
  if (terminal_ ? clock_->Now() - drawn_ < between : tenths == tenths_) return;
  tenths_ = tenths;
  drawn_ = clock_->Now();
  Draw();
}

void Progress::Draw() {
  const double share = done_ / total_;
  const double passed = base::ToSeconds(clock_->Now() - start_);
  const double left = share > 0 ? passed * (1 - share) / share : -1;
  std::fprintf(stderr, "%s%s%s", terminal_ ? kClearLine : "",
               ProgressLine(share, left, what_).c_str(), terminal_ ? "" : "\n");
  std::fflush(stderr);
}

}  // namespace smartgen::tools
