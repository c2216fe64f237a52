#include "tools/peer_probe.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <memory>

#include "common/base/address.h"
#include "common/base/ids.h"
#include "common/channel/tcp/tcp_engine.h"
#include "common/rpc/client.h"
#include "common/rpc/status.h"
#include "common/transfer/probe.h"
#include "proto/prefill.grpc.pb.h"

namespace smartgen::tools {
namespace {

absl::StatusOr<v1::ProbeReply> Ask(const std::string& peer, const rpc::Security& security,
                                   base::Duration timeout) {
  rpc::ClientOptions client;
  client.security = security;
  ASSIGN_OR_RETURN(const auto channel, rpc::Connect(peer, client));
  const auto stub = v1::Prefill::NewStub(channel);
  grpc::ClientContext context;
  rpc::SetTimeout(context, timeout);
  v1::ProbeReply reply;
  RETURN_IF_ERROR(rpc::FromGrpc(stub->Probe(&context, v1::ProbeRequest(), &reply)));
  if (reply.channel_key().size() != base::ChannelKey().size() || reply.data_port() == 0 ||
      reply.data_port() > 65535 || reply.max_bytes() == 0) {
    return base::InvalidArgument("want a port, a key of {} bytes and a limit; got {}, {} and {}",
                                 base::ChannelKey().size(), reply.data_port(),
                                 reply.channel_key().size(), reply.max_bytes());
  }
  return reply;
}

absl::StatusOr<transfer::ProbeResult> Measure(const std::string& peer,
                                              const rpc::Security& security,
                                              base::Duration timeout) {
  const base::Clock& clock = *base::Clock::Real();
  const base::Deadline deadline = base::Deadline::After(clock, timeout);
  ASSIGN_OR_RETURN(const v1::ProbeReply reply, Ask(peer, security, timeout));
  base::ChannelKey key;
  std::copy_n(reinterpret_cast<const std::byte*>(reply.channel_key().data()), key.size(),
              key.begin());
  transfer::ProbeClient::Options options;
  // What a prefilld promises is not believed beyond what a measurement needs.
  options.max_bytes = std::min<uint64_t>(reply.max_bytes(), 1ull << 30);
  const auto client = std::make_shared<transfer::ProbeClient>(options);
  ASSIGN_OR_RETURN(const auto engine, channel::TcpEngine::Create({}, &clock));
  ASSIGN_OR_RETURN(const auto channel,
                   engine->Connect(std::string(base::HostOf(peer)),
                                   static_cast<int>(reply.data_port()), key, client, deadline));
  auto result = client->Run(*channel, deadline);
  channel->Close(base::Cancelled("measured"));
  return result;
}

}  // namespace

absl::StatusOr<transfer::LinkPoint> ProbePeer(const std::string& peer,
                                              const rpc::Security& security,
                                              base::Duration timeout) {
  const auto result = Measure(peer, security, timeout);
  if (!result.ok()) {
    return base::Annotate(result.status(), fmt::format("measuring the way from {}", peer));
  }
  return transfer::LinkPoint{.peer = peer,
                             .bytes_per_second = result->bytes_per_second,
                             .round_trip_seconds = result->round_trip_seconds};
}

}  // namespace smartgen::tools
