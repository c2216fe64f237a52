// prefilld and decoded in one process, over real gRPC and TCP on ports that the system chooses,
// with an executor that notices every wrong byte of KV.
#pragma once

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/channel/fault_channel.h"
#include "decode_server/server.h"
#include "prefill_server/server.h"
#include "proto/decode.grpc.pb.h"
#include "proto/prefill.grpc.pb.h"
#include "tests/fakes/fake_executor.h"
#include "tests/fakes/fake_nccl.h"

namespace smartgen::integration {

using decode_server::DecodeServer;
using fakes::FakeExecutor;
using prefill_server::PrefillServer;

inline constexpr const char* kFingerprint = "fa4efa4efa4efa4e";

// Polls, for conditions that other threads bring about.
inline bool WaitUntil(const std::function<bool()>& condition,
                      std::chrono::milliseconds timeout = std::chrono::seconds(10)) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// A door that executors pass, layer by layer: tests close it to hold a request in a state.
class Gate {
 public:
  std::function<void(int)> Hook() {
    return [this](int layer) { Pass(layer); };
  }
  void Close() { Set(false); }
  void Open() { Set(true); }
  // Lets `count` pass though it is closed.
  void Allow(int64_t count) {
    {
      const std::lock_guard lock(mutex_);
      tickets_ += count;
    }
    changed_.notify_all();
  }
  // Somebody stands before the closed door, and no ticket is left.
  bool Blocked() const {
    const std::lock_guard lock(mutex_);
    return !open_ && waiting_ > 0 && tickets_ == 0;
  }
  int64_t passes() const {
    const std::lock_guard lock(mutex_);
    return passes_;
  }

 private:
  void Pass(int) {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.wait_for(lock, std::chrono::seconds(60), [this] { return open_ || tickets_ > 0; });
    if (!open_ && tickets_ > 0) --tickets_;
    --waiting_;
    ++passes_;
  }
  void Set(bool open) {
    {
      const std::lock_guard lock(mutex_);
      open_ = open;
      tickets_ = 0;
    }
    changed_.notify_all();
  }
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  int waiting_ = 0;
  int64_t tickets_ = 0;
  int64_t passes_ = 0;
};

struct Result {
  std::vector<int32_t> tokens;
  grpc::Status status;
  bool finished = false;
  v1::Finished::Reason reason = v1::Finished::REASON_UNSPECIFIED;
  v1::RequestStats stats;
};

inline std::vector<int32_t> Prompt(int length, uint64_t salt = 1) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < length; ++i) {
    const uint64_t parts[] = {salt, static_cast<uint64_t>(i)};
    prompt.push_back(static_cast<int32_t>(base::Hash64(std::as_bytes(std::span(parts))) % 256));
  }
  return prompt;
}

inline v1::GenerateRequest MakeRequest(const std::vector<int32_t>& prompt, int64_t max_tokens,
                                       v1::Mode mode = v1::MODE_AUTO, float temperature = 0) {
  v1::GenerateRequest request;
  request.set_request_id("test");
  request.set_model_fingerprint(kFingerprint);
  request.mutable_prompt_ids()->Add(prompt.begin(), prompt.end());
  request.set_max_tokens(max_tokens);
  request.set_mode(mode);
  v1::SamplingParams& sampling = *request.mutable_sampling();
  sampling.set_temperature(temperature);
  sampling.set_top_p(1);
  sampling.set_repetition_penalty(1);
  sampling.set_seed(42);
  sampling.set_logprobs(-1);
  return request;
}

// What one process with one executor and no servers makes of a request: the reference.
std::vector<int32_t> Expected(const v1::GenerateRequest& request,
                              const FakeExecutor::Options& options = {});

// One call that can be cancelled, read on a thread of its own.
class Call {
 public:
  Call(v1::Decode::Stub* stub, v1::GenerateRequest request,
       std::chrono::milliseconds timeout = std::chrono::seconds(60));
  ~Call();
  void Cancel() { context_.TryCancel(); }
  size_t tokens() const;
  const Result& Wait();

 private:
  grpc::ClientContext context_;
  const v1::GenerateRequest request_;
  mutable std::mutex mutex_;
  Result result_;
  std::thread thread_;
};

// A GPU with NCCL, as far as a machine without has them.
struct NcclDouble {
  NcclDouble(fakes::FakeNcclNetwork* network, fakes::FakeDevice::Options options)
      : device(options), nccl(network, &device) {}
  fakes::FakeDevice device;
  fakes::FakeNccl nccl;
};

// KV goes over TCP; over NCCL on strict doubles after UseNccl, or everywhere if PAIR_CHANNEL=nccl
// stands in the environment.
class PairTest : public ::testing::Test {
 protected:
  PairTest();
  void UseNccl(const std::string& channel = "nccl", fakes::FakeDevice::Options device = {});
  ~PairTest() override;

  void StartPrefill(int port = 0);
  void StopPrefill() { prefill_.reset(); }
  // `addresses` empty: the prefill instance that runs.
  void StartDecode(std::vector<std::string> addresses = {});
  void StartBoth() {
    StartPrefill();
    StartDecode();
    WaitPaired();
  }
  void WaitPaired();
  Result Generate(const v1::GenerateRequest& request) { return Call(stub_.get(), request).Wait(); }
  std::unique_ptr<Call> Begin(const v1::GenerateRequest& request) {
    return std::make_unique<Call>(stub_.get(), request);
  }
  // Begins `requests` in their order, all before the first has ended, and expects of each the
  // tokens of a single process. Returns what became of each.
  std::vector<Result> ExpectAllRight(const std::vector<v1::GenerateRequest>& requests);
  // All pages but the prefix caches' are free on both sides, nothing runs, no lease is held.
  bool AtBaseline() const;
  void ExpectBaseline(std::chrono::milliseconds timeout = std::chrono::seconds(5));
  double DecodeCounter(std::string_view name, metrics::Labels labels = {}) {
    return decode_->metrics().GetCounter(name, labels).value();
  }

  fakes::FakeNcclNetwork nccl_network_;
  std::unique_ptr<NcclDouble> prefill_nccl_;
  std::unique_ptr<NcclDouble> decode_nccl_;
  FakeExecutor::Options prefill_executor_;
  FakeExecutor::Options decode_executor_;
  prefill_server::Options prefill_options_;
  decode_server::Options decode_options_;
  prefill_server::ControlService::WrapChannel wrap_prefill_;
  // Of the servers that run; theirs.
  FakeExecutor* prefill_fake_ = nullptr;
  FakeExecutor* decode_fake_ = nullptr;
  std::atomic<int> failed_ = 0;  // servers whose executor has failed
  Gate prefill_gate_;
  Gate decode_gate_;
  std::unique_ptr<PrefillServer> prefill_;
  std::unique_ptr<DecodeServer> decode_;
  std::unique_ptr<v1::Decode::Stub> stub_;
};

}  // namespace smartgen::integration
