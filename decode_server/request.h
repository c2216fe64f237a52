// One generation, from admission to its last token.
//
//   kWaiting        no KV room yet (new, or pre-empted)
//   kRemotePrefill  room reserved; a prefill instance works on it
//   kReceiving      the next token is known and sent; its KV is on the way
//   kLocalPrefill   computing prompt (and tokens so far) here, chunk by chunk
//   kHandover       makes tokens: layers whose KV is all here run here, the rest where it is
//   kReading        makes tokens; what a step reads and is not here is asked for
//   kDecoding       in the batch: all KV is here
//   kFinished       everything given back; final
//
//   kWaiting       -> kRemotePrefill | kLocalPrefill | kFinished
//   kRemotePrefill -> kReceiving | kHandover | kReading | kLost | kFinished
//   kReceiving     -> kDecoding | kLost | kFinished
//   kHandover      -> kReading (its metadata has come) | kDecoding | kLost | kFinished
//   kReading       -> kHandover (a step is sooner there) | kDecoding | kLost | kFinished
//   kLocalPrefill  -> kDecoding | kWaiting (pre-empted) | kFinished
//   kDecoding      -> kWaiting (pre-empted) | kFinished
//   where kLost is: kRemotePrefill (another instance) | kLocalPrefill | kWaiting (pre-empted)
//
// The engine's thread owns a request and moves it with Advance, which allows no other transition.
// Whatever happens, tokens that were sent stay: going on means computing prompt plus tokens so far
// anew, and since the sampler is a function of (seed, position), the stream goes on as if nothing
// had been.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/executor/executor.h"
#include "common/kv/sequence.h"
#include "common/sampling/sampler.h"
#include "common/selector/selector.h"
#include "common/trace/trace.h"
#include "common/transfer/step_choice.h"
#include "decode_server/remote_prefill.h"
#include "decode_server/remote_reader.h"

namespace smartgen::decode_server {

using transfer::Mode;
enum class FinishReason { kStop, kLength };

struct Stats {
  Mode mode = Mode::kLocal;     // the one taken
  std::string prefill_address;  // empty: prefilled here
  std::string fallback_reason;  // the last one; empty: none
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t generated_tokens = 0;
  double queue_seconds = 0;
  double prefill_seconds = 0;
  double transfer_exposed_seconds = 0;
  double decode_seconds = 0;
  uint64_t transfer_bytes = 0;
  int64_t preemptions = 0;
  std::map<transfer::Path, uint64_t> path_bytes;
  int64_t handover_steps = 0;
  double all_local_seconds = 0;  // from arrival; 0: it never was
  int64_t selected_entries = 0;  // by steps that selected
  int64_t remote_entries = 0;    // of these, not here when their layer began
  int64_t wait_steps = 0;        // steps that waited for entries
  // Steps made while some KV was not here, by how; kWait: those that waited before that.
  std::map<transfer::StepKind, int64_t> step_kinds;
};

// Who hears of a request. Calls come from the engine's thread and must not block: Admitted?,
// Token*, (Finished | Failed).
class GenerateListener {
 public:
  virtual ~GenerateListener() = default;
  virtual void Admitted(int64_t cached_tokens) = 0;
  virtual void Token(const sampling::SampledToken& token) = 0;
  virtual void Finished(FinishReason reason, const Stats& stats) = 0;
  virtual void Failed(const absl::Status& status) = 0;
};

struct GenerateSpec {
  std::vector<int32_t> prompt;
  std::vector<int32_t> generated;  // the client has these already
  sampling::SamplingParams sampling;
  int64_t max_tokens = 1;  // in total, `generated` included
  Mode mode = Mode::kAuto;
  transfer::RequestOptions transfer;
  std::vector<std::string> prefill_ranking;
  base::Deadline deadline = base::Deadline::Infinite();
  trace::TracePtr trace;  // null: not traced
};

enum class RequestState {
  kWaiting,
  kRemotePrefill,
  kReceiving,
  kHandover,
  kReading,
  kLocalPrefill,
  kDecoding,
  kFinished
};
std::string_view RequestStateName(RequestState state);

class Request {
 public:
  Request(GenerateSpec spec, std::shared_ptr<GenerateListener> listener, base::TimePoint arrival,
          uint64_t serial);

  // Steps that are shared with the prefill side.
  struct Handover {
    enum class Phase { kReady, kAway, kBack };
    Phase phase = Phase::kReady;
    int layers = 0;                    // the first ones whose KV is all here; never fewer
    int from = 0;                      // the layer that the step under way was handed over at
    std::vector<int64_t> local_until;  // by layer: tokens known to be here
    std::vector<float> hidden;         // what goes there, then what came back
    base::TimePoint sent_at{};
    base::TimePoint heard_at{};  // the same, or when it was said that the step waits for its turn
    int retries = 0;
    // Since when nothing came of the keys, of tokens made there, that a step waits for; zero: none
    // does.
    base::TimePoint held_since{};
    uint64_t held_bytes = 0;  // had come on demand then
    int64_t owed_bytes = 0;   // of those keys and their values
  };
  // Steps that read a selection, or KV that is not here.
  struct Reading {
    std::shared_ptr<const selector::KvSelector> selector;  // null: full attention, queries shipped
    std::unique_ptr<selector::MetadataStore> metadata;     // with a selector
    std::unique_ptr<RemoteReader> reader;                  // null: all is here
    executor::SlotRead read;
    bool under_way = false;  // in a cohort
    bool alone = false;      // a cohort that it was in failed: the next is its own
    int64_t credited = 0;    // bytes of the rest that may have been sent
    int64_t came = 0;        // of these, when credit was given last
    // When credit was given or bytes for it came last.
    base::TimePoint credit_at{};
  };

  // What the choice of how to make the next step goes by.
  struct Outlook {
    int64_t held_there = 0;        // the prefill side has the KV of so many tokens
    double missed_bytes = -1;      // by the latest steps that fetched; -1: none did
    double missing_then = 0;       // bytes that were not here then
    double missing_before = 0;     // when the step under way began
    base::TimePoint wait_until{};  // zero: the next step has not been waited for
    bool waited = false;           // long enough
  };

  const GenerateSpec spec;
  const std::shared_ptr<GenerateListener> listener;
  const base::TimePoint arrival;
  const uint64_t serial;  // order of arrival: the youngest is pre-empted first

  // Thread-safe. The first reason counts.
  void Cancel(const absl::Status& reason);
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }
  absl::Status cancel_reason() const;

  // Engine's thread only from here.
  RequestState state() const { return state_; }
  void Advance(RequestState next);
  // Holds KV and a place among the running.
  bool active() const {
    return state_ != RequestState::kWaiting && state_ != RequestState::kFinished;
  }
  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  int64_t generated() const { return length() - static_cast<int64_t>(spec.prompt.size()); }

  std::vector<int32_t> tokens;  // prompt and generated
  sampling::Sampler sampler;
  std::shared_ptr<kv::KvSequence> sequence;
  Stats stats;
  bool was_admitted = false;
  bool force_local = false;  // after a pre-emption
  base::TimePoint prefill_started{};
  base::TimePoint decode_started{};
  base::TimePoint step_begun{};  // of the step under way, if it is traced

  // The remote prefill under way.
  struct Remote {
    std::shared_ptr<PrefillAttempt> attempt;
    uint64_t number = 0;  // tells events of this attempt from those of an earlier one
    std::string address;
    bool started = false;      // it left the prefill side's queue: it has a lease
    int64_t cached = 0;        // of the prompt's tokens, by the prefill side
    int64_t prompt_end = 0;    // KV of tokens before comes, the rest is born
    bool kv_complete = false;  // of tokens before prompt_end
    PlanInfo plan;
    bool sent = false;           // everything was handed to the network
    base::TimePoint token_at{};  // when the next token came
    base::TimePoint renewed_at{};
    base::TimePoint progress_at{};  // when bytes last came
    uint64_t progress_bytes = 0;
    base::TimePoint pairing_at{};  // when bytes of any transfer of the pairing last came
    uint64_t pairing_bytes = 0;
    int fetches = 0;                // without progress since
    base::TimePoint metadata_at{};  // when metadata last came, or was last asked for
    int metadata_asks = 0;          // without any coming since
  };
  Remote remote;
  Handover handover;
  Outlook outlook;
  std::shared_ptr<Reading> reading;  // a cohort may hold it longer; null: none
  uint64_t attempts = 0;
  std::vector<std::string> tried;  // instances that failed this request

  int64_t local_done = 0;  // tokens whose KV local prefill has computed or found

 private:
  RequestState state_ = RequestState::kWaiting;
  std::atomic<bool> cancelled_{false};
  mutable base::Mutex mutex_;
  absl::Status cancel_reason_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace smartgen::decode_server
