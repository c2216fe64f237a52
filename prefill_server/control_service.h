// The Transfer service: one control stream per decode instance, and the pairing that it begins.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/channel/nccl/nccl_engine.h"
#include "common/channel/tcp/tcp_engine.h"
#include "prefill_server/identity.h"
#include "prefill_server/peer_link.h"
#include "proto/transfer.grpc.pb.h"

namespace smartgen::prefill_server {

class ControlService final : public v1::Transfer::CallbackService {
 public:
  using WrapChannel =
      std::function<std::shared_ptr<channel::Channel>(std::shared_ptr<channel::Channel>)>;
  struct Options {
    base::Duration heartbeat = std::chrono::seconds(1);
    base::Duration lease = std::chrono::seconds(30);  // told to the peer
    base::Duration pairing_timeout = std::chrono::seconds(5);
    int max_peers = 64;
    bool checksum = true;      // refuse peers that want none
    WrapChannel wrap_channel;  // tests put faults between
  };
  struct Parts {
    PrefillEngine* engine;
    channel::TcpEngine* tcp;
    channel::NcclEngine* nccl;  // null: not with us
    const base::Clock* clock;
    metrics::Metrics* metrics;
    Identity identity;
    uint64_t incarnation;
    std::function<bool()> draining;
  };
  ControlService(Options options, Parts parts);
  ~ControlService() override;

  grpc::ServerBidiReactor<v1::ControlMessage, v1::ControlMessage>* Connect(
      grpc::CallbackServerContext* context) override;

  // The link that is up for this incarnation. FailedPrecondition if there is none.
  absl::StatusOr<std::shared_ptr<PeerLink>> FindUp(uint64_t decode_incarnation) const;
  std::vector<v1::PeerInfo> Peers() const;
  // Takes all links down and takes no more. Idempotent.
  void Stop(const absl::Status& reason);

 private:
  void OnFirstMessage(const std::shared_ptr<PeerLink>& link, const std::string& host,
                      const v1::ControlMessage& message);
  absl::Status BeginPairing(const std::shared_ptr<PeerLink>& link, const std::string& host,
                            const v1::Hello& hello);
  // Takes down links that this Hello makes obsolete.
  void ReplaceOld(const std::shared_ptr<PeerLink>& link, const v1::Hello& hello,
                  const std::string& instance);
  // For the peer's sockets that present the key; with a ticket, for its communicator as well.
  void ExpectChannel(const std::shared_ptr<PeerLink>& link, const base::ChannelKey& key,
                     const channel::NcclTicket* ticket);
  void TickLoop();
  std::vector<std::shared_ptr<PeerLink>> Links() const;

  const Options options_;
  const Parts parts_;
  mutable base::Mutex mutex_;
  base::CondVar wake_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<const PeerLink*, std::shared_ptr<PeerLink>> links_ ABSL_GUARDED_BY(mutex_);
  std::thread ticker_;
};

}  // namespace smartgen::prefill_server
