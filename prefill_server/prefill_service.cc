#include "prefill_server/prefill_service.h"

#include <memory>
#include <utility>

#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/rpc/client.h"
#include "common/rpc/convert.h"
#include "common/rpc/reactors.h"
#include "common/rpc/status.h"

namespace smartgen::prefill_server {
namespace {

using EventStream = rpc::ServerEventStream<v1::PrefillEvent>;

// One call. The stream's callbacks, the engine's job and this object hold each other until the call
// has ended.
class Call final : public JobListener, public std::enable_shared_from_this<Call> {
 public:
  Call(PrefillEngine* engine, metrics::Metrics* metrics, trace::TraceStore* traces,
       rpc::OpenCalls* open)
      : engine_(engine), metrics_(metrics), traces_(traces), open_(open) {}

  EventStream* Open() {
    stream_ = EventStream::Create([self = shared_from_this()] { self->OnCancel(); }, open_);
    return stream_.get();
  }
  void Submit(absl::StatusOr<JobSpec> spec) {
    if (!spec.ok()) return Failed(spec.status());
    const trace::TracePtr trace = spec->trace;
    auto job = engine_->Submit(*std::move(spec), shared_from_this());
    if (!job.ok()) return Failed(job.status());
    traces_->Keep(trace);
    bool cancelled = false;
    {
      base::MutexLock lock(mutex_);
      if (ended_) return;
      job_ = *job;
      cancelled = cancelled_;
    }
    if (cancelled) OnCancel();
  }

  void Started(int64_t cached_tokens, double queue_seconds) override {
    v1::PrefillEvent event;
    event.mutable_started()->set_prefill_cached_tokens(cached_tokens);
    event.mutable_started()->set_queue_seconds(queue_seconds);
    stream_->Push(std::move(event));
  }
  void FirstToken(const sampling::SampledToken& token) override {
    v1::PrefillEvent event;
    rpc::ToProto(token, event.mutable_first_token());
    stream_->Push(std::move(event));
  }
  void Done(bool transfer, double prefill_seconds) override {
    v1::PrefillEvent event;
    event.mutable_done()->set_transfer(transfer);
    event.mutable_done()->set_prefill_seconds(prefill_seconds);
    stream_->Push(std::move(event));
    End(absl::OkStatus());
  }
  void Failed(const absl::Status& status) override { End(status); }

 private:
  void OnCancel() {
    std::shared_ptr<Job> job;
    {
      base::MutexLock lock(mutex_);
      cancelled_ = true;
      job = job_;
    }
    if (job != nullptr) engine_->Cancel(job, base::Cancelled("the decode side cancelled the call"));
  }
  void End(const absl::Status& status) {
    metrics_->GetCounter("requests_total", {{"code", absl::StatusCodeToString(status.code())}})
        .Add();
    stream_->End(rpc::ToGrpc(status));
    base::MutexLock lock(mutex_);
    ended_ = true;
    job_.reset();
  }

  PrefillEngine* const engine_;
  metrics::Metrics* const metrics_;
  trace::TraceStore* const traces_;
  rpc::OpenCalls* const open_;
  std::shared_ptr<EventStream> stream_;
  base::Mutex mutex_;
  std::shared_ptr<Job> job_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

PrefillService::PrefillService(Parts parts) : parts_(std::move(parts)) {}

void PrefillService::Flush(base::Duration patience) {
  if (open_.WaitForNone(patience)) return;
  SMARTGEN_LOG(warn, "server", "some answers were not taken by their clients within {:g} s",
               base::ToSeconds(patience));
}

grpc::ServerWriteReactor<v1::PrefillEvent>* PrefillService::Prefill(
    grpc::CallbackServerContext* context, const v1::PrefillRequest* request) {
  const auto call = std::make_shared<Call>(parts_.engine, parts_.metrics, parts_.traces, &open_);
  EventStream* stream = call->Open();
  call->Submit(MakeSpec(*context, *request));
  return stream;
}

absl::StatusOr<JobSpec> PrefillService::MakeSpec(const grpc::CallbackServerContext& context,
                                                 const v1::PrefillRequest& request) const {
  if (request.model_fingerprint() != parts_.identity.model_fingerprint) {
    return base::FailedPrecondition("model_fingerprint: ours {} ({}), theirs {}",
                                    parts_.identity.model_fingerprint, parts_.identity.model_name,
                                    request.model_fingerprint());
  }
  if (request.prefill_incarnation() != parts_.incarnation) {
    return base::FailedPrecondition(
        "prefill_incarnation: ours {:x}, the call is for {:x}: prefilld has restarted",
        parts_.incarnation, request.prefill_incarnation());
  }
  JobSpec spec;
  ASSIGN_OR_RETURN(spec.id, rpc::ParseTransferId(request.transfer_id()));
  ASSIGN_OR_RETURN(spec.link, parts_.control->FindUp(request.decode_incarnation()));
  ASSIGN_OR_RETURN(spec.sampling, rpc::FromProto(request.sampling()));
  spec.tokens.assign(request.token_ids().begin(), request.token_ids().end());
  spec.decode_cached_tokens = request.decode_cached_tokens();
  spec.prompt_tokens = request.prompt_tokens();
  spec.max_tokens = request.max_tokens();
  ASSIGN_OR_RETURN(spec.mode, rpc::FromProto(request.mode(), transfer::Mode::kFull));
  if (spec.mode == transfer::Mode::kAuto || spec.mode == transfer::Mode::kLocal) {
    return base::InvalidArgument("mode: the decode side chooses one that transfers KV, got {}",
                                 transfer::ModeName(spec.mode));
  }
  ASSIGN_OR_RETURN(spec.transfer, rpc::FromProto(request.transfer(), {}));
  spec.deadline =
      base::Deadline::Earlier(rpc::FromSystemTime(context.deadline(), *parts_.clock),
                              base::Deadline::After(*parts_.clock, parts_.request_timeout));
  spec.trace = parts_.traces->Begin(request.trace_id());
  if (spec.trace != nullptr) {
    spec.trace->Enter(trace::Kind::kQueued);
    spec.trace->Note("transfer_id", spec.id.ToString());
    spec.trace->Note("mode", std::string(transfer::ModeName(spec.mode)));
    spec.trace->Note("prompt_tokens", fmt::format("{}", request.prompt_tokens()));
  }
  return spec;
}

grpc::ServerUnaryReactor* PrefillService::Info(grpc::CallbackServerContext* context,
                                               const v1::InfoRequest*, v1::DaemonInfo* response) {
  *response = parts_.info();
  auto* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* PrefillService::Probe(grpc::CallbackServerContext* context,
                                                const v1::ProbeRequest*, v1::ProbeReply* response) {
  auto reply = parts_.probe->Begin();
  if (reply.ok()) *response = *std::move(reply);
  auto* reactor = context->DefaultReactor();
  reactor->Finish(rpc::ToGrpc(reply.status()));
  return reactor;
}

}  // namespace smartgen::prefill_server
