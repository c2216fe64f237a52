#include "tools/bench/session.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "common/rpc/client.h"
#include "common/rpc/convert.h"
#include "proto/decode.pb.h"

namespace smartgen::tools::bench {
namespace {

constexpr base::Duration kTick = std::chrono::milliseconds(20);
// Short, so that a daemon's death is noticed.
constexpr base::Duration kConnectPatience = std::chrono::milliseconds(500);
constexpr base::Duration kQuietTimeout = std::chrono::seconds(60);

absl::Status Stopped() { return base::Cancelled("the benchmark was stopped"); }

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> Session::Open(const Rig& rig, StopSource* stop,
                                                       base::Duration start_timeout) {
  std::unique_ptr<Session> session(new Session(rig, stop));
  const base::Deadline deadline = base::Deadline::After(*base::Clock::Real(), start_timeout);
  RETURN_IF_ERROR(session->Connect(deadline));
  RETURN_IF_ERROR(session->ReadModel());
  return session;
}

Session::~Session() { stop_->OnStop(nullptr); }

absl::Status Session::Connect(base::Deadline deadline) {
  const base::Clock& clock = *base::Clock::Real();
  absl::Status last;
  while (decode_ == nullptr) {
    auto client = DecodeClient::Connect(rig_.decode_address, rig_.client, kConnectPatience);
    if (client.ok()) {
      decode_ = *std::move(client);
    } else if (deadline.Expired(clock)) {
      return base::Annotate(client.status(), "decoded did not come up");
    }
    if (!stop_->Sleep(kTick)) return Stopped();
  }
  stop_->OnStop([client = decode_] { client->CancelAll(); });
  for (const std::string& address : rig_.prefill_addresses) {
    ASSIGN_OR_RETURN(auto channel, rpc::Connect(address, rig_.client));
    prefills_.push_back(std::move(channel));
  }
  while (true) {
    ASSIGN_OR_RETURN(const v1::DaemonInfo info, decode_->Info());
    std::string missing;
    for (const v1::PeerInfo& peer : info.peers()) {
      if (!peer.up()) missing = fmt::format("{}: {}", peer.address(), peer.detail());
    }
    if (missing.empty() && info.peers_size() == static_cast<int>(prefills_.size())) break;
    if (deadline.Expired(clock)) {
      return base::DeadlineExceeded("decoded is not paired with {} prefilld; {}", prefills_.size(),
                                    missing);
    }
    if (!stop_->Sleep(kTick)) return Stopped();
  }
  return absl::OkStatus();
}

absl::Status Session::ReadModel() {
  ASSIGN_OR_RETURN(const v1::DaemonInfo info, decode_->Info());
  model_.name = info.model_name();
  model_.fingerprint = info.model_fingerprint();
  model_.version = info.version();
  model_.compute = info.compute();
  model_.context_length = info.context_length();
  ASSIGN_OR_RETURN(model_.layout, rpc::FromProto(info.layout()));
  return absl::OkStatus();
}

absl::StatusOr<std::string> Session::Unquiet() const {
  ASSIGN_OR_RETURN(const v1::DaemonInfo decode, decode_->Info());
  if (decode.running() + decode.waiting() > 0) {
    return fmt::format("decoded has {} requests running and {} waiting", decode.running(),
                       decode.waiting());
  }
  for (size_t i = 0; i < prefills_.size(); ++i) {
    ASSIGN_OR_RETURN(const v1::DaemonInfo prefill, PrefillInfo(prefills_[i]));
    if (prefill.running() + prefill.waiting() + prefill.leases() > 0) {
      return fmt::format("prefilld {} has {} prompts running, {} waiting, {} leases",
                         rig_.prefill_addresses[i], prefill.running(), prefill.waiting(),
                         prefill.leases());
    }
  }
  return std::string();
}

absl::Status Session::WaitQuiet(base::Duration timeout) const {
  const base::Clock& clock = *base::Clock::Real();
  const base::Deadline deadline = base::Deadline::After(clock, timeout);
  while (true) {
    ASSIGN_OR_RETURN(const std::string left, Unquiet());
    if (left.empty()) return absl::OkStatus();
    if (deadline.Expired(clock)) {
      return base::DeadlineExceeded("after {:g} s without a request, {}", base::ToSeconds(timeout),
                                    left);
    }
    if (!stop_->Sleep(kTick)) return Stopped();
  }
}

absl::StatusOr<Counters> Session::DecodeCounters() const {
  if (rig_.decode_metrics.empty()) return Counters();
  return FetchCounters(rig_.decode_metrics);
}

absl::StatusOr<Counters> Session::PrefillCounters() const {
  Counters sum;
  for (const std::string& url : rig_.prefill_metrics) {
    ASSIGN_OR_RETURN(const Counters counters, FetchCounters(url));
    AddTo(sum, counters);
  }
  return sum;
}

absl::StatusOr<Outcome> Session::Run(const std::vector<GenerationSpec>& specs,
                                     base::Duration timeout) {
  if (stop_->stopped()) return Stopped();
  std::vector<v1::GenerateRequest> requests;
  for (const GenerationSpec& spec : specs) {
    ASSIGN_OR_RETURN(auto request, MakeRequest(spec, model_.fingerprint));
    requests.push_back(std::move(request));
  }
  RETURN_IF_ERROR(WaitQuiet(kQuietTimeout));
  ASSIGN_OR_RETURN(const Counters decode_before, DecodeCounters());
  ASSIGN_OR_RETURN(const Counters prefill_before, PrefillCounters());
  Outcome outcome;
  outcome.generations = decode_->Generate(requests, timeout);
  if (stop_->stopped()) return Stopped();
  RETURN_IF_ERROR(WaitQuiet(kQuietTimeout));
  ASSIGN_OR_RETURN(const Counters decode_after, DecodeCounters());
  ASSIGN_OR_RETURN(const Counters prefill_after, PrefillCounters());
  outcome.decode = Growth(decode_before, decode_after);
  outcome.prefill = Growth(prefill_before, prefill_after);
  return outcome;
}

}  // namespace smartgen::tools::bench
