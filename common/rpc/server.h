// A gRPC server as all daemons run it: TLS and token, health, reflection, limits, keepalive.
//
//   ASSIGN_OR_RETURN(auto server, rpc::Server::Start(options, {{"smartgen.v1.Prefill",
//   &prefill}})); server->SetServing(true);
//
// Thread-safe after Start.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/rpc/security.h"

namespace grpc {
class Service;
}

namespace smartgen::rpc {

// One message in either direction. A prompt of 16 Mi tokens (model::kMaxContext) would take 80 MB;
// a message beyond this is answered with RESOURCE_EXHAUSTED.
inline constexpr int kMaxMessageBytes = 96 << 20;

struct ServerOptions {
  std::string listen = "127.0.0.1:0";  // host:port; port 0: a free one
  Security security;
  int max_receive_bytes = kMaxMessageBytes;
  int max_send_bytes = kMaxMessageBytes;
  // Calls in flight on one connection; more wait at the client.
  int max_concurrent_streams = 4096;
  // A connection on which nothing came for this long is probed, and dropped without an answer in
  // keepalive_timeout.
  base::Duration keepalive_time = std::chrono::seconds(10);
  base::Duration keepalive_timeout = std::chrono::seconds(5);
  bool reflection = true;
};

struct NamedService {
  std::string name;  // "smartgen.v1.Prefill", for health checks of this service alone
  grpc::Service* service = nullptr;
};

class Server {
 public:
  // Listens and answers calls at once; health says NOT_SERVING until SetServing. Services must
  // outlive the server. FailedPrecondition: see CheckExposure. Unavailable: the address is taken.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       const std::vector<NamedService>& services);
  virtual ~Server() = default;  // as Shutdown without grace

  virtual int port() const = 0;             // the one bound
  virtual std::string address() const = 0;  // host:port with that port
  // What grpc.health.v1 answers, for the server as a whole ("") and each service.
  virtual void SetServing(bool serving) = 0;
  // No new calls; those that run may finish within `grace`, then they are cancelled. Idempotent;
  // returns when all handlers have finished.
  virtual void Shutdown(base::Duration grace) = 0;
};

}  // namespace smartgen::rpc
