#include "common/transfer/window.h"

#include <algorithm>
#include <utility>

namespace smartgen::transfer {
namespace {

// A sample is taken over this long or two round trips: long enough that a shaper's tick or a lost
// time slice does not matter much; and over this many bytes, so that the grain of acknowledgements
// (two segments) does not, but no longer than it takes to be of use.
constexpr double kSampleSeconds = 0.004;
constexpr double kSampleRoundTrips = 2;
constexpr uint64_t kSampleBytes = 64 << 10;
constexpr double kMaxSampleSeconds = 0.1;
// Weight of a new block, and of a sample that is much above what is known: growth is believed
// sooner than whims and decline, since what has gone through, the link can carry, while less may
// have been our own fault.
constexpr double kWeight = 0.5;
// The rate has been found when three samples in a row are not this much above what is known.
constexpr double kGrowth = 1.25;
constexpr double kMostGrowth = 2;  // that one sample is believed
constexpr int kFlatSamples = 3;
constexpr int64_t kLimitedLanes = 3;  // all but the on-demand lane
constexpr double kStartGain = 2;
// Samples have whims; so many make a block, whose mean is believed. A block below this part of what
// is known is low. After a try that brought less than kGrowth, so many are believed before the
// next. A gain is halved after so many blocks, whatever they were; it was still of use if one of
// the next is below this part.
constexpr int kBlockSamples = 4;
constexpr double kLow = 0.8;
constexpr int kBelieved = 2;
constexpr int kGainBlocks = 16;
constexpr int kHalvedBlocks = 2;
constexpr double kStillOfUse = 0.9;
constexpr double kTryGain = 2;
constexpr double kMaxGain = 16;
// A round trip that the system measured longer than this was no property of the link.
constexpr double kMaxRoundTrip = 1.0;
// How long a rate is believed by ThroughAt: many decode steps, and far less than a link's changes
// of mind matter for.
constexpr base::Duration kFresh = std::chrono::seconds(1);

}  // namespace

int64_t LinkWindow::bytes() const {
  if (estimate_.bytes_per_second <= 0) return options_.initial_bytes;
  const double bytes = std::max(estimate_.bytes_per_second * options_.queue_seconds,
                                static_cast<double>(options_.min_bytes));
  return static_cast<int64_t>(std::min(gain_ * bytes, static_cast<double>(options_.max_bytes)));
}

int64_t LinkWindow::in_flight_bytes() const {
  const double trip = std::min(estimate_.rtt_seconds, kMaxRoundTrip);
  const double in_flight = static_cast<double>(bytes()) + gain_ * estimate_.bytes_per_second * trip;
  const bool starting = starting_ && estimate_.bytes_per_second > 0;
  return static_cast<int64_t>(starting ? kStartGain * in_flight : in_flight);
}

void LinkWindow::OnBusy(base::TimePoint now) {
  busy_at_ = now;
  measuring_ = false;
}

void LinkWindow::OnHandedOut(uint64_t bytes, const channel::LinkInfo& link, base::TimePoint now) {
  handed_out_ += bytes;
  if (link.min_rtt_seconds > 0) estimate_.rtt_seconds = link.min_rtt_seconds;
  // Bytes that were acknowledged are better than bytes that went into a buffer of the system.
  const bool acked = link.acked_bytes > 0;
  const uint64_t have = acked ? link.acked_bytes : handed_out_;
  const base::TimePoint at = acked ? link.at : now;
  // The first round trip acknowledges nothing.
  if (base::ToSeconds(at - busy_at_) < estimate_.rtt_seconds || at < busy_at_) return;
  if (!measuring_ || acked != from_acked_) {
    measuring_ = true;
    from_acked_ = acked;
    from_at_ = at;
    from_bytes_ = have;
    return;
  }
  const double seconds = base::ToSeconds(at - from_at_);
  if (seconds < std::max(kSampleSeconds, kSampleRoundTrips * estimate_.rtt_seconds)) return;
  if (have - from_bytes_ < kSampleBytes && seconds < kMaxSampleSeconds) return;
  OnSample(static_cast<double>(have - from_bytes_) / seconds);
  sampled_at_ = now;
  from_at_ = at;
  from_bytes_ = have;
}

base::Duration LinkWindow::TimeOf(int64_t bytes) const {
  return base::FromSeconds(static_cast<double>(bytes) / estimate_.bytes_per_second);
}

void LinkWindow::OnPosted(int64_t bytes, bool limited, base::TimePoint now) {
  if (estimate_.bytes_per_second <= 0) return;
  through_at_ = std::max(through_at_, now) + TimeOf(bytes);
  if (!limited) unlimited_through_at_ = through_at_;
}

void LinkWindow::OnAllHandedOut(base::TimePoint now) {
  if (estimate_.bytes_per_second <= 0 || now < unlimited_through_at_) return;
  through_at_ = std::min(through_at_, now + TimeOf(kLimitedLanes * in_flight_bytes()));
}

std::optional<base::TimePoint> LinkWindow::ThroughAt(int64_t bytes, base::TimePoint now) const {
  if (estimate_.bytes_per_second <= 0 || now - sampled_at_ > kFresh) return std::nullopt;
  return std::max(through_at_, now) + TimeOf(bytes);
}

void LinkWindow::OnSample(double bytes_per_second) {
  double& known = estimate_.bytes_per_second;
  if (known <= 0) {
    known = bytes_per_second;
    return;
  }
  if (starting_) {
    flat_samples_ = bytes_per_second < kGrowth * known ? flat_samples_ + 1 : 0;
    starting_ = flat_samples_ < kFlatSamples;
    known = std::max(known, bytes_per_second);
    return;
  }
  if (bytes_per_second > kGrowth * known) {
    known += kWeight * (std::min(bytes_per_second, kMostGrowth * known) - known);
    return;
  }
  block_sum_ += bytes_per_second;
  if (++block_samples_ < kBlockSamples) return;
  block_samples_ = 0;
  OnBlock(std::exchange(block_sum_, 0) / kBlockSamples);
}

void LinkWindow::OnBlock(double bytes_per_second) {
  double& known = estimate_.bytes_per_second;
  if (tried_from_ > 0 && bytes_per_second < kGrowth * tried_from_) {
    gain_ /= kTryGain;
    believed_ = kBelieved;
  }
  tried_from_ = 0;
  if (halved_blocks_ > 0) {
    --halved_blocks_;
    if (bytes_per_second < kStillOfUse * known) return SetGain(gain_ * kTryGain);
  }
  if (bytes_per_second < kLow * known && believed_ == 0 && gain_ < kMaxGain) {
    tried_from_ = bytes_per_second;
    return SetGain(gain_ * kTryGain);
  }
  if (believed_ > 0) --believed_;
  if (++gain_blocks_ >= kGainBlocks && gain_ > 1) {
    SetGain(gain_ / kTryGain);
    halved_blocks_ = kHalvedBlocks;
  }
  known += kWeight * (bytes_per_second - known);
}

void LinkWindow::SetGain(double gain) {
  gain_ = gain;
  gain_blocks_ = halved_blocks_ = 0;
}

}  // namespace smartgen::transfer
