// One prompt at one prefill instance: the Prefill call and the KV that comes of it.
#pragma once

#include <memory>

#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/rpc/reactors.h"
#include "decode_server/pairing.h"
#include "decode_server/remote_prefill.h"

namespace smartgen::decode_server {

class RemoteAttempt final : public PrefillAttempt,
                            public std::enable_shared_from_this<RemoteAttempt> {
 public:
  static absl::StatusOr<std::shared_ptr<RemoteAttempt>> Start(
      std::shared_ptr<PairingSession> session, AttemptSpec spec, AttemptEvents events);

  Progress progress() const override;
  bool FetchMissing() override;
  void FetchRanges(std::span<const transfer::LayerRange> ranges) override;
  void FetchHeads(int layer, std::span<const kv::HeadRange> ranges, bool again) override;
  void FetchMetadata(std::span<const transfer::LayerRange> ranges) override;
  void Split(int64_t position, int32_t token, int layer, std::span<const float> hidden,
             std::span<const int32_t> before) override;
  void FlushSteps() override { session_->FlushSteps(); }
  void Attend(int64_t position, int layer, int64_t begin, int64_t end,
              std::span<const float> queries) override;
  void Credit(int64_t bytes) override;
  void RenewLease() override;
  base::Duration lease() const override { return session_->lease(); }
  void End() override;

  // From the session.
  void OnSent();
  void OnPlan(const v1::Plan& plan);
  void OnDeferred();
  void OnAborted(const std::string& reason);
  void OnDown(const absl::Status& reason);

 private:
  using Stream = rpc::ClientEventStream<v1::PrefillEvent>;

  RemoteAttempt(std::shared_ptr<PairingSession> session, AttemptEvents events)
      : session_(std::move(session)), events_(std::move(events)), id_(base::NewTransferId()) {}
  absl::Status Begin(const AttemptSpec& spec);
  transfer::ReceiveSpec MakeReceiveSpec(const AttemptSpec& spec);
  void Call(const AttemptSpec& spec);
  void OnEvent(const v1::PrefillEvent& event);
  void OnClosed(const absl::Status& status);
  void Fail(Fallback reason, const absl::Status& status);
  bool ended() const;
  void SetDone();
  // Bandwidth: what came after the first layer, over the time that it took.
  void OnLayer();
  void OnComplete();

  const std::shared_ptr<PairingSession> session_;
  const AttemptEvents events_;
  const base::TransferId id_;
  v1::PrefillRequest request_;  // must live as long as the call
  std::shared_ptr<transfer::TransferReceiver> receiver_;

  mutable base::Mutex mutex_;
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;  // End was called
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;  // told once
  bool done_ ABSL_GUARDED_BY(mutex_) = false;    // the event has come
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;  // the call has ended
  transfer::ReceiverStats final_ ABSL_GUARDED_BY(mutex_);
  // The channel's thread only.
  base::TimePoint first_layer_at_{};
  uint64_t first_layer_bytes_ = 0;
};

}  // namespace smartgen::decode_server
