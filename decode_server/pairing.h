// Prefill instances as decoded is paired with them: one thread for each configured address keeps a
// pairing up.
//
//   kDown  --control stream open, Hello sent-->  kHello  --HelloReply-->  kDialling  --channel
//   stands, Paired-->  kUp
//     ^                                            |                         | |
//     +--- refused, closed, missed heartbeats, timeout (then back-off, and again, whatever
//     incarnation answers) --+
//
// A PairingSession is one stay in kUp: it has one peer incarnation, one channel, one receiver. Its
// end fails its attempts at once; a later session shares nothing with it, so nothing of an old
// incarnation is ever believed.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/channel/nccl/nccl_engine.h"
#include "common/channel/tcp/tcp_engine.h"
#include "common/kv/layout.h"
#include "common/metrics/metrics.h"
#include "common/rpc/client.h"
#include "common/rpc/reactors.h"
#include "common/transfer/transfer.h"
#include "decode_server/remote_prefill.h"
#include "proto/prefill.grpc.pb.h"
#include "proto/transfer.grpc.pb.h"

namespace smartgen::decode_server {

class RemoteAttempt;

using WrapChannel =
    std::function<std::shared_ptr<channel::Channel>(std::shared_ptr<channel::Channel>)>;

// What every pairing of a process has in common.
struct PairingContext {
  struct Options {
    base::Duration heartbeat = std::chrono::seconds(1);
    base::Duration pairing_timeout = std::chrono::seconds(5);  // for each step of the handshake
    base::Duration min_backoff = std::chrono::milliseconds(100);
    base::Duration max_backoff = std::chrono::seconds(2);
    bool checksum = true;
    rpc::ClientOptions client;
    WrapChannel wrap_channel;                       // tests put faults between
    std::vector<std::string> transports = {"tcp"};  // in order of preference
  };
  Options options;
  uint64_t incarnation = 0;
  std::string instance;  // our name, whatever the incarnation
  std::string model_fingerprint;
  std::string compute;
  kv::KvLayout layout;
  uint64_t selector_parameters = 0;  // selector::DigestOf
  channel::TcpEngine* tcp = nullptr;
  channel::NcclEngine* nccl = nullptr;  // with transport "nccl"
  const base::Clock* clock = nullptr;
  metrics::Metrics* metrics = nullptr;
};

using ControlStream = rpc::ClientDuplex<v1::ControlMessage, v1::ControlMessage>;

// Thread-safe. No call blocks, but for Dial.
class PairingSession : public std::enable_shared_from_this<PairingSession> {
 public:
  // Three heartbeats missed: the peer is down.
  static constexpr int kMissedHeartbeats = 3;
  // Tick is due so often, so that silence is noticed before the third heartbeat is over.
  static constexpr int kTicksPerHeartbeat = 4;

  // `transports`: offered to the peer, in order of preference.
  PairingSession(const PairingContext* context, std::string address,
                 std::shared_ptr<grpc::Channel> channel, std::vector<std::string> transports);
  ~PairingSession();

  // The handshake, step by step; blocks up to the pairing timeout a step. FailedPrecondition
  // carries the peer's reason.
  absl::Status Open();
  bool up() const;
  // Open() has succeeded, it is not draining, and not down.
  bool healthy() const;
  absl::Status reason() const;  // why it went down
  // Notices missed heartbeats; every kTicksPerHeartbeat'th call sends one.
  void Tick();
  // Waits until it is down, at most `duration`.
  void WaitDown(base::Duration duration);
  void GoDown(const absl::Status& reason);

  const std::string& address() const { return address_; }
  uint64_t peer_incarnation() const;
  // What the peer chose; empty before it has.
  std::string transport() const;
  base::Duration lease() const;
  const PairingContext& context() const { return *context_; }

  // For RemoteAttempt.
  v1::Prefill::Stub& stub() { return *prefill_stub_; }
  std::shared_ptr<transfer::TransferReceiver> receiver() const;
  uint64_t received_bytes() const;
  // What the prefill side last said of the link.
  transfer::LinkEstimate link() const;
  absl::Status Register(const base::TransferId& id, const std::shared_ptr<RemoteAttempt>& attempt);
  void Unregister(const base::TransferId& id);
  void Send(v1::ControlMessage message);
  void Fetch(const base::TransferId& id, std::span<const transfer::LayerRange> ranges);
  // Steps handed over go out in one message, so that they are computed together.
  void AddStep(v1::Split::Step step);
  void FlushSteps();

 private:
  absl::StatusOr<v1::HelloReply> Handshake();
  absl::Status Dial(const v1::HelloReply& reply);
  absl::StatusOr<std::shared_ptr<channel::Channel>> DialChannel(
      const v1::HelloReply& reply, const base::ChannelKey& key,
      const std::shared_ptr<transfer::TransferReceiver>& receiver);
  std::shared_ptr<transfer::TransferReceiver> MakeReceiver(uint64_t peer_incarnation);
  void OnMessage(const v1::ControlMessage& message);
  std::shared_ptr<RemoteAttempt> Find(const std::string& transfer_id) const;
  // Waits until `done` or down; DeadlineExceeded naming `what`.
  absl::Status WaitFor(std::string_view what, const std::function<bool()>& done);

  const PairingContext* const context_;
  const std::string address_;
  const std::vector<std::string> transports_;
  const std::unique_ptr<v1::Transfer::Stub> transfer_stub_;
  const std::unique_ptr<v1::Prefill::Stub> prefill_stub_;

  mutable base::Mutex mutex_;
  base::CondVar changed_;
  std::shared_ptr<ControlStream> stream_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<channel::Channel> channel_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<transfer::TransferReceiver> receiver_ ABSL_GUARDED_BY(mutex_);
  std::map<base::TransferId, std::weak_ptr<RemoteAttempt>> attempts_ ABSL_GUARDED_BY(mutex_);
  v1::ControlMessage steps_ ABSL_GUARDED_BY(mutex_);  // a Split, or nothing
  v1::HelloReply reply_ ABSL_GUARDED_BY(mutex_);
  bool replied_ ABSL_GUARDED_BY(mutex_) = false;
  bool paired_ ABSL_GUARDED_BY(mutex_) = false;
  bool up_ ABSL_GUARDED_BY(mutex_) = false;
  bool down_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  transfer::LinkEstimate link_ ABSL_GUARDED_BY(mutex_);
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);
  base::TimePoint last_heard_ ABSL_GUARDED_BY(mutex_);
  uint64_t ticks_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t heartbeats_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The pairings of all configured addresses. Thread-safe.
class PairingManager final : public PrefillDirectory {
 public:
  // Addresses as configured, host:port; tries to reach all of them from now on.
  static absl::StatusOr<std::unique_ptr<PairingManager>> Start(
      PairingContext context, const std::vector<std::string>& addresses);
  ~PairingManager() override;
  // Ends all sessions and lets their channels go: attempts must have ended. Idempotent.
  void Stop();

  bool configured() const override { return !pairings_.empty(); }
  std::vector<std::string> Healthy(const std::vector<std::string>& ranking) const override;
  absl::StatusOr<std::shared_ptr<PrefillAttempt>> Start(const std::string& address,
                                                        AttemptSpec spec,
                                                        AttemptEvents events) override;
  std::vector<v1::PeerInfo> Peers() const;
  // KV bytes that have come over the pairing that is up; 0: none is.
  uint64_t received_bytes(const std::string& address) const;

 private:
  struct Pairing {
    std::string address;
    std::shared_ptr<PairingSession> session;  // the one that is up or being made; guarded by mutex_
    std::string detail = "not tried yet";     // why none is up; guarded by mutex_
    // Those that gRPC may still hold (see rpc::ReleaseChannels); guarded by mutex_.
    std::vector<std::shared_ptr<grpc::Channel>> channels;
    int nccl_failures = 0;  // in a row; of the thread alone
    std::thread thread;
  };
  explicit PairingManager(PairingContext context) : context_(std::move(context)) {}
  void Keep(Pairing& pairing);
  void RunSession(Pairing& pairing, const std::shared_ptr<PairingSession>& session);
  // What the next session offers: with nccl_or_tcp no NCCL after so many failures, until a session
  // over TCP has ended.
  static constexpr int kNcclFailures = 3;
  std::vector<std::string> TransportsFor(const Pairing& pairing) const;
  void CountTransport(Pairing& pairing, const PairingSession& session, const absl::Status& opened);
  std::shared_ptr<PairingSession> SessionOf(const std::string& address) const;
  bool stopped() const;

  const PairingContext context_;
  std::vector<std::unique_ptr<Pairing>> pairings_;  // fixed after Start
  mutable base::Mutex mutex_;
  base::CondVar wake_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace smartgen::decode_server
