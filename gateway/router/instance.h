// Internal to the router: one decode or prefill instance, and the calls that run there.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "gateway/router/router.h"
#include "proto/decode.grpc.pb.h"
#include "proto/prefill.grpc.pb.h"

namespace smartgen::gateway {

class GenerateCall;

// Counts the calls of a router that gRPC is not yet done with.
class CallCount {
 public:
  void Add();
  void Remove();
  // False: some were still there when the time was over.
  bool WaitForNone(base::Duration patience);

 private:
  base::Mutex mutex_;
  base::CondVar none_;
  int64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Thread-safe.
class Instance : public std::enable_shared_from_this<Instance> {
 public:
  Instance(std::string address, bool prefill, std::shared_ptr<grpc::Channel> channel,
           const Router::Options* options, metrics::Gauge* up_metric, CallCount* calls);

  const std::string& address() const { return address_; }
  v1::Decode::Stub* decode_stub() { return decode_stub_.get(); }

  // Asks for Info unless a question is already out. The answer comes on a gRPC thread.
  void Poll(const base::Clock& clock);
  bool PollDue(base::TimePoint now) const;
  // It has been asked at least once and the answer (or its absence) is known.
  bool Known() const;
  void CancelPoll();
  void MarkDown(std::string_view detail);

  InstanceState State() const;
  bool up() const;
  int64_t context_length() const;
  // What orders instances: our own unfinished work here, or what the instance says (it counts other
  // gateways' too, but is up to a second old).
  int64_t Load() const;

  void AddWork() { ++own_work_; }
  void RemoveWork() { --own_work_; }
  void Register(const std::shared_ptr<GenerateCall>& call);
  std::vector<std::shared_ptr<GenerateCall>> LiveCalls();

 private:
  struct InfoCall;
  void OnInfo(const std::shared_ptr<InfoCall>& call, const grpc::Status& status);
  std::string WhyUnusable(const v1::DaemonInfo& info) const;
  void SetUp(bool up, std::string_view detail) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string address_;
  const bool prefill_;
  const Router::Options* const options_;
  metrics::Gauge* const up_metric_;
  CallCount* const calls_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Decode::Stub> decode_stub_;
  const std::unique_ptr<v1::Prefill::Stub> prefill_stub_;
  std::atomic<int64_t> own_work_{0};

  mutable base::Mutex mutex_;
  bool up_ ABSL_GUARDED_BY(mutex_) = false;
  bool known_ ABSL_GUARDED_BY(mutex_) = false;
  std::string detail_ ABSL_GUARDED_BY(mutex_) = "not asked yet";
  int misses_ ABSL_GUARDED_BY(mutex_) = 0;
  base::TimePoint next_poll_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<InfoCall> poll_ ABSL_GUARDED_BY(mutex_);
  v1::DaemonInfo info_ ABSL_GUARDED_BY(mutex_);
  std::list<std::weak_ptr<GenerateCall>> live_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace smartgen::gateway
