// What the engine sees of prefill instances: who is healthy, and one attempt at a prompt.
// Implemented over gRPC and the channel in pairing.h; tests have their own.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/kv/remote_kv.h"
#include "common/kv/sequence.h"
#include "common/sampling/sampler.h"
#include "common/trace/trace.h"
#include "common/transfer/mode.h"
#include "common/transfer/request_options.h"
#include "common/transfer/transfer.h"

namespace smartgen::decode_server {

// Why a request did not go on as planned: the labels of fallback_total. A closed set.
enum class Fallback {
  kNoInstance,          // none is healthy
  kPeerDown,            // the pairing broke
  kPrefillBusy,         // it has no room
  kPrefillUnavailable,  // it refuses work (draining, restarted) or cannot be reached
  kPrefillTimeout,      // its deadline passed
  kPrefillError,        // it failed otherwise
  kLeaseLost,           // it gave the prompt's KV up
  kTransferStalled,     // KV did not come though asked for again
  kTransferTimeout,     // KV did not come in time
  kHandoverTimeout,     // a handed-over step got no answer though asked for again
  kSelectionDropped,    // pre-empted: it goes on with full attention
};
std::string_view FallbackName(Fallback reason);
// From what a Prefill call ended with.
Fallback FallbackFor(const absl::Status& status);

struct AttemptSpec {
  std::span<const int32_t> tokens;  // copied by Start
  int64_t decode_cached_tokens = 0;
  int64_t prompt_tokens = 0;
  sampling::SamplingParams sampling;
  int64_t max_tokens = 1;  // still to come; 1: no KV is wanted
  base::Deadline deadline = base::Deadline::Infinite();
  std::shared_ptr<kv::KvSequence> sequence;     // room for all tokens
  transfer::Mode mode = transfer::Mode::kFull;  // one that transfers
  transfer::RequestOptions transfer;
  trace::TracePtr trace;  // null: not traced
};

// How the KV will come, as the prefill side has it.
struct PlanInfo {
  int64_t budget_blocks = 0;
  int64_t pushed_blocks = 0;
  int64_t total_blocks = 0;
  double prefill_seconds = 0;
  double transfer_seconds = 0;
};

// Called on any thread; must not block. After PrefillAttempt::End returned, some may still come.
struct AttemptEvents {
  std::function<void(int64_t cached_tokens, double queue_seconds)> on_started;
  std::function<void(sampling::SampledToken token)> on_token;
  // After the token. `transfer` false: no KV will come.
  std::function<void(bool transfer, double prefill_seconds)> on_done;
  // All KV is here and verified; may come before the token.
  std::function<void()> on_complete;
  // The prefill side has handed everything to the network.
  std::function<void()> on_sent;
  std::function<void(const PlanInfo& plan)> on_plan;
  // Entries that a step asked for have come, some of them.
  std::function<void()> on_arrival;
  // The answer to Split (layer as asked) or Attend.
  std::function<void(uint64_t step, int layer, std::vector<std::byte> bytes)> on_reply;
  // What was asked for by Split or Attend waits for its turn there, and is not lost.
  std::function<void()> on_deferred;
  // Selection metadata in the wire format (common/selector/metadata.h).
  std::function<void(int layer, int64_t begin, int64_t end, bool header,
                     std::vector<std::byte> bytes)>
      on_metadata;
  std::function<void(Fallback reason, const absl::Status& status)> on_failed;
};

// Thread-safe.
class PrefillAttempt {
 public:
  struct Progress {
    uint64_t bytes = 0;          // of this transfer, verified
    uint64_t pairing_bytes = 0;  // of all transfers of the pairing
    std::map<transfer::Path, uint64_t> path_bytes;
    uint64_t damaged_rest_bytes = 0;  // came on the speculative path and were damaged
    transfer::LinkEstimate link;      // as the prefill side sees it
  };
  virtual ~PrefillAttempt() = default;
  virtual Progress progress() const = 0;
  // Asks again for what is missing; false if nothing is.
  virtual bool FetchMissing() = 0;
  // Asks for these ranges, whether sent before or not.
  virtual void FetchRanges(std::span<const transfer::LayerRange> ranges) = 0;
  // Entries that a step needs; `again`: also those that are on their way.
  virtual void FetchHeads(int layer, std::span<const kv::HeadRange> ranges, bool again) = 0;
  // Asks for selection metadata again (of a layer with a header: that as well).
  virtual void FetchMetadata(std::span<const transfer::LayerRange> ranges) = 0;
  // Hands the rest of a step over: layers [layer, all) of the token at `position`. Steps of the
  // same instance go out together, when FlushSteps is called for any of them. `before`: the tokens
  // right before that were made here, whose KV is made there first.
  virtual void Split(int64_t position, int32_t token, int layer, std::span<const float> hidden,
                     std::span<const int32_t> before) = 0;
  virtual void FlushSteps() = 0;
  virtual void Attend(int64_t position, int layer, int64_t begin, int64_t end,
                      std::span<const float> queries) = 0;
  // The link may carry so many bytes more of the rest.
  virtual void Credit(int64_t bytes) = 0;
  // Tells the prefill side to hold the KV on. How long a renewal lasts:
  virtual void RenewLease() = 0;
  virtual base::Duration lease() const = 0;
  // Cancels what runs, lets the prefill side free the KV, and stops writing into the sequence, but
  // for a payload under way, which pins it. Idempotent.
  virtual void End() = 0;
};

// Thread-safe.
class PrefillDirectory {
 public:
  virtual ~PrefillDirectory() = default;
  // Some instance is configured.
  virtual bool configured() const = 0;
  // Healthy instances: those of `ranking` first, in its order (addresses not known are ignored),
  // then the others in the configured order.
  virtual std::vector<std::string> Healthy(const std::vector<std::string>& ranking) const = 0;
  virtual absl::StatusOr<std::shared_ptr<PrefillAttempt>> Start(const std::string& address,
                                                                AttemptSpec spec,
                                                                AttemptEvents events) = 0;
};

}  // namespace smartgen::decode_server
