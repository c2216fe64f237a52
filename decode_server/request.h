// One generation, from admission to its last token.
//
//   kWaiting        no KV room yet (new, or pre-empted)
//   kRemotePrefill  room reserved; a prefill instance works on it
//   kReceiving      the next token is known and sent; its KV is on the way
//   kLocalPrefill   computing prompt (and tokens so far) here, chunk by chunk
//   kDecoding       in the batch
//   kFinished       everything given back; final
//
//   kWaiting       -> kRemotePrefill | kLocalPrefill | kFinished
//   kRemotePrefill -> kReceiving | kRemotePrefill (another instance) | kLocalPrefill | kWaiting |
//   kFinished kReceiving     -> kDecoding | kRemotePrefill (another instance) | kLocalPrefill |
//   kWaiting | kFinished kLocalPrefill  -> kDecoding | kWaiting (pre-empted) | kFinished kDecoding
//   -> kWaiting (pre-empted) | kFinished
//
// The engine's thread owns a request and moves it with Advance, which allows no other transition.
// Whatever happens, tokens that were sent stay: going on means computing prompt plus tokens so far
// anew, and since the sampler is a function of (seed, position), the stream goes on as if nothing
// had been.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/kv/sequence.h"
#include "common/sampling/sampler.h"
#include "decode_server/remote_prefill.h"

namespace smartgen::decode_server {

enum class Mode { kAuto, kFull, kLocal };
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
  std::vector<std::string> prefill_ranking;
  base::Deadline deadline = base::Deadline::Infinite();
};

enum class RequestState {
  kWaiting,
  kRemotePrefill,
  kReceiving,
  kLocalPrefill,
  kDecoding,
  kFinished
};
std::string_view RequestStateName(RequestState state);

class Request {
 public:
  Request(GenerateSpec spec, std::shared_ptr<GenerateListener> listener, base::TimePoint arrival,
          uint64_t serial);

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

  // The remote prefill under way.
  struct Remote {
    std::shared_ptr<PrefillAttempt> attempt;
    uint64_t number = 0;  // tells events of this attempt from those of an earlier one
    std::string address;
    bool started = false;  // it left the prefill side's queue: it has a lease
    bool kv_complete = false;
    bool sent = false;           // everything was handed to the network
    base::TimePoint token_at{};  // when the next token came
    base::TimePoint renewed_at{};
    base::TimePoint progress_at{};  // when bytes last came
    uint64_t progress_bytes = 0;
    base::TimePoint pairing_at{};  // when bytes of any transfer of the pairing last came
    uint64_t pairing_bytes = 0;
    int fetches = 0;  // without progress since
  };
  Remote remote;
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
