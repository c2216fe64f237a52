// One prompt on its way through the prefill engine.
//
//   kQueued  --room for its KV, lease granted-->  kRunning  --token 1-->  kEnded (its KV may live
//   on under the lease)
//      |                                            |
//      +------------- cancel, deadline, error ------+------------------>  kEnded
//
// The engine's thread owns the state and moves it with Advance, which allows no other transition.
// Any thread may cancel; the sequence is let go by whoever ends the lease.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/kv/sequence.h"
#include "common/sampling/sampler.h"
#include "common/trace/trace.h"
#include "common/transfer/mode.h"
#include "common/transfer/request_options.h"
#include "common/transfer/transfer.h"
#include "prefill_server/metadata_source.h"

namespace smartgen::prefill_server {

// What is decided for a transfer before it begins.
struct DeliveryPlan {
  transfer::Mode mode = transfer::Mode::kFull;  // the one taken
  std::vector<transfer::BlockId> order;         // as SendSpec's
  int64_t budget_blocks = 0;                    // K_r
  int64_t pushed_blocks = -1;                   // as SendSpec's
  bool deliver_rest = true;
  bool credits = false;
  int64_t total_blocks = 0;
  int64_t dense_overrun_blocks = 0;  // planned beyond the budget, since dense layers always go
  double prefill_seconds = 0;        // T_p as predicted; 0: not known
  double transfer_seconds = 0;       // T_t as predicted; 0: not known
};

// Where a job's KV goes: the decode instance that asked for it. Thread-safe, no call blocks.
class DecodeLink {
 public:
  virtual ~DecodeLink() = default;
  virtual bool up() const = 0;
  // See transfer::TransferSender; `on_sent` is the link's own.
  virtual absl::Status Begin(transfer::SendSpec spec) = 0;
  virtual absl::Status LayerReady(const base::TransferId& id,
                                  const transfer::LayerRange& range) = 0;
  virtual absl::Status Metadata(const base::TransferId& id, int layer, int64_t begin, int64_t end,
                                bool header, std::vector<std::byte> bytes) = 0;
  virtual void PromptDone(const base::TransferId& id) = 0;
  virtual absl::Status Born(const base::TransferId& id, int layer_begin, int64_t token) = 0;
  virtual absl::Status Reply(const base::TransferId& id, uint64_t step, int layer,
                             std::vector<std::byte> bytes) = 0;
  virtual void ExpectReply(const base::TransferId& id, base::TimePoint at) = 0;
  // Tells the other side how its KV will come.
  virtual void NotifyPlan(const base::TransferId& id, const DeliveryPlan& plan) = 0;
  // What the link can carry; zeros while that is not known.
  virtual transfer::LinkEstimate estimate() const = 0;
  virtual void End(const base::TransferId& id) = 0;
  // Steps that the transfer asked for wait for their turn.
  virtual void NotifyDeferred(const base::TransferId& id) = 0;
  // Tells the other side that the transfer is over though it did not ask for that.
  virtual void NotifyAborted(const base::TransferId& id, std::string_view reason) = 0;
};

// Who hears of a job. Calls come from the engine's thread, in this order, and must not block:
// Started?, (FirstToken, Done) | Failed.
class JobListener {
 public:
  virtual ~JobListener() = default;
  virtual void Started(int64_t cached_tokens, double queue_seconds) = 0;
  virtual void FirstToken(const sampling::SampledToken& token) = 0;
  // `transfer`: the other side may wait for KV.
  virtual void Done(bool transfer, double prefill_seconds) = 0;
  virtual void Failed(const absl::Status& status) = 0;
};

struct JobSpec {
  base::TransferId id;
  std::vector<int32_t> tokens;
  int64_t decode_cached_tokens = 0;
  int64_t prompt_tokens = 0;  // tokens beyond were generated
  sampling::SamplingParams sampling;
  int64_t max_tokens = 1;  // still to come
  base::Deadline deadline = base::Deadline::Infinite();
  transfer::Mode mode = transfer::Mode::kFull;
  transfer::RequestOptions transfer;
  std::shared_ptr<DecodeLink> link;
  trace::TracePtr trace;  // null: not traced
};

// A part of a decode step that is computed here, on the KV held under the transfer's lease.
struct SplitStep {
  base::TransferId id;
  int64_t position = 0;  // of the token; also the step's number
  int32_t token = 0;
  int layer = 0;              // the first one that runs here
  std::vector<float> hidden;  // its input; empty for layer 0
  // The tokens right before `position` that the other side made. KV of those that have none here is
  // made first.
  std::vector<int32_t> before;
};
struct AttendStep {
  base::TransferId id;
  int64_t position = 0;
  int layer = 0;
  int64_t begin = 0;
  int64_t end = 0;
  std::vector<float> queries;
};

enum class JobState { kQueued, kRunning, kEnded };

class Job {
 public:
  Job(JobSpec spec, std::shared_ptr<JobListener> listener, base::TimePoint arrival)
      : spec(std::move(spec)), listener(std::move(listener)), arrival(arrival) {}

  const JobSpec spec;
  const std::shared_ptr<JobListener> listener;
  const base::TimePoint arrival;

  int64_t tokens() const { return static_cast<int64_t>(spec.tokens.size()); }
  // At most max_tokens = 1 needs no KV on the other side.
  bool wants_transfer() const { return spec.max_tokens > 1; }

  // Thread-safe. The first reason counts.
  void Cancel(const absl::Status& reason);
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }
  absl::Status cancel_reason() const;
  // Thread-safe.
  void SetSequence(std::shared_ptr<kv::KvSequence> sequence);
  std::shared_ptr<kv::KvSequence> sequence() const;

  // Token 1 is made: what is left is the lease. Any thread.
  bool computed() const { return computed_.load(std::memory_order_acquire); }
  void SetComputed() { computed_.store(true, std::memory_order_release); }

  // Engine's thread only from here.
  JobState state() const { return state_; }
  void Advance(JobState next);
  base::TimePoint started{};
  int64_t cached_tokens = 0;
  int64_t done_tokens = 0;
  int passed_over = 0;
  int64_t held_tokens = 0;     // after token 1: the prompt, and those whose steps ran here
  double compute_seconds = 0;  // in its own chunks
  std::unique_ptr<MetadataSource> metadata;  // null: none is wanted

 private:
  JobState state_ = JobState::kQueued;
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> computed_{false};
  mutable base::Mutex mutex_;
  absl::Status cancel_reason_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<kv::KvSequence> sequence_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace smartgen::prefill_server
