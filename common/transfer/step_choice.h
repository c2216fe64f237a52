// How the next step of a request is made while some of its KV is not here: what each way is
// expected to take, and which is the soonest (smartgen.md, section 6). Pure.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string_view>

namespace smartgen::transfer {

enum class StepKind {
  kFetch,   // it is made here; what it selects and lacks is fetched
  kSplit,   // the prefill side makes it, or its last layers
  kAttend,  // it is made here; the prefill side attends over what is not
  kWait,    // it waits for KV that is on its way
};
inline constexpr std::array kStepKinds = {StepKind::kFetch, StepKind::kSplit, StepKind::kAttend,
                                          StepKind::kWait};  // in the order of their values
std::string_view StepKindName(StepKind kind);                // "fetch", "split", "attend", "wait"

// Seconds and bytes as they are expected. 0 where not known.
struct StepOutlook {
  int layers = 0;
  double step_seconds = 0;      // a whole step here
  double bytes_per_second = 0;  // what the link carries
  double round_trip_seconds = 0;
  // Fetching.
  double missed_bytes = 0;  // what the step selects and has not
  double owed_bytes = 0;    // KV of tokens made there, which must be here before a step can be made
  // Handing over: asked till answered, its queue and the answer's bytes included.
  double split_seconds = 0;
  int64_t replayed = 0;  // tokens made here whose KV the prefill side must make first
  // Shipping queries.
  double attend_bytes = 0;          // of a layer's answer
  double attend_queue_seconds = 0;  // that a layer's question waits for its turn there
  // Waiting: all that is not here.
  double remaining_bytes = 0;
};

// Seconds to the step's token; infinity: it cannot be so.
struct StepCosts {
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  double fetch = kNever;
  double split = kNever;
  double attend = kNever;
  double wait = kNever;
};

// fetch  = step + (missed + owed) / bandwidth + a round trip a layer where anything is missed (a
//          layer's selection follows from the layer before), and one for what is owed
// split  = asked till answered + a step for each token that is made anew
// attend = step + layers * (round trip + answer / bandwidth + queue)
// wait   = step + remaining / bandwidth
// Where the bandwidth is not known, what needs it takes no time beside the step.
StepCosts PredictStep(const StepOutlook& outlook);
// The soonest. Of equals: fetch, then wait, which cost the prefill side nothing; then split.
StepKind Soonest(const StepCosts& costs);

}  // namespace smartgen::transfer
