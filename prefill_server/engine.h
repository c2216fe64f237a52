// Runs prompts: a bounded queue, chunks in turns, prefix cache, leases. One thread (Run) owns the
// executor.
//
// A job that leaves the queue holds pages under a lease named by its transfer id, until the decode
// side releases it, the lease expires, or the job or its link fails. Pages under a lease are pages
// that no new prompt gets: that is the back-pressure of slow deliveries. Submit, Renew, Release and
// the like are thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mailbox.h"
#include "common/base/mutex.h"
#include "common/base/watchdog.h"
#include "common/executor/executor.h"
#include "common/kv/lease.h"
#include "common/kv/pool.h"
#include "common/kv/prefix_cache.h"
#include "common/metrics/metrics.h"
#include "common/selector/selector_set.h"
#include "prefill_server/job.h"
#include "prefill_server/planner.h"

namespace smartgen::prefill_server {

class PrefillEngine {
 public:
  struct Options {
    // Prompts that wait; beyond: ResourceExhausted.
    int max_queue = 64;
    // Prompts whose chunks take turns.
    int max_running = 4;
    // Tokens of a chunk; at most the executor's max_prefill_tokens.
    int chunk_tokens = 2048;
    // How long pages are held without a renewal.
    base::Duration lease = std::chrono::seconds(30);
    // A stuck engine is reported after this long without a layer computed.
    base::Duration watchdog = std::chrono::seconds(60);
    base::Duration lease_tick = std::chrono::milliseconds(100);
    // Share of the time that decode steps of other instances may take here while prompts are to be
    // computed; the rest waits for its turn. Without prompts there is no limit.
    double handover_share = 0.2;
    // Decode steps computed at once; at most the executor's max_decode_batch.
    int max_handover_batch = 64;
  };
  struct Parts {
    executor::Executor* executor;
    kv::KvPool* pool;
    kv::PrefixCache* prefix_cache;
    const base::Clock* clock;
    metrics::Metrics* metrics;
    const TransferPlanner* planner;
    selector::SelectorSet* selectors;
  };
  struct Load {
    int64_t queued = 0;
    int64_t running = 0;
    int64_t leases = 0;
  };

  // With `start_threads` the engine and the lease timer run by themselves; otherwise a test calls
  // Step and ExpireLeases.
  PrefillEngine(Options options, Parts parts, bool start_threads = true);
  ~PrefillEngine();
  // Fails what is left with Unavailable, ends all leases, stops the thread. Idempotent; later calls
  // are refused.
  void Stop();

  // InvalidArgument (ids, lengths, parameters), ResourceExhausted (queue full, or more KV than the
  // pool has), AlreadyExists (the id is in use), Unavailable (draining). After OK the listener
  // hears of the job.
  absl::StatusOr<std::shared_ptr<Job>> Submit(JobSpec spec, std::shared_ptr<JobListener> listener);
  // Ends the job within a layer, and its lease.
  void Cancel(const std::shared_ptr<Job>& job, const absl::Status& reason);
  absl::Status Renew(const base::TransferId& id);
  // The decode side has all, or wants no more. A release may overtake the call that it concerns
  // (they travel on streams of their own), so that an id not known yet is remembered, and refused
  // when it comes; those long over do no harm.
  void Release(const base::TransferId& id, const absl::Status& reason);
  // Parts of decode steps, computed between layers of prompts; answers go out by the jobs' links. A
  // step that cannot be computed ends its transfer. Asking for a step again while it waits changes
  // nothing.
  void SubmitSplit(std::vector<SplitStep> steps);
  void SubmitAttend(std::vector<AttendStep> steps);
  // Selection metadata goes again, as far as it was made; it may have been lost.
  void ResendMetadata(const base::TransferId& id, std::vector<transfer::LayerRange> ranges);
  // The link is gone: all its jobs and leases end.
  void DropLink(const DecodeLink* link, const absl::Status& reason);

  void RefuseNew() { refuse_new_.store(true); }
  Load load() const;
  bool stuck() const { return watchdog_.Stuck(); }
  // Sets the gauges (queue, leases, pages).
  void CollectMetrics();

  // One scheduling step; false if there was nothing to do.
  bool Step();
  int64_t ExpireLeases() { return leases_.ExpireDue(); }

 private:
  struct Hot;

  absl::Status CheckSpec(const JobSpec& spec) const;
  void Run();
  void SweepCancelled();
  void StartQueued();
  // False if there is no room yet.
  bool TryStart(const std::shared_ptr<Job>& job);
  absl::Status GrantLease(const std::shared_ptr<Job>& job);
  void OnLeaseEnd(const std::shared_ptr<Job>& job, kv::LeaseTable::End end);
  absl::Status BeginTransfer(Job& job, std::shared_ptr<kv::KvSequence> sequence);
  // Transfers that share the link, queued ones included.
  int64_t Sharing(const DecodeLink* link) const;
  void RunChunk(const std::shared_ptr<Job>& job);
  absl::Status ComputeChunk(Job& job, kv::KvSequence& sequence, int64_t length,
                            std::span<float> logits);
  void FinishPrompt(const std::shared_ptr<Job>& job, std::span<float> logits);
  // engine_handover.cc
  // False if there was nothing to do, or it is not its turn.
  bool RunHandover();
  bool MayHandOver();
  // To those whose steps wait since it may not; every half second that this lasts.
  void TellDeferral();
  void RunSplits(std::vector<SplitStep> steps);
  struct RunningSplit;
  absl::Status CheckSplit(const Job& job, const SplitStep& step) const;
  // Makes the KV of the tokens before the step's that have none here.
  absl::Status Replay(RunningSplit& split);
  // Lets the links of these steps, which are about to run, be free when they will be done.
  void AnnounceReplies(std::span<const RunningSplit> running);
  // They took so long together.
  void NotePace(std::span<const RunningSplit> running, double seconds);
  static std::pair<size_t, int> PaceOf(std::span<const RunningSplit> running);
  // Layers of the one that has the most to run.
  int MostLayers(std::span<const RunningSplit> running) const;
  void FinishSplit(RunningSplit& split, absl::Status status);
  absl::Status RunSlots(std::span<const executor::DecodeSlot> slots);
  struct RunningAttend;
  absl::Status CheckAttend(const Job& job, const AttendStep& step) const;
  void RunAttends(std::vector<AttendStep> steps);
  // Null, and the transfer is aborted, if it is none whose KV is complete and held.
  std::shared_ptr<Job> HeldJob(const base::TransferId& id);
  void AbortTransfer(const std::shared_ptr<Job>& job, const absl::Status& status);
  void Fail(const std::shared_ptr<Job>& job, const absl::Status& status);
  void Forget(const Job& job);
  void UpdateLoad();

  const Options options_;
  const Parts parts_;
  std::unique_ptr<Hot> hot_;  // metrics that are written often
  base::Watchdog watchdog_;
  base::Mailbox mailbox_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> refuse_new_{false};

  mutable base::Mutex mutex_;
  // Every job that is queued, runs, or has a lease.
  std::map<base::TransferId, std::shared_ptr<Job>> jobs_ ABSL_GUARDED_BY(mutex_);
  // Released before they came: the latest kMaxEarly, oldest first.
  static constexpr size_t kMaxEarly = 4096;
  std::set<base::TransferId> early_ ABSL_GUARDED_BY(mutex_);
  std::deque<base::TransferId> early_order_ ABSL_GUARDED_BY(mutex_);
  Load load_ ABSL_GUARDED_BY(mutex_);
  int64_t submitted_ ABSL_GUARDED_BY(mutex_) = 0;  // accepted, not yet seen by the engine's thread
  // At most one step a transfer (and layer).
  std::deque<SplitStep> splits_ ABSL_GUARDED_BY(mutex_);
  std::deque<AttendStep> attends_ ABSL_GUARDED_BY(mutex_);

  // Engine's thread only.
  std::deque<std::shared_ptr<Job>> queue_;
  std::vector<std::shared_ptr<Job>> running_;
  std::vector<float> logits_;
  // Seconds that handed-over steps may still take; grows with time, by handover_share.
  double handover_credit_ = 0;
  base::TimePoint handover_credit_at_;
  // Seconds a layer, as the latest of them took, of steps with so much to do: how many at once, and
  // the binary logarithm of the tokens before them.
  std::map<std::pair<size_t, int>, double> split_pace_;
  bool handover_deferred_ = false;
  bool handover_charged_ = false;       // prompts wait while the steps under way are made
  base::TimePoint deferral_told_at_{};  // or begun

  kv::LeaseTable leases_;  // its callbacks use what stands above
  std::thread thread_;
};

}  // namespace smartgen::prefill_server
