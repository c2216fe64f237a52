#include "tools/trace/collect.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <thread>

#include "common/rpc/client.h"
#include "common/rpc/status.h"
#include "proto/trace.grpc.pb.h"

namespace smartgen::tools::trace_view {
namespace {

constexpr int kClockSamples = 8;
constexpr base::Duration kPoll = std::chrono::milliseconds(50);
// No two clocks that anybody keeps in step run apart faster: 50 ppm, a bad crystal's error.
constexpr int64_t kDriftNsPerSecond = 50'000;

const base::Clock& OurClock() { return *base::Clock::Real(); }

absl::StatusOr<ClockOffset> AskClock(v1::Trace::Stub& stub, base::Duration timeout) {
  std::vector<ClockSample> samples;
  // One more: the first opens the connection.
  for (int i = 0; i <= kClockSamples; ++i) {
    grpc::ClientContext context;
    rpc::SetTimeout(context, timeout);
    v1::ClockReply reply;
    ClockSample sample;
    sample.asked_ns = OurClock().Now().ns;
    RETURN_IF_ERROR(rpc::FromGrpc(stub.Clock(&context, v1::ClockRequest(), &reply)));
    sample.answered_ns = OurClock().Now().ns;
    sample.received_ns = reply.received_ns();
    sample.sent_ns = reply.sent_ns();
    if (i > 0) samples.push_back(sample);
  }
  return EstimateOffset(samples);
}

absl::StatusOr<v1::TraceReply> Get(v1::Trace::Stub& stub, const std::string& request_id,
                                   base::Duration timeout) {
  grpc::ClientContext context;
  rpc::SetTimeout(context, timeout);
  v1::TraceRequest request;
  request.set_request_id(request_id);
  v1::TraceReply reply;
  RETURN_IF_ERROR(rpc::FromGrpc(stub.Get(&context, request, &reply)));
  return reply;
}

bool Finished(const v1::TraceReply& reply) {
  return std::all_of(reply.traces().begin(), reply.traces().end(),
                     [](const v1::RequestTrace& trace) { return trace.finished(); });
}

absl::StatusOr<DaemonTrace> CollectUnnamed(const std::string& address,
                                           const std::string& request_id,
                                           const CollectOptions& options) {
  rpc::ClientOptions client;
  client.security = options.security;
  ASSIGN_OR_RETURN(const auto channel, rpc::Connect(address, client));
  const auto stub = v1::Trace::NewStub(channel);
  DaemonTrace out{.address = address};
  const base::Deadline patience = base::Deadline::After(OurClock(), options.patience);
  while (true) {
    ASSIGN_OR_RETURN(out.reply, Get(*stub, request_id, options.timeout));
    if (Finished(out.reply) || patience.Expired(OurClock())) break;
    std::this_thread::sleep_for(kPoll);
  }
  ASSIGN_OR_RETURN(out.clock, AskClock(*stub, options.timeout));
  return out;
}

ViewEvent ToView(const v1::TraceEvent& event, const v1::TraceEventKind& kind, int64_t origin_ns) {
  ViewEvent view{.name = kind.name(),
                 .category = kind.category(),
                 .track = kind.track(),
                 .instant = kind.instant(),
                 .begin_ns = origin_ns + event.begin_ns(),
                 .duration_ns = std::max<int64_t>(0, event.duration_ns())};
  for (int i = 0; i < std::min(kind.args_size(), event.args_size()); ++i) {
    if (!kind.args(i).empty()) view.args.emplace_back(kind.args(i), event.args(i));
  }
  return view;
}

}  // namespace

ClockOffset EstimateOffset(std::span<const ClockSample> samples) {
  const auto round_trip = [](const ClockSample& s) {
    return std::max<int64_t>(0, (s.answered_ns - s.asked_ns) - (s.sent_ns - s.received_ns));
  };
  const ClockSample& best = *std::min_element(
      samples.begin(), samples.end(),
      [&](const ClockSample& a, const ClockSample& b) { return round_trip(a) < round_trip(b); });
  // Differences first: the sum of two clock readings could be more than an int64 holds.
  const int64_t there = best.asked_ns - best.received_ns;
  const int64_t back = best.answered_ns - best.sent_ns;
  return {.offset_ns = there + (back - there) / 2,
          .uncertainty_ns = (round_trip(best) + 1) / 2,
          .round_trip_ns = round_trip(best)};
}

absl::StatusOr<DaemonTrace> Collect(const std::string& address, const std::string& request_id,
                                    const CollectOptions& options) {
  auto collected = CollectUnnamed(address, request_id, options);
  if (!collected.ok()) return base::Annotate(collected.status(), address);
  return collected;
}

std::vector<std::string> PrefillsOf(const DaemonTrace& decode) {
  std::vector<std::string> addresses;
  for (const v1::RequestTrace& trace : decode.reply.traces()) {
    for (int number = 1;; ++number) {
      const auto note = trace.notes().find(fmt::format("prefill_{}", number));
      if (note == trace.notes().end()) break;
      if (std::find(addresses.begin(), addresses.end(), note->second) == addresses.end()) {
        addresses.push_back(note->second);
      }
    }
  }
  return addresses;
}

std::vector<Process> ToProcesses(const DaemonTrace& daemon) {
  std::vector<Process> processes;
  int number = 0;
  for (const v1::RequestTrace& trace : daemon.reply.traces()) {
    Process process;
    process.name = fmt::format("{} {}", daemon.reply.daemon(), daemon.address);
    if (++number > 1) process.name += fmt::format(" ({})", number);
    const int64_t origin_ns = trace.begun_ns() + daemon.clock.offset_ns;
    for (const v1::TraceEvent& event : trace.events()) {
      if (event.kind() >= static_cast<uint32_t>(daemon.reply.kinds_size())) continue;
      const v1::TraceEventKind& kind = daemon.reply.kinds(static_cast<int>(event.kind()));
      process.events.push_back(ToView(event, kind, origin_ns));
    }
    processes.push_back(std::move(process));
  }
  return processes;
}

Json DaemonJson(const DaemonTrace& daemon) {
  Json json{{"daemon", daemon.reply.daemon()}, {"address", daemon.address}};
  const double uncertainty_us = static_cast<double>(daemon.clock.uncertainty_ns) * 1e-3;
  int64_t oldest_ns = OurClock().Now().ns;
  for (const v1::RequestTrace& trace : daemon.reply.traces()) {
    oldest_ns = std::min(oldest_ns, trace.begun_ns() + daemon.clock.offset_ns);
  }
  const double age_seconds = static_cast<double>(OurClock().Now().ns - oldest_ns) * 1e-9;
  json["clock"] = {
      {"offset_us", static_cast<double>(daemon.clock.offset_ns) * 1e-3},
      {"uncertainty_us", uncertainty_us},
      {"round_trip_us", static_cast<double>(daemon.clock.round_trip_ns) * 1e-3},
      // Between machines; on one machine the clocks are the same.
      {"drift_since_at_most_us", age_seconds * static_cast<double>(kDriftNsPerSecond) * 1e-3}};
  json["traces"] = Json::array();
  for (const v1::RequestTrace& trace : daemon.reply.traces()) {
    Json one{{"finished", trace.finished()},
             {"events", trace.events_size()},
             {"dropped", trace.dropped()}};
    for (const auto& [name, count] : trace.dropped_by_name()) one["dropped_by_name"][name] = count;
    for (const auto& [key, value] : trace.notes()) one["notes"][key] = value;
    json["traces"].push_back(std::move(one));
  }
  return json;
}

}  // namespace smartgen::tools::trace_view
