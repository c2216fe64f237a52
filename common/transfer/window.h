// How many bytes of the background may be under way at a time, from what the link is seen to carry.
//
// A reply on the on-demand lane waits for every background byte that stands before it in a queue:
// of the system, of a shaper in the path. So no more is under way than keeps the link busy: what it
// carries in a round trip and in a little time beside. That little time is also what makes the
// estimate grow: with more under way than the link holds, the rate seen is the link's; with less,
// the rate seen is more than the estimate, because the limit is above rate * round trip.
//
// On a link with a long round trip that growth is slow, so that in the beginning twice as much may
// be under way, until the rate grows no more.
//
// A rate that falls may be the link's, or it may be that acknowledgements are late for another
// reason (threads that wait for a core), so that the limit itself is what keeps the rate low: then
// believing it would lower the limit, and the limit the rate. So twice as much is tried first. What
// brings more was too little, and is kept for a while; what brings no more is the link's rate.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>

#include "common/base/clock.h"
#include "common/channel/channel.h"

namespace smartgen::transfer {

// Of a link. 0: not known yet.
struct LinkEstimate {
  double bytes_per_second = 0;  // handed to the network while there was always more to hand out
  double rtt_seconds = 0;       // the shortest seen
};

class LinkWindow {
 public:
  struct Options {
    // The queue that background bytes may make before an on-demand reply: 2 ms, a tenth of a decode
    // step, and four times what the TCP channel takes to notice that there is room again.
    double queue_seconds = 0.002;
    // Two queued messages of two full segments: less would not fill a link whose sender waits for
    // each acknowledgement.
    int64_t min_bytes = 8 << 10;
    // 2 ms of 16 Gbit/s; more would not make such a link faster.
    int64_t max_bytes = 4 << 20;
    // Until something is known: 2 ms of 256 Mbit/s. A slower link queues this once; a faster one
    // doubles it within a few samples.
    int64_t initial_bytes = 64 << 10;
  };
  explicit LinkWindow(const Options& options) : options_(options) {}

  // Bytes of the background that the channel may hold and has not handed to the network.
  int64_t bytes() const;
  // For Channel::LimitInFlight: handed to the network and not acknowledged.
  int64_t in_flight_bytes() const;
  LinkEstimate estimate() const { return estimate_; }

  // Something is under way, where nothing was.
  void OnBusy(base::TimePoint now);
  // `bytes` were handed to the network. `link` is what the channel knows at this time.
  void OnHandedOut(uint64_t bytes, const channel::LinkInfo& link, base::TimePoint now);
  // Nothing is under way any more: how fast the rest went says nothing.
  void OnIdle() { measuring_ = false; }

  // So many bytes are given to the channel; `limited`: on a lane with in_flight_bytes as its limit.
  void OnPosted(int64_t bytes, bool limited, base::TimePoint now);
  // The channel holds nothing any more: of limited lanes, no more than their limits are not
  // through, whatever the rate was taken for when it was posted.
  void OnAllHandedOut(base::TimePoint now);
  // When the link will have carried what was given to the channel and `bytes` more. Nothing while
  // the rate is not known, or was not seen for a while: it can be seen only while the link is busy.
  std::optional<base::TimePoint> ThroughAt(int64_t bytes, base::TimePoint now) const;

 private:
  void OnSample(double bytes_per_second);
  void OnBlock(double bytes_per_second);
  void SetGain(double gain);
  base::Duration TimeOf(int64_t bytes) const;

  const Options options_;
  LinkEstimate estimate_;
  uint64_t handed_out_ = 0;
  bool starting_ = true;   // looking for the rate
  int flat_samples_ = 0;   // in a row, while starting
  double gain_ = 1;        // of the limits: more than 1 where acknowledgements are late
  double tried_from_ = 0;  // the low rate for which the gain was doubled; 0: no try is under way
  int believed_ = 0;       // low blocks that are believed without another try
  int gain_blocks_ = 0;    // since the gain was set
  int halved_blocks_ = 0;  // still to come after the gain was halved
  int block_samples_ = 0;
  double block_sum_ = 0;
  base::TimePoint busy_at_;
  base::TimePoint sampled_at_;
  base::TimePoint through_at_;            // of what was given to the channel
  base::TimePoint unlimited_through_at_;  // of what was posted on lanes without a limit
  // A sample begun: from the values below on.
  bool measuring_ = false;
  bool from_acked_ = false;
  base::TimePoint from_at_;
  uint64_t from_bytes_ = 0;
};

}  // namespace smartgen::transfer
