// gRPC channels as all daemons open them: TLS, token, limits, keepalive, quick reconnection.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/rpc/security.h"
#include "common/rpc/server.h"  // kMaxMessageBytes

namespace grpc {
class Channel;
class ClientContext;
}  // namespace grpc

namespace smartgen::rpc {

struct ClientOptions {
  Security security;
  int max_receive_bytes = kMaxMessageBytes;
  int max_send_bytes = kMaxMessageBytes;
  base::Duration keepalive_time = std::chrono::seconds(10);
  base::Duration keepalive_timeout = std::chrono::seconds(5);
  // Between attempts to reach a peer that is away.
  base::Duration min_reconnect = std::chrono::milliseconds(100);
  base::Duration max_reconnect = std::chrono::seconds(2);
};

// A channel of its own connection to `target` (host:port). Connects when first used; calls on a
// peer that is away fail with UNAVAILABLE at once (no wait-for-ready). The token, if any, goes with
// every call; nothing is to be added to the contexts. InvalidArgument for a target that is not
// host:port, NotFound for a missing PEM file.
absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect(const std::string& target,
                                                       const ClientOptions& options);

// Gives channels up on the caller's thread, which must not be one of gRPC's: waits until nobody
// else holds them. All channels and servers of a process share the threads on which the callback
// API's reactions run; whoever drops the last of them ends and joins these threads, and a reaction
// that did so would join itself. So whoever makes callback calls keeps the channel, and when all
// calls have ended hands it in here. A call's last callback is too early: gRPC holds the channel a
// little longer. Channels still held after `patience` are left open until the process ends; false.
bool ReleaseChannels(std::vector<std::shared_ptr<grpc::Channel>> channels, base::Duration patience);

// Every call has a deadline: set it before the call begins. Infinite deadlines are a bug of the
// caller, but for long-lived streams that heartbeats guard.
void SetDeadline(grpc::ClientContext& context, base::Deadline deadline, const base::Clock& clock);
void SetTimeout(grpc::ClientContext& context, base::Duration timeout);

// gRPC's deadlines are wall-clock times. From a server context's deadline():
base::Deadline FromSystemTime(std::chrono::system_clock::time_point time, const base::Clock& clock);
std::chrono::system_clock::time_point ToSystemTime(base::Deadline deadline,
                                                   const base::Clock& clock);

// True once the peer answers grpc.health.v1 with SERVING; waits up to `timeout`. Unavailable says
// what came instead.
absl::Status WaitUntilServing(const std::shared_ptr<grpc::Channel>& channel,
                              base::Duration timeout);

}  // namespace smartgen::rpc
