// One decode instance that is paired, or about to be: its control stream, its channel, its
// transfers.
//
//   kHello  --Hello accepted-->  kPairing  --all lanes of the channel have come-->  kUp
//      |                            |                                               |
//      +--- refused, stream closed, channel closed, heartbeats missed, replaced ----+-->  kDown
//
// Down is final: a decode instance that comes back opens a new stream and gets a new link. Going
// down ends all of the link's transfers and frees their pages. Thread-safe; no call blocks.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/channel/channel.h"
#include "common/metrics/metrics.h"
#include "common/rpc/reactors.h"
#include "common/transfer/transfer.h"
#include "prefill_server/engine.h"
#include "prefill_server/job.h"
#include "proto/transfer.grpc.pb.h"

namespace smartgen::prefill_server {

using ControlStream = rpc::ServerDuplex<v1::ControlMessage, v1::ControlMessage>;

class PeerLink final : public DecodeLink, public std::enable_shared_from_this<PeerLink> {
 public:
  enum class State { kHello, kPairing, kUp, kDown };
  struct Context {
    PrefillEngine* engine;
    const base::Clock* clock;
    metrics::Metrics* metrics;
    uint64_t own_incarnation;
    base::Duration heartbeat;
    std::function<bool()> draining;
    std::function<void(const std::shared_ptr<PeerLink>&)> on_down;  // once
  };
  // Three heartbeats missed: the peer is down.
  static constexpr int kMissedHeartbeats = 3;
  // Tick is due so often, so that silence is noticed before the third heartbeat is over.
  static constexpr int kTicksPerHeartbeat = 4;

  explicit PeerLink(Context context);
  ~PeerLink() override;

  void SetStream(std::shared_ptr<ControlStream> stream);
  // kHello -> kPairing, and the reply goes out. False if the link went down meanwhile.
  bool Accept(const v1::Hello& hello, std::string instance, v1::HelloReply reply);
  // kPairing -> kUp.
  void SetChannel(std::shared_ptr<channel::Channel> channel);
  // Notices missed heartbeats; every kTicksPerHeartbeat'th call sends one.
  void Tick();
  void GoDown(const absl::Status& reason);
  // Everything after Hello.
  void OnMessage(const v1::ControlMessage& message);

  State state() const;
  uint64_t incarnation() const;
  std::string instance() const;
  std::string transport() const;  // empty while no channel stands

  bool up() const override { return state() == State::kUp; }
  absl::Status Begin(transfer::SendSpec spec) override;
  absl::Status LayerReady(const base::TransferId& id, const transfer::LayerRange& range) override;
  absl::Status Metadata(const base::TransferId& id, int layer, int64_t begin, int64_t end,
                        bool header, std::vector<std::byte> bytes) override;
  void PromptDone(const base::TransferId& id) override;
  absl::Status Born(const base::TransferId& id, int layer_begin, int64_t token) override;
  absl::Status Reply(const base::TransferId& id, uint64_t step, int layer,
                     std::vector<std::byte> bytes) override;
  void ExpectReply(const base::TransferId& id, base::TimePoint at) override;
  void NotifyPlan(const base::TransferId& id, const DeliveryPlan& plan) override;
  transfer::LinkEstimate estimate() const override;
  void End(const base::TransferId& id) override;
  void NotifyDeferred(const base::TransferId& id) override;
  void NotifyAborted(const base::TransferId& id, std::string_view reason) override;

 private:
  void Send(v1::ControlMessage message);
  std::shared_ptr<transfer::TransferSender> sender() const;
  void ReportLink();
  // Sets the link's gauges; once a heartbeat.
  void MeasureLink();
  void OnFetch(const v1::Fetch& fetch);
  void OnSplit(const v1::Split& split);
  void OnAttend(const v1::Attend& attend);
  void OnCredit(const v1::Credit& credit);
  void OnLeaseRenew(const v1::LeaseRenew& renew);
  void OnSent(const base::TransferId& id, transfer::Path path, base::TimePoint begun,
              const absl::Status& status);
  // Allows the transitions above and no others; false if not allowed.
  bool AdvanceLocked(State next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Context context_;
  mutable base::Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kHello;
  std::shared_ptr<ControlStream> stream_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<channel::Channel> channel_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<transfer::TransferSender> sender_ ABSL_GUARDED_BY(mutex_);
  uint64_t incarnation_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string instance_ ABSL_GUARDED_BY(mutex_);
  bool checksum_ ABSL_GUARDED_BY(mutex_) = true;
  base::TimePoint last_heard_ ABSL_GUARDED_BY(mutex_);
  uint64_t ticks_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t heartbeats_ ABSL_GUARDED_BY(mutex_) = 0;
  double reported_rate_ ABSL_GUARDED_BY(mutex_) = 0;
  base::TimePoint measured_at_ ABSL_GUARDED_BY(mutex_);
  double measured_busy_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace smartgen::prefill_server
