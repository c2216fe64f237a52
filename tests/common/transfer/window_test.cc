// The window over a link that the test computes: a rate, a round trip, and a queue in the path.
#include "common/transfer/window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>

namespace smartgen::transfer {
namespace {

constexpr double kStep = 0.0001;  // s

class SimulatedLink {
 public:
  SimulatedLink(double bytes_per_second, double rtt) : rate_(bytes_per_second), rtt_(rtt) {
    window_.OnBusy(clock_.Now());
  }
  void set_rate(double bytes_per_second) { rate_ = bytes_per_second; }
  // Every 50 ms another rate, up to this part above or below.
  void set_whims(double part) { whims_ = part; }
  // Acknowledgements come later than the link's round trip from now on.
  void set_late(double seconds) { late_ = seconds; }

  // The sender keeps as much under way as it may. Returns the part of the link that was used.
  double Run(double seconds, bool acks_known = true) {
    const double acked_before = acked_;
    longest_queue_ = 0;
    for (double t = 0; t < seconds; t += kStep) {
      const double room = static_cast<double>(window_.in_flight_bytes()) - in_flight_;
      const double fresh = std::max(0.0, room);
      in_flight_ += fresh;
      queue_ += fresh;
      longest_queue_ = std::max(longest_queue_, queue_ / rate_);
      if (whims_ > 0 && clock_.Now() >= next_whim_) {
        next_whim_ = clock_.Now() + std::chrono::milliseconds(50);
        whim_ = std::uniform_real_distribution(1 - whims_, 1 + whims_)(random_);
      }
      const double served = std::min(queue_, whim_ * rate_ * kStep);
      queue_ -= served;
      on_the_way_.emplace_back(clock_.Now() + base::FromSeconds(rtt_ + late_), served);
      clock_.Advance(base::FromSeconds(kStep));
      while (!on_the_way_.empty() && on_the_way_.front().first <= clock_.Now()) {
        in_flight_ -= on_the_way_.front().second;
        acked_ += on_the_way_.front().second;
        on_the_way_.pop_front();
      }
      channel::LinkInfo link;
      if (acks_known) {
        link = {.acked_bytes = static_cast<uint64_t>(acked_) + 1,
                .at = clock_.Now(),
                .min_rtt_seconds = rtt_};
      }
      const auto handed_out = static_cast<uint64_t>(acked_) - reported_;
      reported_ += handed_out;
      window_.OnHandedOut(handed_out, link, clock_.Now());
    }
    return (acked_ - acked_before) / (rate_ * seconds);
  }
  LinkWindow& window() { return window_; }
  base::TimePoint now() const { return clock_.Now(); }
  // Seconds that a reply would have waited, at worst, in the last run.
  double longest_queue() const { return longest_queue_; }

 private:
  LinkWindow window_{{}};
  base::SimulatedClock clock_;
  double rate_;
  double rtt_;
  double late_ = 0;
  double whims_ = 0;
  double whim_ = 1;
  base::TimePoint next_whim_;
  std::minstd_rand random_{1};
  double in_flight_ = 0;
  double queue_ = 0;
  double acked_ = 0;
  uint64_t reported_ = 0;
  double longest_queue_ = 0;
  std::deque<std::pair<base::TimePoint, double>> on_the_way_;
};

TEST(LinkWindow, BeforeAnythingIsKnownIsTheInitialSize) {
  LinkWindow window({.initial_bytes = 12345});
  EXPECT_EQ(window.bytes(), 12345);
  EXPECT_EQ(window.in_flight_bytes(), 12345);
  EXPECT_EQ(window.estimate().bytes_per_second, 0);
}

TEST(LinkWindow, FindsTheRateOfSlowAndFastNearAndFarLinks) {
  struct Case {
    double rate;
    double rtt;
  };
  for (const auto& [rate, rtt] : {Case{2e6, 0},
                                  {2e6, 0.02},
                                  {125e6, 0},
                                  {125e6, 0.0002},
                                  {125e6, 0.02},
                                  {1.25e9, 0.0001},
                                  {1.25e9, 0.03}}) {
    SimulatedLink link(rate, rtt);
    link.Run(2);
    const double used = link.Run(1);
    EXPECT_GT(used, 0.95) << rate << " B/s, " << rtt << " s";
    EXPECT_NEAR(link.window().estimate().bytes_per_second / rate, 1, 0.05) << rate << ", " << rtt;
    // 2 ms, or the least that is ever under way; the step of the simulation beside.
    EXPECT_LT(link.longest_queue(), std::max(0.002, 8192 / rate) * 1.2 + 3 * kStep)
        << rate << " B/s, " << rtt << " s";
  }
}

TEST(LinkWindow, FollowsALinkThatBecomesSlowerAndFasterAgain) {
  SimulatedLink link(125e6, 0.0005);
  link.Run(2);
  link.set_rate(12.5e6);
  link.Run(0.5);
  link.Run(0.1);
  EXPECT_LT(link.longest_queue(), 0.004);
  link.set_rate(125e6);
  link.Run(0.5);
  EXPECT_GT(link.Run(0.2), 0.95);
}

// Believing the rate that its own limit makes, the window would become ever smaller.
TEST(LinkWindow, LateAcknowledgementsAreNotTakenForASlowLink) {
  for (const double rate : {2e6, 20e6}) {
    SimulatedLink link(rate, 0.0002);
    link.Run(2);
    link.set_late(0.01);
    link.Run(2);
    EXPECT_GT(link.Run(4), 0.75) << rate;
    EXPECT_GT(link.window().estimate().bytes_per_second, 0.7 * rate) << rate;
    // And the queue is short again once they are in time.
    link.set_late(0);
    link.Run(12);
    link.Run(1);
    EXPECT_LT(link.longest_queue(), std::max(0.002, 8192 / rate) * 1.2 + 3 * kStep) << rate;
  }
}

// A gain for every low sample, kept since the next one is higher, made queues of 100 ms.
TEST(LinkWindow, WhimsOfTheLinkAreNotTakenForLateAcknowledgements) {
  for (const double rate : {8e5, 2e6, 20e6}) {
    SimulatedLink link(rate, 0.0002);
    link.set_whims(0.2);
    link.Run(2);
    double queued = 0;
    for (int second = 0; second < 60; ++second) {
      link.Run(1);
      queued += link.longest_queue();
    }
    EXPECT_LT(queued / 60, std::max(0.002, 8192 / rate) * 2.5) << rate;
    EXPECT_NEAR(link.window().estimate().bytes_per_second / rate, 1, 0.25) << rate;
  }
}

// A sender that leaves the link free in time for an answer.
TEST(LinkWindow, TellsWhenWhatWasPostedIsThrough) {
  base::SimulatedClock clock;
  LinkWindow window({});
  EXPECT_EQ(window.ThroughAt(1000, clock.Now()), std::nullopt);
  SimulatedLink link(1e6, 0);
  link.Run(2);
  const base::TimePoint now = link.now();
  const auto after = [&](int64_t bytes) {
    const auto at = link.window().ThroughAt(bytes, now);
    return at.has_value() ? base::ToSeconds(*at - now) : -1;
  };
  EXPECT_NEAR(after(0), 0, 1e-9);
  EXPECT_NEAR(after(10000), 0.01, 5e-4);
  link.window().OnPosted(5000, true, now);
  link.window().OnPosted(5000, true, now);
  EXPECT_NEAR(after(10000), 0.02, 1e-3);
  // It is through, and nobody has seen since how fast the link is.
  EXPECT_NEAR(
      base::ToSeconds(*link.window().ThroughAt(0, now + std::chrono::milliseconds(500)) - now), 0.5,
      1e-9);
  EXPECT_EQ(link.window().ThroughAt(0, now + std::chrono::seconds(2)), std::nullopt);
}

// What was posted while the link was taken for slower than it is.
TEST(LinkWindow, WhatTheChannelNoLongerHoldsIsThroughButForItsLimits) {
  SimulatedLink link(1e6, 0);
  link.Run(2);
  LinkWindow& window = link.window();
  const base::TimePoint now = link.now();
  const auto through = [&] { return base::ToSeconds(*window.ThroughAt(0, now) - now); };
  const double limits = 3e-6 * static_cast<double>(window.in_flight_bytes());
  window.OnPosted(500000, true, now);
  EXPECT_NEAR(through(), 0.5, 0.03);
  window.OnAllHandedOut(now);
  EXPECT_NEAR(through(), limits, 0.1 * limits);
  // Fetched entries have no limit: all of them may be under way still.
  window.OnPosted(500000, false, now);
  window.OnAllHandedOut(now);
  EXPECT_NEAR(through(), 0.5 + limits, 0.03);
}

TEST(LinkWindow, WithoutAcknowledgementsCountsWhatWasHandedOut) {
  SimulatedLink link(125e6, 0);
  link.Run(1, false);
  EXPECT_NEAR(link.window().estimate().bytes_per_second, 125e6, 6e6);
  EXPECT_EQ(link.window().bytes(), link.window().in_flight_bytes());
}

TEST(LinkWindow, StaysWithinItsLimits) {
  SimulatedLink slow(1e5, 0);
  slow.Run(3);
  EXPECT_EQ(slow.window().bytes(), 8 << 10);
  SimulatedLink fast(1e10, 0);
  fast.Run(1);
  EXPECT_EQ(fast.window().bytes(), 4 << 20);
}

TEST(LinkWindow, AnIdleLinkSaysNothing) {
  base::SimulatedClock clock;
  LinkWindow window({});
  for (int i = 0; i < 100; ++i) {
    window.OnBusy(clock.Now());
    clock.Advance(std::chrono::milliseconds(1));
    window.OnHandedOut(1000, {}, clock.Now());
    window.OnIdle();
    clock.Advance(std::chrono::milliseconds(100));
  }
  EXPECT_EQ(window.estimate().bytes_per_second, 0);
}

}  // namespace
}  // namespace smartgen::transfer
