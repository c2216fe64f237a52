// Measures a data channel from its decode side: the round trip of small messages, and the bytes
// per second that the other side can send. Same sockets, lanes and sizes as KV takes, without
// checksums, which cost next to nothing.
//
// Messages have a head of one kind byte and a number (little endian, 8 bytes), and live on a
// channel of their own:
//   ping n (asks)         on-demand   answered by pong n, on-demand
//   send n (asks)         on-demand   answered by n payload bytes, proactive, in messages headed
//                                     "bytes, so many are still to come after this one"
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/channel/channel.h"

namespace smartgen::transfer {

// Payload of a message, as TransferSender's.
inline constexpr int64_t kProbeMessageBytes = 256 << 10;

// Answers. Stands on the prefill side. Thread-safe.
class ProbeResponder final : public channel::Receiver,
                             public std::enable_shared_from_this<ProbeResponder> {
 public:
  // Sends at most `max_bytes` altogether and answers at most `max_pings`; asking for more closes
  // the channel.
  ProbeResponder(uint64_t max_bytes, int64_t max_pings)
      : bytes_left_(max_bytes), pings_left_(max_pings) {}

  // To be called once, before anything comes.
  void SetChannel(std::shared_ptr<channel::Channel> channel);
  // Closes the channel, now or when it comes.
  void Close(const absl::Status& reason);
  bool closed() const { return closed_.load(); }

  absl::StatusOr<channel::Placement> OnHead(channel::Lane lane, std::span<const std::byte> head,
                                            uint64_t payload_bytes) override;
  void OnPayload(channel::Lane lane, std::span<const std::byte> head,
                 channel::Placement placement) override;
  void OnClosed(const absl::Status& reason) override;

 private:
  absl::Status Answer(std::span<const std::byte> head);
  absl::Status SendBytes(channel::Channel& channel, uint64_t bytes);

  std::atomic<bool> closed_{false};
  base::Mutex mutex_;
  std::shared_ptr<channel::Channel> channel_ ABSL_GUARDED_BY(mutex_);
  absl::Status close_reason_ ABSL_GUARDED_BY(mutex_);
  uint64_t bytes_left_ ABSL_GUARDED_BY(mutex_);
  int64_t pings_left_ ABSL_GUARDED_BY(mutex_);
};

struct ProbeResult {
  double bytes_per_second = 0;
  double round_trip_seconds = 0;  // the median
  uint64_t bytes = 0;             // that came
};

// Asks. Stands on the decode side; `Run` is called once, by any thread.
class ProbeClient final : public channel::Receiver {
 public:
  struct Options {
    int round_trips = 31;
    // Bytes are asked for in rounds that grow until one takes this long, or max_bytes have come.
    base::Duration bulk_time = std::chrono::milliseconds(500);
    uint64_t max_bytes = 0;
    const base::Clock* clock = base::Clock::Real();
  };
  explicit ProbeClient(Options options) : options_(options), scratch_(kProbeMessageBytes) {}

  // DeadlineExceeded, or why the channel closed, or InvalidArgument for answers that make no sense.
  absl::StatusOr<ProbeResult> Run(channel::Channel& channel, base::Deadline deadline);

  absl::StatusOr<channel::Placement> OnHead(channel::Lane lane, std::span<const std::byte> head,
                                            uint64_t payload_bytes) override;
  void OnPayload(channel::Lane lane, std::span<const std::byte> head,
                 channel::Placement placement) override;
  void OnClosed(const absl::Status& reason) override;

 private:
  struct Arrival {
    base::TimePoint at;
    uint64_t bytes = 0;
  };
  absl::StatusOr<double> RoundTrip(channel::Channel& channel, uint64_t number,
                                   base::Deadline deadline);
  // Asks for `bytes` and waits for all of them.
  absl::StatusOr<std::vector<Arrival>> Round(channel::Channel& channel, uint64_t bytes,
                                             base::Deadline deadline);

  const Options options_;
  std::vector<std::byte> scratch_;  // where payloads go; one at a time comes
  base::Mutex mutex_;
  base::CondVar changed_;
  std::optional<uint64_t> pong_ ABSL_GUARDED_BY(mutex_);
  base::TimePoint pong_at_ ABSL_GUARDED_BY(mutex_);
  std::vector<Arrival> arrivals_ ABSL_GUARDED_BY(mutex_);
  bool all_came_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace smartgen::transfer
