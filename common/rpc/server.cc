#include "common/rpc/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <mutex>

#include "common/base/mutex.h"
#include "common/rpc/token_credentials.h"

namespace smartgen::rpc {
namespace {

int Milliseconds(base::Duration duration) {
  return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
}

void SetLimits(const ServerOptions& options, grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(options.max_receive_bytes);
  builder.SetMaxSendMessageSize(options.max_send_bytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_concurrent_streams);
  // Without this a second daemon on the same port would start happily and get half the calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(options.keepalive_time));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             Milliseconds(options.keepalive_timeout));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // Our own clients probe as often as we do; they must not be taken for abusers.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
}

class ServerImpl final : public Server {
 public:
  ServerImpl(std::unique_ptr<grpc::Server> server, std::string host, int port,
             std::vector<NamedService> services)
      : server_(std::move(server)),
        host_(std::move(host)),
        port_(port),
        services_(std::move(services)) {
    SetServing(false);
  }
  ~ServerImpl() override { Shutdown(base::Duration(0)); }

  int port() const override { return port_; }
  std::string address() const override { return fmt::format("{}:{}", host_, port_); }

  void SetServing(bool serving) override {
    grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
    health->SetServingStatus(serving);  // of the services known so far, the whole included
    for (const NamedService& named : services_) health->SetServingStatus(named.name, serving);
  }

  void Shutdown(base::Duration grace) override {
    base::MutexLock lock(mutex_);
    if (down_) return;
    down_ = true;
    server_->Shutdown(std::chrono::system_clock::now() +
                      std::chrono::duration_cast<std::chrono::microseconds>(grace));
    server_->Wait();
  }

 private:
  std::unique_ptr<grpc::Server> server_;
  const std::string host_;
  const int port_;
  const std::vector<NamedService> services_;
  base::Mutex mutex_;
  bool down_ ABSL_GUARDED_BY(mutex_) = false;
};

// Process-wide switches of gRPC; they act on builders made later.
void EnablePluginsOnce(bool reflection) {
  static std::once_flag health_once;
  std::call_once(health_once, [] { grpc::EnableDefaultHealthCheckService(true); });
  static std::once_flag reflection_once;
  if (reflection) {
    std::call_once(reflection_once,
                   [] { grpc::reflection::InitProtoReflectionServerBuilderPlugin(); });
  }
}

absl::Status CheckHostPort(std::string_view listen) {
  const size_t colon = listen.rfind(':');
  if (colon != std::string_view::npos && colon > 0 && colon + 1 < listen.size() &&
      listen.find_first_not_of("0123456789", colon + 1) == std::string_view::npos) {
    return absl::OkStatus();
  }
  return base::InvalidArgument("listen: want host:port, got \"{}\"", listen);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      const std::vector<NamedService>& services) {
  const Security& security = options.security;
  RETURN_IF_ERROR(CheckHostPort(options.listen));
  RETURN_IF_ERROR(security.Check());
  RETURN_IF_ERROR(CheckExposure("listen", options.listen, security.ServerUsesTls(),
                                !security.token.empty(), security.allow_insecure));
  EnablePluginsOnce(options.reflection);
  grpc::ServerBuilder builder;
  SetLimits(options, builder);
  ASSIGN_OR_RETURN(auto credentials, MakeServerCredentials(security));
  int port = 0;
  builder.AddListeningPort(options.listen, credentials, &port);
  for (const NamedService& named : services) builder.RegisterService(named.service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return base::Unavailable(
        "cannot listen on {}: the address is taken or not this machine's{}", options.listen,
        security.ServerUsesTls() ? ", or tls.cert and tls.key do not belong together" : "");
  }
  return std::make_unique<ServerImpl>(
      std::move(server), options.listen.substr(0, options.listen.rfind(':')), port, services);
}

}  // namespace smartgen::rpc
