// The Prefill service: turns calls into jobs and what the engine says into events.
#pragma once

#include <functional>

#include "common/base/clock.h"
#include "common/metrics/metrics.h"
#include "common/rpc/open_calls.h"
#include "common/trace/trace.h"
#include "prefill_server/control_service.h"
#include "prefill_server/engine.h"
#include "prefill_server/identity.h"
#include "prefill_server/probe_host.h"
#include "proto/prefill.grpc.pb.h"

namespace smartgen::prefill_server {

class PrefillService final : public v1::Prefill::CallbackService {
 public:
  struct Parts {
    PrefillEngine* engine;
    ControlService* control;
    const base::Clock* clock;
    metrics::Metrics* metrics;
    Identity identity;
    uint64_t incarnation;
    base::Duration request_timeout;  // bounds calls that bring no deadline, or a later one
    std::function<v1::DaemonInfo()> info;
    ProbeHost* probe;
    trace::TraceStore* traces;
  };
  explicit PrefillService(Parts parts);

  // Waits until the answers that are finished are with their clients.
  void Flush(base::Duration patience);

  grpc::ServerWriteReactor<v1::PrefillEvent>* Prefill(grpc::CallbackServerContext* context,
                                                      const v1::PrefillRequest* request) override;
  grpc::ServerUnaryReactor* Info(grpc::CallbackServerContext* context,
                                 const v1::InfoRequest* request, v1::DaemonInfo* response) override;
  grpc::ServerUnaryReactor* Probe(grpc::CallbackServerContext* context,
                                  const v1::ProbeRequest* request,
                                  v1::ProbeReply* response) override;

 private:
  absl::StatusOr<JobSpec> MakeSpec(const grpc::CallbackServerContext& context,
                                   const v1::PrefillRequest& request) const;

  const Parts parts_;
  rpc::OpenCalls open_;
};

}  // namespace smartgen::prefill_server
