// What steps have taken so far and have missed: what the choice of how to make the next one goes
// by. Pure; for one thread.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "common/base/clock.h"

namespace smartgen::decode_server {

class StepTimes {
 public:
  // A whole step was made here without a wait. 0: none was yet.
  void Stepped(double seconds);
  double step_seconds() const { return step_; }

  // A step was handed over: asked till answered. `share`: of its layers that ran there. `trip`: the
  // way there and back, the answer's bytes included. Until a step was made here, steps are taken to
  // be as fast here as there.
  void HandedOver(const std::string& peer, double seconds, double share, double trip,
                  base::TimePoint now);
  // What such a step is expected to take: trip + share of a step as made here + what others took
  // more than that lately. That surplus is what the prefill side's load costs (or its speed), so it
  // is believed less the older it is.
  double SplitSeconds(const std::string& peer, double share, double trip,
                      base::TimePoint now) const;
  // The surplus alone.
  double QueueSeconds(const std::string& peer, base::TimePoint now) const;

  // The first step that a request made by fetching missed `bytes`, where selecting at random would
  // have missed `at_random`.
  void Missed(std::string_view selector, double at_random, double bytes);
  // Of what selecting at random would miss, the part that steps missed in truth; 1 until known.
  double MissShare(std::string_view selector) const;

 private:
  struct Surplus {
    double seconds = 0;
    base::TimePoint at{};
  };
  double step_ = 0;
  bool guessed_ = true;                                    // step_, from steps of others
  std::map<std::string, Surplus> surplus_;                 // by peer, of those that are configured
  std::map<std::string, double, std::less<>> miss_share_;  // by selector
};

}  // namespace smartgen::decode_server
