// A decode (and prefill) instance that does what a test's script says, over real gRPC on loopback.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "proto/decode.grpc.pb.h"
#include "proto/prefill.grpc.pb.h"

namespace smartgen::gateway::testing {

// What a script does with one Generate call.
class FakeStream {
 public:
  FakeStream(grpc::ServerContext* context, grpc::ServerWriter<v1::GenerateEvent>* writer)
      : context_(context), writer_(writer) {}
  void Admit();
  void Token(int32_t id, float logprob = -0.5f);
  void Tokens(const std::vector<int32_t>& ids);
  void Finish(v1::Finished::Reason reason, int64_t generated = 0);
  // False: not cancelled within 10 s.
  bool AwaitCancel();
  grpc::ServerContext& context() { return *context_; }

 private:
  grpc::ServerContext* const context_;
  grpc::ServerWriter<v1::GenerateEvent>* const writer_;
};

class FakeDaemon final : public v1::Decode::Service {
 public:
  using Script = std::function<grpc::Status(const v1::GenerateRequest&, FakeStream&)>;

  // port 0: any. The default script answers "ok" and ends.
  explicit FakeDaemon(int port = 0);
  ~FakeDaemon() override;
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  int port() const { return port_; }
  void SetScript(Script script);
  void SetInfo(const std::function<void(v1::DaemonInfo&)>& change);
  // All calls end with an error, the port is closed.
  void Kill();

  std::vector<v1::GenerateRequest> requests() const;  // readiness generations not included
  int64_t cancelled() const;
  int64_t running() const;
  int64_t probes() const;

  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateEvent>* writer) override;
  grpc::Status Info(grpc::ServerContext* context, const v1::InfoRequest* request,
                    v1::DaemonInfo* info) override;

 private:
  mutable base::Mutex mutex_;
  Script script_ ABSL_GUARDED_BY(mutex_);
  v1::DaemonInfo info_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::GenerateRequest> requests_ ABSL_GUARDED_BY(mutex_);
  int64_t cancelled_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t probes_ ABSL_GUARDED_BY(mutex_) = 0;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

FakeDaemon::Script Says(const std::string& text,
                        v1::Finished::Reason reason = v1::Finished::REASON_STOP);

// Looks again and again until `condition` holds; false after 10 s.
bool Eventually(const std::function<bool()>& condition);

}  // namespace smartgen::gateway::testing
