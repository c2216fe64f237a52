// Fetches a request's trace from a daemon, and sets its clock against ours.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/rpc/security.h"
#include "proto/trace.pb.h"
#include "tools/trace/chrome.h"

namespace smartgen::tools::trace_view {

// One question for a daemon's clock: our times around it, and its own.
struct ClockSample {
  int64_t asked_ns = 0;
  int64_t received_ns = 0;  // the daemon's
  int64_t sent_ns = 0;      // the daemon's
  int64_t answered_ns = 0;
};

struct ClockOffset {
  int64_t offset_ns = 0;       // added to the daemon's time it gives ours
  int64_t uncertainty_ns = 0;  // the true offset is within so much of it, at the time of asking
  int64_t round_trip_ns = 0;   // of the sample that it is from
};

// As NTP does: of the sample with the shortest round trip, the middles of the two intervals are the
// same moment, give or take half of the round trip. `samples` is not empty.
ClockOffset EstimateOffset(std::span<const ClockSample> samples);

struct DaemonTrace {
  std::string address;  // as it was asked
  ClockOffset clock;
  v1::TraceReply reply;
};

struct CollectOptions {
  rpc::Security security;
  base::Duration timeout = std::chrono::seconds(10);  // of a call
  base::Duration patience = std::chrono::seconds(2);  // for the request to end
};

// Waits a while for the request to have ended in the daemon. The daemon's status (NotFound says how
// to have a request traced; Unavailable), with the address before its message.
absl::StatusOr<DaemonTrace> Collect(const std::string& address, const std::string& request_id,
                                    const CollectOptions& options);

// The prefill instances that a decoded asked for the request, in order, each once.
std::vector<std::string> PrefillsOf(const DaemonTrace& decode);

// A process for each trace in the reply. Events that refer to no kind of the reply are left out.
std::vector<Process> ToProcesses(const DaemonTrace& daemon);

// What the metadata says of it: address, clock, events dropped, what the daemon noted.
Json DaemonJson(const DaemonTrace& daemon);

}  // namespace smartgen::tools::trace_view
