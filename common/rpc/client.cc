#include "common/rpc/client.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_interceptor.h>

#include <thread>
#include <utility>

#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/rpc/health_check.h"

namespace smartgen::rpc {
namespace {

// Call credentials would refuse plain text; this serves loopback and TLS alike.
class TokenInterceptor final : public grpc::experimental::Interceptor {
 public:
  explicit TokenInterceptor(const std::string& header) : header_(header) {}
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->insert({"authorization", header_});
    }
    methods->Proceed();
  }

 private:
  const std::string header_;
};

class TokenInterceptorFactory final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit TokenInterceptorFactory(const std::string& token) : header_("Bearer " + token) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new TokenInterceptor(header_);  // gRPC takes ownership
  }

 private:
  const std::string header_;
};

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Credentials(const Security& security) {
  if (!security.ClientUsesTls()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  ASSIGN_OR_RETURN(options.pem_root_certs, ReadPem("tls.ca", security.tls_ca));
  if (!security.tls_cert.empty()) {
    ASSIGN_OR_RETURN(options.pem_cert_chain, ReadPem("tls.cert", security.tls_cert));
    ASSIGN_OR_RETURN(options.pem_private_key, ReadPem("tls.key", security.tls_key));
  }
  return grpc::SslCredentials(options);
}

int Milliseconds(base::Duration duration) {
  return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
}

grpc::ChannelArguments Arguments(const ClientOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(options.max_receive_bytes);
  arguments.SetMaxSendMessageSize(options.max_send_bytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(options.keepalive_time));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(options.keepalive_timeout));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, Milliseconds(options.min_reconnect));
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, Milliseconds(options.min_reconnect));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, Milliseconds(options.max_reconnect));
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // The peers are named by address; a proxy from the environment is for the web.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (!options.security.tls_server_name.empty()) {
    arguments.SetSslTargetNameOverride(options.security.tls_server_name);
  }
  return arguments;
}

// Never destroyed: at the process's end there is nobody left to join gRPC's threads.
void KeepForever(std::shared_ptr<grpc::Channel> channel) {
  static auto* const mutex = new base::Mutex;
  static auto* const kept = new std::vector<std::shared_ptr<grpc::Channel>>;
  base::MutexLock lock(*mutex);
  kept->push_back(std::move(channel));
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect(const std::string& target,
                                                       const ClientOptions& options) {
  const size_t colon = target.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == target.size() ||
      target.find_first_not_of("0123456789", colon + 1) != std::string::npos) {
    return base::InvalidArgument("peer address: want host:port, got \"{}\"", target);
  }
  RETURN_IF_ERROR(options.security.Check());
  ASSIGN_OR_RETURN(auto credentials, Credentials(options.security));
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
  if (!options.security.token.empty()) {
    interceptors.push_back(std::make_unique<TokenInterceptorFactory>(options.security.token));
  }
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      target, credentials, Arguments(options), std::move(interceptors));
}

bool ReleaseChannels(std::vector<std::shared_ptr<grpc::Channel>> channels,
                     base::Duration patience) {
  const base::Clock& clock = *base::Clock::Real();
  const base::Deadline deadline = base::Deadline::After(clock, patience);
  bool all = true;
  for (auto& channel : channels) {
    // Nothing tells when gRPC lets go.
    while (channel.use_count() > 1 && !deadline.Expired(clock)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (channel.use_count() == 1) {
      channel.reset();
      continue;
    }
    all = false;
    SMARTGEN_LOG(error, "rpc",
                 "a channel is still in use {:g} s after its calls were ended: it stays open",
                 base::ToSeconds(patience));
    KeepForever(std::move(channel));
  }
  return all;
}

std::chrono::system_clock::time_point ToSystemTime(base::Deadline deadline,
                                                   const base::Clock& clock) {
  if (deadline.IsInfinite()) return std::chrono::system_clock::time_point::max();
  // A simulated clock's remaining time is taken as real time.
  return std::chrono::system_clock::now() + deadline.Remaining(clock);
}

base::Deadline FromSystemTime(std::chrono::system_clock::time_point time,
                              const base::Clock& clock) {
  const auto now = std::chrono::system_clock::now();
  // gRPC's "never" is the end of time; beyond this a sum with the clock would overflow.
  constexpr auto kForever = std::chrono::hours(24 * 365 * 10);
  if (time > now + kForever) return base::Deadline::Infinite();
  return base::Deadline::After(clock, time - now);
}

void SetDeadline(grpc::ClientContext& context, base::Deadline deadline, const base::Clock& clock) {
  context.set_deadline(ToSystemTime(deadline, clock));
}

void SetTimeout(grpc::ClientContext& context, base::Duration timeout) {
  context.set_deadline(std::chrono::system_clock::now() + timeout);
}

absl::Status WaitUntilServing(const std::shared_ptr<grpc::Channel>& channel,
                              base::Duration timeout) {
  const base::Deadline deadline = base::Deadline::After(*base::Clock::Real(), timeout);
  absl::Status last = base::Unavailable("the peer was not asked");
  while (true) {
    // Asked again when the connection's state changes, and each 50 ms while it says NOT_SERVING.
    last = CheckHealth(channel, "",
                       std::min<base::Duration>(deadline.Remaining(*base::Clock::Real()),
                                                std::chrono::seconds(1)));
    if (last.ok() || deadline.Expired(*base::Clock::Real())) return last;
    channel->WaitForStateChange(GRPC_CHANNEL_READY,
                                std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  }
}

}  // namespace smartgen::rpc
