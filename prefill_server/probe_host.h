// Lets a decode machine measure the way to here (`smartgen calibrate --peer`): a data channel of
// its own, on the port that KV takes. One at a time, bounded in bytes and time. Thread-safe.
#pragma once

#include <memory>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/channel/tcp/tcp_engine.h"
#include "common/transfer/probe.h"
#include "proto/prefill.pb.h"

namespace smartgen::prefill_server {

class ProbeHost {
 public:
  struct Options {
    uint64_t max_bytes = 512 << 20;  // sent altogether: 0.1 s of 40 Gbit/s
    int64_t max_pings = 1000;
    // From the call to the end. 8 MiB, with which a slow link is measured, take 7 s at 10 Mbit/s.
    base::Duration timeout = std::chrono::seconds(30);
  };
  // `tcp` must outlive it.
  ProbeHost(Options options, channel::TcpEngine* tcp, const base::Clock* clock)
      : options_(options), tcp_(tcp), clock_(clock) {}

  // Opens the door for one data channel and says how to come in. ResourceExhausted while another
  // measurement runs, Unavailable after Stop.
  absl::StatusOr<v1::ProbeReply> Begin();
  // Ends a measurement whose time is over. To be called often.
  void Tick();
  // Ends what runs; later calls are refused. Idempotent.
  void Stop();

 private:
  const Options options_;
  channel::TcpEngine* const tcp_;
  const base::Clock* const clock_;
  base::Mutex mutex_;
  std::shared_ptr<transfer::ProbeResponder> running_ ABSL_GUARDED_BY(mutex_);
  base::Deadline deadline_ ABSL_GUARDED_BY(mutex_) = base::Deadline::Infinite();
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace smartgen::prefill_server
