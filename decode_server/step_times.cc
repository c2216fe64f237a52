#include "decode_server/step_times.h"

#include <algorithm>
#include <cmath>

namespace smartgen::decode_server {
namespace {

// Weight of the newest measurement.
constexpr double kNew = 0.3;
// After so long half of a surplus is believed: a prompt's time, about.
constexpr double kHalfLife = 1.0;

}  // namespace

void StepTimes::Stepped(double seconds) {
  if (!(seconds > 0)) return;
  step_ = guessed_ ? seconds : step_ + kNew * (seconds - step_);
  guessed_ = false;
}

void StepTimes::HandedOver(const std::string& peer, double seconds, double share, double trip,
                           base::TimePoint now) {
  if (!(seconds > 0) || !(share > 0)) return;
  if (step_ <= 0) step_ = std::max(seconds - trip, 0.0) / share;
  const double surplus = seconds - trip - share * step_;
  auto [it, first] = surplus_.try_emplace(peer, Surplus{surplus, now});
  if (first) return;
  const double known = QueueSeconds(peer, now);
  it->second = {known + kNew * (surplus - known), now};
}

double StepTimes::QueueSeconds(const std::string& peer, base::TimePoint now) const {
  const auto it = surplus_.find(peer);
  if (it == surplus_.end()) return 0;
  const double age = std::max(base::ToSeconds(now - it->second.at), 0.0);
  return it->second.seconds * std::exp2(-age / kHalfLife);
}

double StepTimes::SplitSeconds(const std::string& peer, double share, double trip,
                               base::TimePoint now) const {
  return trip + std::max(share * step_ + QueueSeconds(peer, now), 0.0);
}

void StepTimes::Missed(std::string_view selector, double at_random, double bytes) {
  if (!(at_random > 0) || !(bytes >= 0)) return;
  const double share = std::min(bytes / at_random, 1.0);
  const auto it = miss_share_.find(selector);
  if (it == miss_share_.end()) {
    miss_share_.emplace(selector, share);
  } else {
    it->second += kNew * (share - it->second);
  }
}

double StepTimes::MissShare(std::string_view selector) const {
  const auto it = miss_share_.find(selector);
  return it == miss_share_.end() ? 1 : it->second;
}

}  // namespace smartgen::decode_server
