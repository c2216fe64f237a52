#include "decode_server/decode_service.h"

#include <memory>
#include <utility>

#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/rpc/client.h"
#include "common/rpc/convert.h"
#include "common/rpc/reactors.h"
#include "common/rpc/status.h"

namespace smartgen::decode_server {
namespace {

using EventStream = rpc::ServerEventStream<v1::GenerateEvent>;

// More than anybody has instances.
constexpr int kMaxRanking = 1024;

void StatsToProto(const Stats& stats, v1::RequestStats* proto) {
  proto->set_mode(rpc::ToProto(stats.mode));
  proto->set_prefill_address(stats.prefill_address);
  proto->set_fallback_reason(stats.fallback_reason);
  proto->set_prompt_tokens(stats.prompt_tokens);
  proto->set_cached_tokens(stats.cached_tokens);
  proto->set_generated_tokens(stats.generated_tokens);
  proto->set_queue_seconds(stats.queue_seconds);
  proto->set_prefill_seconds(stats.prefill_seconds);
  proto->set_transfer_exposed_seconds(stats.transfer_exposed_seconds);
  proto->set_decode_seconds(stats.decode_seconds);
  proto->set_transfer_bytes(stats.transfer_bytes);
  proto->set_preemptions(stats.preemptions);
  for (const auto& [path, bytes] : stats.path_bytes) {
    (*proto->mutable_path_bytes())[std::string(transfer::PathName(path))] = bytes;
  }
  proto->set_handover_steps(stats.handover_steps);
  proto->set_all_local_seconds(stats.all_local_seconds);
  proto->set_selected_entries(stats.selected_entries);
  proto->set_remote_entries(stats.remote_entries);
  proto->set_wait_steps(stats.wait_steps);
  for (const auto& [kind, count] : stats.step_kinds) {
    (*proto->mutable_step_kinds())[std::string(transfer::StepKindName(kind))] = count;
  }
}

// One call. The stream's callbacks, the engine's request and this object hold each other until the
// call has ended.
class Call final : public GenerateListener, public std::enable_shared_from_this<Call> {
 public:
  Call(DecodeEngine* engine, metrics::Metrics* metrics, trace::TraceStore* traces,
       rpc::OpenCalls* open)
      : engine_(engine), metrics_(metrics), traces_(traces), open_(open) {}

  EventStream* Open() {
    stream_ = EventStream::Create([self = shared_from_this()] { self->OnCancel(); }, open_);
    return stream_.get();
  }
  void Submit(absl::StatusOr<GenerateSpec> spec) {
    if (!spec.ok()) return Failed(spec.status());
    const trace::TracePtr trace = spec->trace;
    auto request = engine_->Submit(*std::move(spec), shared_from_this());
    if (!request.ok()) return Failed(request.status());
    traces_->Keep(trace);
    bool cancelled = false;
    {
      base::MutexLock lock(mutex_);
      if (ended_) return;
      request_ = *request;
      cancelled = cancelled_;
    }
    if (cancelled) OnCancel();
  }

  void Admitted(int64_t cached_tokens) override {
    v1::GenerateEvent event;
    event.mutable_admitted()->set_decode_cached_tokens(cached_tokens);
    stream_->Push(std::move(event));
  }
  void Token(const sampling::SampledToken& token) override {
    v1::GenerateEvent event;
    rpc::ToProto(token, event.mutable_token());
    stream_->Push(std::move(event));
  }
  void Finished(FinishReason reason, const Stats& stats) override {
    v1::GenerateEvent event;
    event.mutable_finished()->set_reason(
        reason == FinishReason::kStop ? v1::Finished::REASON_STOP : v1::Finished::REASON_LENGTH);
    StatsToProto(stats, event.mutable_finished()->mutable_stats());
    stream_->Push(std::move(event));
    End(absl::OkStatus());
  }
  void Failed(const absl::Status& status) override { End(status); }

 private:
  void OnCancel() {
    std::shared_ptr<Request> request;
    {
      base::MutexLock lock(mutex_);
      cancelled_ = true;
      request = request_;
    }
    if (request != nullptr)
      engine_->Cancel(request, base::Cancelled("the client cancelled the call"));
  }
  void End(const absl::Status& status) {
    metrics_->GetCounter("requests_total", {{"code", absl::StatusCodeToString(status.code())}})
        .Add();
    stream_->End(rpc::ToGrpc(status));
    base::MutexLock lock(mutex_);
    ended_ = true;
    request_.reset();
  }

  DecodeEngine* const engine_;
  metrics::Metrics* const metrics_;
  trace::TraceStore* const traces_;
  rpc::OpenCalls* const open_;
  std::shared_ptr<EventStream> stream_;
  base::Mutex mutex_;
  std::shared_ptr<Request> request_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

DecodeService::DecodeService(Parts parts) : parts_(std::move(parts)) {}

void DecodeService::Flush(base::Duration patience) {
  if (open_.WaitForNone(patience)) return;
  SMARTGEN_LOG(warn, "server", "some answers were not taken by their clients within {:g} s",
               base::ToSeconds(patience));
}

grpc::ServerWriteReactor<v1::GenerateEvent>* DecodeService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  const auto call = std::make_shared<Call>(parts_.engine, parts_.metrics, parts_.traces, &open_);
  EventStream* stream = call->Open();
  call->Submit(MakeSpec(*context, *request));
  return stream;
}

absl::StatusOr<GenerateSpec> DecodeService::MakeSpec(const grpc::CallbackServerContext& context,
                                                     const v1::GenerateRequest& request) const {
  if (request.model_fingerprint() != parts_.model_fingerprint) {
    return base::FailedPrecondition("model_fingerprint: ours {} ({}), theirs {}",
                                    parts_.model_fingerprint, parts_.model_name,
                                    request.model_fingerprint());
  }
  if (request.prefill_ranking_size() > kMaxRanking) {
    return base::InvalidArgument("prefill_ranking: want at most {} addresses, got {}", kMaxRanking,
                                 request.prefill_ranking_size());
  }
  GenerateSpec spec;
  ASSIGN_OR_RETURN(spec.sampling, rpc::FromProto(request.sampling()));
  ASSIGN_OR_RETURN(spec.mode, rpc::FromProto(request.mode(), parts_.default_mode));
  ASSIGN_OR_RETURN(spec.transfer, rpc::FromProto(request.transfer(), parts_.default_transfer));
  spec.prompt.assign(request.prompt_ids().begin(), request.prompt_ids().end());
  spec.generated.assign(request.generated_ids().begin(), request.generated_ids().end());
  spec.max_tokens = request.max_tokens();
  spec.prefill_ranking.assign(request.prefill_ranking().begin(), request.prefill_ranking().end());
  spec.deadline =
      base::Deadline::Earlier(rpc::FromSystemTime(context.deadline(), *parts_.clock),
                              base::Deadline::After(*parts_.clock, parts_.request_timeout));
  if (request.trace()) spec.trace = parts_.traces->Begin(request.request_id());
  if (spec.trace != nullptr) spec.trace->Enter(trace::Kind::kWaiting);
  return spec;
}

grpc::ServerUnaryReactor* DecodeService::Info(grpc::CallbackServerContext* context,
                                              const v1::InfoRequest*, v1::DaemonInfo* response) {
  *response = parts_.info();
  auto* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace smartgen::decode_server
