// Generations over a decode instance's gRPC service, with the time of each token.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/rpc/client.h"

namespace grpc {
class Channel;
class ClientContext;
}  // namespace grpc
namespace google::protobuf {
class Message;
}
namespace smartgen::v1 {
class DaemonInfo;
class GenerateRequest;
}  // namespace smartgen::v1

namespace smartgen::tools::bench {

// Option name -> value as text: "speculative_ratio" -> "0.1".
using RequestOptions = std::map<std::string, std::string>;

struct GenerationSpec {
  std::vector<int32_t> prompt;
  int64_t max_tokens = 1;
  std::string mode;  // "full"
  RequestOptions options;
  std::vector<int32_t> forced;  // the first tokens of the answer, whatever the model makes of them
  bool logprobs = false;        // asked for
};

struct Generation {
  absl::Status status;
  std::vector<int32_t> tokens;
  std::vector<double> token_seconds;  // when each token came, since the call began
  // A token each, if asked for: its log-probability, and which one was the most likely.
  std::vector<double> logprobs;
  std::vector<int32_t> likeliest;
  // The decode side's RequestStats, whatever it has: numbers by field name, and texts (enum values
  // by name). Nested fields are "outer.inner", map entries "field.key".
  std::map<std::string, double> numbers;
  std::map<std::string, std::string> texts;
};

// Modes that this version's protocol knows, in lower case, "auto" last.
std::vector<std::string> KnownModes();
// Options that a request can carry; empty: this version's protocol has none.
std::vector<std::string> KnownRequestOptions();
// Greedy, end-of-text ignored. InvalidArgument: an unknown mode or option (the known ones are
// named), or a value that does not fit.
absl::StatusOr<v1::GenerateRequest> MakeRequest(const GenerationSpec& spec,
                                                const std::string& model_fingerprint);
// Reads fields of any message into `numbers` and `texts` as described above.
void Flatten(const google::protobuf::Message& message, const std::string& prefix,
             Generation& generation);

// Thread-safe.
class DecodeClient {
 public:
  // Waits until the instance serves.
  static absl::StatusOr<std::unique_ptr<DecodeClient>> Connect(const std::string& address,
                                                               const rpc::ClientOptions& options,
                                                               base::Duration timeout);
  ~DecodeClient();

  absl::StatusOr<v1::DaemonInfo> Info() const;
  // All at once, each in its own thread; the clock starts before the first. Failures are in each
  // generation's status.
  std::vector<Generation> Generate(const std::vector<v1::GenerateRequest>& requests,
                                   base::Duration timeout);
  // Breaks off what runs; what comes after fails at once.
  void CancelAll();
  bool cancelled() const { return cancelled_; }

 private:
  explicit DecodeClient(std::shared_ptr<grpc::Channel> channel) : channel_(std::move(channel)) {}
  void GenerateOne(const v1::GenerateRequest& request, base::Duration timeout,
                   base::TimePoint start, Generation& generation);

  const std::shared_ptr<grpc::Channel> channel_;
  std::atomic<bool> cancelled_{false};
  base::Mutex mutex_;
  std::vector<grpc::ClientContext*> running_ ABSL_GUARDED_BY(mutex_);
};

// The state of a prefill instance (its Info call).
absl::StatusOr<v1::DaemonInfo> PrefillInfo(const std::shared_ptr<grpc::Channel>& channel);

}  // namespace smartgen::tools::bench
