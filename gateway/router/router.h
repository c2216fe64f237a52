// Which decode instance takes a request, and what is known about all instances.
//
// Each instance is asked for its Info every second (more often while it is down, and at once after
// an answer that did not come). An instance is up when it answers, serves our model and is not
// draining; a call that fails with UNAVAILABLE marks it down at once. Three missed answers in a row
// mean that it is dead: the calls that run there are broken, so that their streams go on elsewhere.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/metrics/metrics.h"
#include "common/rpc/client.h"
#include "proto/decode.pb.h"

namespace smartgen::gateway {

// A running Generate call.
class BackendCall {
 public:
  struct Events {
    std::function<void(v1::GenerateEvent event)> on_event;  // in order, one at a time
    // Once, last. OK also when the stream ended without `finished`.
    std::function<void(absl::Status status)> on_end;
  };
  virtual ~BackendCall() = default;
  virtual const std::string& address() const = 0;
  // At once; on_end follows with CANCELLED, unless the call ended by itself.
  virtual void Cancel() = 0;
  // To be called for every event that was dealt with: at most Options::read_ahead events are
  // outstanding, then reading stops and gRPC's flow control holds the sender.
  virtual void Consumed() = 0;
  // Token 1 is here: the prefill instance is done with this request.
  virtual void PrefillEnded() = 0;
};

struct InstanceState {
  std::string address;
  bool prefill = false;  // else decode
  bool up = false;
  std::string detail;  // why it is down
  int64_t running = 0;
  int64_t waiting = 0;
  std::vector<std::string> peers_down;  // decode: "address: reason" of its prefill instances
};

class Router {
 public:
  struct Options {
    std::vector<std::string> decode;
    std::vector<std::string> prefill;  // may be empty: decode instances order them themselves
    std::string model_fingerprint;
    rpc::ClientOptions client;
    base::Duration poll_interval = std::chrono::seconds(1);
    base::Duration poll_interval_down = std::chrono::milliseconds(250);
    // Three misses, asked at once one after the other, are some 3 s.
    base::Duration poll_timeout = std::chrono::seconds(1);
    int misses_until_dead = 3;
    int read_ahead = 64;
  };

  // Starts polling; returns after every instance was asked once (or poll_timeout).
  static absl::StatusOr<std::unique_ptr<Router>> Start(Options options, metrics::Metrics* metrics,
                                                       const base::Clock* clock);
  virtual ~Router() = default;  // as Stop

  // Starts the call on the least loaded instance that is up and not in `exclude`. Fills in
  // prefill_ranking and model_fingerprint. Unavailable names every instance and why it will not do.
  virtual absl::StatusOr<std::shared_ptr<BackendCall>> Generate(
      v1::GenerateRequest request, const std::set<std::string>& exclude, base::Deadline deadline,
      BackendCall::Events events) = 0;
  // The smallest context of the decode instances heard of; 0 if none was.
  virtual int64_t context_length() const = 0;
  virtual bool AnyDecodeUp() const = 0;
  virtual std::vector<InstanceState> Snapshot() const = 0;
  // Cancels all calls and waits until the last on_end has returned.
  virtual void Stop() = 0;
};

}  // namespace smartgen::gateway
