#include "tests/gateway/fake_daemon.h"

#include <thread>

#include "common/base/clock.h"
#include "tests/gateway/tiny_model.h"

namespace smartgen::gateway::testing {

void FakeStream::Admit() {
  v1::GenerateEvent event;
  event.mutable_admitted();
  writer_->Write(event);
}

void FakeStream::Token(int32_t id, float logprob) {
  v1::GenerateEvent event;
  event.mutable_token()->set_token_id(id);
  event.mutable_token()->set_logprob(logprob);
  auto* top = event.mutable_token()->add_top_logprobs();
  top->set_token_id(id);
  top->set_logprob(logprob);
  writer_->Write(event);
}

void FakeStream::Tokens(const std::vector<int32_t>& ids) {
  for (const int32_t id : ids) Token(id);
}

void FakeStream::Finish(v1::Finished::Reason reason, int64_t generated) {
  v1::GenerateEvent event;
  event.mutable_finished()->set_reason(reason);
  auto* stats = event.mutable_finished()->mutable_stats();
  stats->set_mode(v1::MODE_FULL);
  stats->set_prefill_address("127.0.0.1:7100");
  stats->set_prompt_tokens(7);
  stats->set_cached_tokens(3);
  stats->set_generated_tokens(generated);
  stats->set_queue_seconds(0.25);
  stats->set_prefill_seconds(0.5);
  stats->set_transfer_bytes(4096);
  writer_->Write(event);
}

bool FakeStream::AwaitCancel() {
  return Eventually([this] { return context_->IsCancelled(); });
}

FakeDaemon::FakeDaemon(int port) {
  script_ = Says("ok");
  info_.set_daemon("decoded");
  info_.set_incarnation(1);
  info_.set_model_name("tiny");
  info_.set_model_fingerprint("00000000cafef00d");
  info_.set_context_length(512);
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(),
                           &port_);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
}

FakeDaemon::~FakeDaemon() { Kill(); }

void FakeDaemon::SetScript(Script script) {
  base::MutexLock lock(mutex_);
  script_ = std::move(script);
}

void FakeDaemon::SetInfo(const std::function<void(v1::DaemonInfo&)>& change) {
  base::MutexLock lock(mutex_);
  change(info_);
}

void FakeDaemon::Kill() {
  if (server_) server_->Shutdown(std::chrono::system_clock::now());
  server_.reset();
}

std::vector<v1::GenerateRequest> FakeDaemon::requests() const {
  base::MutexLock lock(mutex_);
  return requests_;
}
int64_t FakeDaemon::cancelled() const {
  base::MutexLock lock(mutex_);
  return cancelled_;
}
int64_t FakeDaemon::running() const {
  base::MutexLock lock(mutex_);
  return running_;
}
int64_t FakeDaemon::probes() const {
  base::MutexLock lock(mutex_);
  return probes_;
}

grpc::Status FakeDaemon::Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                                  grpc::ServerWriter<v1::GenerateEvent>* writer) {
  FakeStream stream(context, writer);
  Script script;
  {
    base::MutexLock lock(mutex_);
    script = script_;
    if (request->request_id() == "readiness") {
      ++probes_;
    } else {
      requests_.push_back(*request);
      ++running_;
    }
  }
  const grpc::Status status = script(*request, stream);
  base::MutexLock lock(mutex_);
  if (request->request_id() != "readiness") --running_;
  if (request->request_id() != "readiness" && context->IsCancelled()) ++cancelled_;
  return status;
}

grpc::Status FakeDaemon::Info(grpc::ServerContext*, const v1::InfoRequest*, v1::DaemonInfo* info) {
  base::MutexLock lock(mutex_);
  *info = info_;
  return grpc::Status::OK;
}

FakeDaemon::Script Says(const std::string& text, v1::Finished::Reason reason) {
  return [text, reason](const v1::GenerateRequest& request, FakeStream& stream) {
    stream.Admit();
    const std::vector<int32_t> ids = Bytes(text);
    const auto from = static_cast<size_t>(request.generated_ids_size());
    for (size_t i = from; i < ids.size(); ++i) stream.Token(ids[i]);
    stream.Finish(reason, static_cast<int64_t>(ids.size()));
    return grpc::Status::OK;
  };
}

bool Eventually(const std::function<bool()>& condition) {
  const base::Clock& clock = *base::Clock::Real();
  const base::Deadline deadline = base::Deadline::After(clock, std::chrono::seconds(10));
  while (!condition()) {
    if (deadline.Expired(clock)) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace smartgen::gateway::testing
