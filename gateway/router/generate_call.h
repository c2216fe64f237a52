// Internal to the router: a Generate call through gRPC's callback API, with bounded read-ahead.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_callback.h>

#include <memory>
#include <string>

#include "common/base/mutex.h"
#include "gateway/router/instance.h"

namespace smartgen::gateway {

// Keeps itself alive until gRPC is done with it. Thread-safe.
class GenerateCall final : public BackendCall,
                           public grpc::ClientReadReactor<v1::GenerateEvent>,
                           public std::enable_shared_from_this<GenerateCall> {
 public:
  // `prefill` is the instance ranked first, which counts this call as work until token 1; may be
  // null.
  GenerateCall(std::shared_ptr<Instance> decode, std::shared_ptr<Instance> prefill,
               v1::GenerateRequest request, Events events, int read_ahead, CallCount* calls);
  void Start(base::Deadline deadline, const base::Clock& clock);
  // Ends the call with UNAVAILABLE: the instance is dead though its connection is not.
  void Break(std::string_view reason);

  const std::string& address() const override { return decode_->address(); }
  void Cancel() override;
  void Consumed() override;
  void PrefillEnded() override;

  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  const std::shared_ptr<Instance> decode_;
  const std::shared_ptr<Instance> prefill_;
  const v1::GenerateRequest request_;
  const int read_ahead_;
  CallCount* const calls_;
  Events events_;
  grpc::ClientContext context_;
  v1::GenerateEvent incoming_;
  std::shared_ptr<GenerateCall> self_;
  std::atomic<bool> prefill_counted_{false};

  base::Mutex mutex_;
  int outstanding_ ABSL_GUARDED_BY(mutex_) = 0;
  // Reading has stopped; who clears this owns the next StartRead.
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;
  std::string break_reason_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace smartgen::gateway
