// The window over a link that the test computes: a rate, a round trip, and a queue in the path.
#include "common/transfer/window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

namespace smartgen::transfer {
namespace {

constexpr double kStep = 0.0001;  // s

class SimulatedLink {
 public:
  SimulatedLink(double bytes_per_second, double rtt) : rate_(bytes_per_second), rtt_(rtt) {
    window_.OnBusy(clock_.Now());
  }
  void set_rate(double bytes_per_second) { rate_ = bytes_per_second; }
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
      const double served = std::min(queue_, rate_ * kStep);
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
  // Seconds that a reply would have waited, at worst, in the last run.
  double longest_queue() const { return longest_queue_; }

 private:
  LinkWindow window_{{}};
  base::SimulatedClock clock_;
  double rate_;
  double rtt_;
  double late_ = 0;
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
    EXPECT_GT(link.Run(4), 0.8) << rate;
    EXPECT_GT(link.window().estimate().bytes_per_second, 0.75 * rate) << rate;
    // And the queue is short again once they are in time.
    link.set_late(0);
    link.Run(12);
    link.Run(1);
    EXPECT_LT(link.longest_queue(), std::max(0.002, 8192 / rate) * 1.2 + 3 * kStep) << rate;
  }
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
