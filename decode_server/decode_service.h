// The Decode service: turns calls into requests and what the engine says into events.
#pragma once

#include <functional>
#include <string>

#include "common/base/clock.h"
#include "common/metrics/metrics.h"
#include "common/rpc/open_calls.h"
#include "common/trace/trace.h"
#include "decode_server/engine.h"
#include "proto/decode.grpc.pb.h"

namespace smartgen::decode_server {

class DecodeService final : public v1::Decode::CallbackService {
 public:
  struct Parts {
    DecodeEngine* engine;
    const base::Clock* clock;
    metrics::Metrics* metrics;
    std::string model_name;
    std::string model_fingerprint;
    Mode default_mode;
    transfer::RequestOptions default_transfer;
    base::Duration request_timeout;  // bounds calls that bring no deadline, or a later one
    std::function<v1::DaemonInfo()> info;
    trace::TraceStore* traces;
  };
  explicit DecodeService(Parts parts);

  // Waits until the answers that are finished are with their clients.
  void Flush(base::Duration patience);

  grpc::ServerWriteReactor<v1::GenerateEvent>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Info(grpc::CallbackServerContext* context,
                                 const v1::InfoRequest* request, v1::DaemonInfo* response) override;

 private:
  absl::StatusOr<GenerateSpec> MakeSpec(const grpc::CallbackServerContext& context,
                                        const v1::GenerateRequest& request) const;

  const Parts parts_;
  rpc::OpenCalls open_;
};

}  // namespace smartgen::decode_server
