#include "prefill_server/peer_link.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/rpc/convert.h"
#include "common/rpc/status.h"

namespace smartgen::prefill_server {
namespace {

// More ranges than a request with every page of every layer lost would need are a broken peer.
constexpr int kMaxFetchRanges = 1 << 17;
// More steps in one message than a decode instance runs sequences.
constexpr int kMaxSteps = 4096;
// A change of the link's rate by this part is told at once, not with the next heartbeat.
constexpr double kRateNews = 0.25;

// Nothing if the bytes are no float32 values.
std::optional<std::vector<float>> Floats(const std::string& bytes) {
  if (bytes.size() % sizeof(float) != 0) return std::nullopt;
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace

PeerLink::PeerLink(Context context)
    : context_(std::move(context)), last_heard_(context_.clock->Now()) {}

PeerLink::~PeerLink() = default;

void PeerLink::SetStream(std::shared_ptr<ControlStream> stream) {
  base::MutexLock lock(mutex_);
  if (state_ != State::kDown) stream_ = std::move(stream);
}

bool PeerLink::AdvanceLocked(State next) {
  const bool allowed = (state_ == State::kHello && next == State::kPairing) ||
                       (state_ == State::kPairing && next == State::kUp) ||
                       (state_ != State::kDown && next == State::kDown);
  if (allowed) state_ = next;
  return allowed;
}

bool PeerLink::Accept(const v1::Hello& hello, std::string instance, v1::HelloReply reply) {
  std::shared_ptr<ControlStream> stream;
  {
    base::MutexLock lock(mutex_);
    if (!AdvanceLocked(State::kPairing)) return false;
    incarnation_ = hello.incarnation();
    instance_ = std::move(instance);
    checksum_ = hello.checksum();
    stream = stream_;
  }
  v1::ControlMessage message;
  *message.mutable_hello_reply() = std::move(reply);
  if (stream != nullptr) stream->Push(std::move(message));
  return true;
}

void PeerLink::SetChannel(std::shared_ptr<channel::Channel> channel) {
  std::string instance;
  {
    base::MutexLock lock(mutex_);
    if (AdvanceLocked(State::kUp)) {
      channel_ = channel;
      transfer::TransferSender::Options options;
      options.own_incarnation = context_.own_incarnation;
      options.peer_incarnation = incarnation_;
      options.checksum = checksum_;
      sender_ = std::make_shared<transfer::TransferSender>(channel, options);
      last_heard_ = context_.clock->Now();
      instance = instance_;
    }
  }
  if (instance.empty()) {
    channel->Close(base::Aborted("the pairing ended before its channel stood"));
    return;
  }
  v1::ControlMessage message;
  message.mutable_paired();
  Send(std::move(message));
  metrics::Gauge& gauge = context_.metrics->GetGauge("peer_up", {{"peer", instance}});
  metrics::Gauge& transport = context_.metrics->GetGauge(
      "transport_info", {{"peer", instance}, {"transport", channel->transport()}});
  gauge.Set(1);
  transport.Set(1);
  // GoDown may have come before them with its zeros.
  if (!up()) {
    gauge.Set(0);
    transport.Set(0);
  }
  SMARTGEN_LOG(info, "pairing", "paired peer={} transport={} data={}", instance,
               channel->transport(), channel->peer());
}

void PeerLink::Tick() {
  // Less a tick: silence is noticed by the first tick after it, so before the third is over.
  const base::Duration silence =
      kMissedHeartbeats * context_.heartbeat - context_.heartbeat / kTicksPerHeartbeat;
  bool missed = false;
  v1::ControlMessage message;
  {
    base::MutexLock lock(mutex_);
    if (state_ == State::kDown) return;
    // While the channel is being made the peer has nothing to say; that has its own deadline.
    missed = state_ != State::kPairing && context_.clock->Now() - last_heard_ >= silence;
    // Nothing goes out before the reply to Hello.
    if (!missed && (state_ == State::kHello || ticks_++ % kTicksPerHeartbeat != 0)) return;
    message.mutable_heartbeat()->set_count(++heartbeats_);
  }
  if (missed) {
    GoDown(base::Unavailable("nothing was heard for {:g} s: {} heartbeats missed",
                             base::ToSeconds(silence), kMissedHeartbeats));
    return;
  }
  message.mutable_heartbeat()->set_draining(context_.draining());
  Send(std::move(message));
  ReportLink();
  MeasureLink();
}

void PeerLink::MeasureLink() {
  const auto sending = sender();
  if (sending == nullptr) return;
  const base::TimePoint now = context_.clock->Now();
  const double busy = sending->busy_seconds();
  double ratio = 0;
  std::string instance;
  {
    base::MutexLock lock(mutex_);
    const double passed = base::ToSeconds(now - measured_at_);
    if (measured_at_ != base::TimePoint{} && passed > 0) {
      ratio = std::clamp((busy - measured_busy_) / passed, 0.0, 1.0);
    }
    measured_at_ = now;
    measured_busy_ = busy;
    instance = instance_;
  }
  context_.metrics->GetGauge("link_busy_ratio", {{"peer", instance}}).Set(ratio);
  const double rate = sending->link().bytes_per_second;
  if (rate <= 0) return;
  context_.metrics->GetGauge("link_bandwidth_bytes_per_second", {{"peer", instance}}).Set(rate);
}

void PeerLink::ReportLink() {
  const transfer::LinkEstimate link = estimate();
  if (link.bytes_per_second <= 0) return;
  {
    base::MutexLock lock(mutex_);
    reported_rate_ = link.bytes_per_second;
  }
  v1::ControlMessage message;
  message.mutable_link()->set_bytes_per_second(link.bytes_per_second);
  message.mutable_link()->set_round_trip_seconds(link.rtt_seconds);
  Send(std::move(message));
}

void PeerLink::GoDown(const absl::Status& reason) {
  std::shared_ptr<ControlStream> stream;
  std::shared_ptr<channel::Channel> channel;
  std::string instance;
  {
    base::MutexLock lock(mutex_);
    if (!AdvanceLocked(State::kDown)) return;
    stream.swap(stream_);
    channel.swap(channel_);
    instance = instance_;
  }
  SMARTGEN_LOG(warn, "pairing", "down peer={} reason={}", instance.empty() ? "unknown" : instance,
               base::MessageOf(reason));
  if (channel != nullptr) {
    context_.metrics->GetGauge("peer_up", {{"peer", instance}}).Set(0);
    context_.metrics->GetGauge("link_busy_ratio", {{"peer", instance}}).Set(0);
    context_.metrics
        ->GetGauge("transport_info", {{"peer", instance}, {"transport", channel->transport()}})
        .Set(0);
    channel->Close(reason);
  }
  context_.engine->DropLink(this, base::Annotate(reason, "the decode instance is down"));
  if (stream != nullptr) stream->End(rpc::ToGrpc(reason));
  context_.on_down(shared_from_this());
}

PeerLink::State PeerLink::state() const {
  base::MutexLock lock(mutex_);
  return state_;
}

uint64_t PeerLink::incarnation() const {
  base::MutexLock lock(mutex_);
  return incarnation_;
}

std::string PeerLink::transport() const {
  base::MutexLock lock(mutex_);
  return channel_ == nullptr ? "" : std::string(channel_->transport());
}

std::string PeerLink::instance() const {
  base::MutexLock lock(mutex_);
  return instance_;
}

void PeerLink::Send(v1::ControlMessage message) {
  std::shared_ptr<ControlStream> stream;
  {
    base::MutexLock lock(mutex_);
    stream = stream_;
  }
  if (stream != nullptr) stream->Push(std::move(message));
}

std::shared_ptr<transfer::TransferSender> PeerLink::sender() const {
  base::MutexLock lock(mutex_);
  return sender_;
}

void PeerLink::OnMessage(const v1::ControlMessage& message) {
  {
    base::MutexLock lock(mutex_);
    last_heard_ = context_.clock->Now();
  }
  switch (message.message_case()) {
    case v1::ControlMessage::kHeartbeat:
    case v1::ControlMessage::kPaired:
      return;
    case v1::ControlMessage::kFetch:
      return OnFetch(message.fetch());
    case v1::ControlMessage::kSplit:
      return OnSplit(message.split());
    case v1::ControlMessage::kAttend:
      return OnAttend(message.attend());
    case v1::ControlMessage::kCredit:
      return OnCredit(message.credit());
    case v1::ControlMessage::kLeaseRenew:
      return OnLeaseRenew(message.lease_renew());
    case v1::ControlMessage::kRelease:
      if (const auto id = rpc::ParseTransferId(message.release().transfer_id()); id.ok()) {
        context_.engine->Release(*id, base::Cancelled("the decode side released the transfer"));
      }
      return;
    case v1::ControlMessage::kAbort:
      if (const auto id = rpc::ParseTransferId(message.abort().transfer_id()); id.ok()) {
        context_.engine->Release(
            *id, base::Aborted("the decode side aborted: {}", message.abort().reason()));
      }
      return;
    default:
      GoDown(base::InvalidArgument("control stream: message {} has no place after Hello",
                                   static_cast<int>(message.message_case())));
  }
}

void PeerLink::OnFetch(const v1::Fetch& fetch) {
  const auto id = rpc::ParseTransferId(fetch.transfer_id());
  const auto sending = sender();
  if (!id.ok() || sending == nullptr) return;
  if (std::max({fetch.ranges_size(), fetch.heads_size(), fetch.metadata_size()}) >
      kMaxFetchRanges) {
    GoDown(base::InvalidArgument("Fetch: want at most {} ranges, got {}, {} and {}",
                                 kMaxFetchRanges, fetch.ranges_size(), fetch.heads_size(),
                                 fetch.metadata_size()));
    return;
  }
  std::vector<transfer::LayerRange> ranges;
  for (const auto& range : fetch.ranges())
    ranges.push_back({range.layer(), range.begin(), range.end()});
  std::vector<kv::HeadRange> heads;
  for (const auto& range : fetch.heads())
    heads.push_back({range.head(), range.begin(), range.end()});
  absl::Status status;
  if (!ranges.empty()) status = sending->Resend(*id, ranges);
  if (status.ok() && !heads.empty()) {
    status = sending->Fetch(*id, fetch.layer(), heads, fetch.again());
  }
  if (!status.ok()) NotifyAborted(*id, base::MessageOf(status));
  if (fetch.metadata().empty()) return;
  std::vector<transfer::LayerRange> metadata;
  for (const auto& range : fetch.metadata())
    metadata.push_back({range.layer(), range.begin(), range.end()});
  context_.engine->ResendMetadata(*id, std::move(metadata));
}

void PeerLink::OnSplit(const v1::Split& split) {
  if (split.steps_size() > kMaxSteps) {
    GoDown(base::InvalidArgument("Split: want at most {} steps, got {}", kMaxSteps,
                                 split.steps_size()));
    return;
  }
  std::vector<SplitStep> steps;
  for (const auto& step : split.steps()) {
    const auto id = rpc::ParseTransferId(step.transfer_id());
    auto hidden = Floats(step.hidden());
    if (!id.ok() || !hidden) continue;
    steps.push_back({*id,
                     step.position(),
                     step.token(),
                     step.layer(),
                     *std::move(hidden),
                     {step.before().begin(), step.before().end()}});
  }
  context_.engine->SubmitSplit(std::move(steps));
}

void PeerLink::OnAttend(const v1::Attend& attend) {
  if (attend.jobs_size() > kMaxSteps) {
    GoDown(base::InvalidArgument("Attend: want at most {} jobs, got {}", kMaxSteps,
                                 attend.jobs_size()));
    return;
  }
  std::vector<AttendStep> steps;
  for (const auto& job : attend.jobs()) {
    const auto id = rpc::ParseTransferId(job.transfer_id());
    auto queries = Floats(job.queries());
    if (!id.ok() || !queries) continue;
    steps.push_back(
        {*id, job.position(), attend.layer(), job.begin(), job.end(), *std::move(queries)});
  }
  context_.engine->SubmitAttend(std::move(steps));
}

void PeerLink::OnCredit(const v1::Credit& credit) {
  const auto id = rpc::ParseTransferId(credit.transfer_id());
  const auto sending = sender();
  if (id.ok() && sending != nullptr && credit.bytes() > 0) sending->Credit(*id, credit.bytes());
}

void PeerLink::OnLeaseRenew(const v1::LeaseRenew& renew) {
  for (const std::string& bytes : renew.transfer_ids()) {
    const auto id = rpc::ParseTransferId(bytes);
    if (!id.ok()) continue;
    const absl::Status status = context_.engine->Renew(*id);
    if (!status.ok()) NotifyAborted(*id, base::MessageOf(status));
  }
}

absl::Status PeerLink::Begin(transfer::SendSpec spec) {
  const auto sending = sender();
  if (sending == nullptr || !up()) return base::Unavailable("the decode instance is not paired");
  // The last bytes of what is not full go in idle time.
  const transfer::Path last = spec.full ? transfer::Path::kFull : transfer::Path::kSpeculative;
  spec.on_sent = [self = weak_from_this(), id = spec.id, last,
                  begun = context_.clock->Now()](const absl::Status& status) {
    if (const auto link = self.lock()) link->OnSent(id, last, begun, status);
  };
  return sending->Begin(std::move(spec));
}

void PeerLink::OnSent(const base::TransferId& id, transfer::Path path, base::TimePoint begun,
                      const absl::Status& status) {
  if (!status.ok())
    return;  // ended early, or the channel is gone: both are dealt with where they happen
  v1::ControlMessage message;
  message.mutable_sent()->set_transfer_id(rpc::TransferIdBytes(id));
  Send(std::move(message));
  const double seconds = base::ToSeconds(context_.clock->Now() - begun);
  context_.metrics->GetHistogram("transfer_seconds", {{"path", transfer::PathName(path)}})
      .Observe(seconds);
}

absl::Status PeerLink::LayerReady(const base::TransferId& id, const transfer::LayerRange& range) {
  const auto sending = sender();
  if (sending == nullptr) return base::Unavailable("the decode instance is not paired");
  return sending->LayerReady(id, range);
}

absl::Status PeerLink::Metadata(const base::TransferId& id, int layer, int64_t begin, int64_t end,
                                bool header, std::vector<std::byte> bytes) {
  const auto sending = sender();
  if (sending == nullptr) return base::Unavailable("the decode instance is not paired");
  return sending->Metadata(id, layer, begin, end, header, std::move(bytes));
}

void PeerLink::PromptDone(const base::TransferId& id) {
  if (const auto sending = sender()) sending->PromptDone(id);
  ReportLink();  // before the first token goes: the next step is chosen by it
}

absl::Status PeerLink::Born(const base::TransferId& id, int layer_begin, int64_t token) {
  const auto sending = sender();
  if (sending == nullptr) return base::Unavailable("the decode instance is not paired");
  return sending->Born(id, layer_begin, token);
}

absl::Status PeerLink::Reply(const base::TransferId& id, uint64_t step, int layer,
                             std::vector<std::byte> bytes) {
  const auto sending = sender();
  if (sending == nullptr) return base::Unavailable("the decode instance is not paired");
  // Whoever waits for the answer chooses the next step by what the link carries.
  const double rate = sending->link().bytes_per_second;
  bool news = false;
  {
    base::MutexLock lock(mutex_);
    news = std::abs(rate - reported_rate_) > kRateNews * reported_rate_;
  }
  if (news) ReportLink();
  return sending->Reply(id, step, layer, std::move(bytes));
}

void PeerLink::ExpectReply(const base::TransferId& id, base::TimePoint at) {
  if (const auto sending = sender()) sending->ExpectReply(id, at);
}

transfer::LinkEstimate PeerLink::estimate() const {
  const auto sending = sender();
  return sending == nullptr ? transfer::LinkEstimate{} : sending->link();
}

void PeerLink::NotifyPlan(const base::TransferId& id, const DeliveryPlan& plan) {
  v1::ControlMessage message;
  v1::Plan& out = *message.mutable_plan();
  out.set_transfer_id(rpc::TransferIdBytes(id));
  out.set_mode(rpc::ToProto(plan.mode));
  out.set_budget_blocks(plan.budget_blocks);
  out.set_pushed_blocks(plan.pushed_blocks < 0 ? plan.total_blocks : plan.pushed_blocks);
  out.set_total_blocks(plan.total_blocks);
  out.set_prefill_seconds(plan.prefill_seconds);
  out.set_transfer_seconds(plan.transfer_seconds);
  if (plan.budget_blocks > 0) {
    context_.metrics->GetHistogram("plan_blocks", {{"kind", "budget"}})
        .Observe(static_cast<double>(plan.budget_blocks));
    context_.metrics->GetHistogram("plan_blocks", {{"kind", "chosen"}})
        .Observe(static_cast<double>(out.pushed_blocks()));
    context_.metrics->GetCounter("dense_overrun_blocks_total")
        .Add(static_cast<double>(plan.dense_overrun_blocks));
  }
  for (const auto& [what, seconds] :
       {std::pair{"prefill", plan.prefill_seconds}, std::pair{"transfer", plan.transfer_seconds}}) {
    if (seconds > 0) {
      context_.metrics->GetHistogram("predicted_seconds", {{"what", what}}).Observe(seconds);
    }
  }
  Send(std::move(message));
}

void PeerLink::End(const base::TransferId& id) {
  const auto sending = sender();
  if (sending == nullptr) return;
  const transfer::SenderStats stats = sending->End(id);
  for (const auto& [path, bytes] : stats.bytes_by_path) {
    context_.metrics
        ->GetCounter("transfer_bytes_total",
                     {{"path", transfer::PathName(path)}, {"direction", "sent"}})
        .Add(static_cast<double>(bytes));
  }
  if (stats.messages > 0) {
    context_.metrics->GetHistogram("transfer_segments")
        .Observe(static_cast<double>(stats.segments));
  }
}

void PeerLink::NotifyDeferred(const base::TransferId& id) {
  v1::ControlMessage message;
  message.mutable_deferred()->set_transfer_id(rpc::TransferIdBytes(id));
  Send(std::move(message));
}

void PeerLink::NotifyAborted(const base::TransferId& id, std::string_view reason) {
  v1::ControlMessage message;
  message.mutable_abort()->set_transfer_id(rpc::TransferIdBytes(id));
  message.mutable_abort()->set_reason(std::string(reason));
  Send(std::move(message));
}

}  // namespace smartgen::prefill_server
