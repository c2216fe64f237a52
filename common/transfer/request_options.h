// What a request may choose of its transfer, and what a daemon's configuration gives as default.
#pragma once

#include <string>
#include <string_view>

#include "common/base/status.h"

namespace smartgen::transfer {

// How the prefill side helps with steps while KV is on the way (smartgen.md, section 6).
enum class Handover {
  kAuto,    // what is expected to be soonest, step by step
  kSplit,   // it runs the layers whose KV is not here; a selecting step whole
  kAttend,  // mode exact: it attends for shipped queries; modes that select: as kAuto
  kNone,    // not at all: steps fetch, or wait for what must be here
};

std::string_view HandoverName(Handover handover);  // "auto", ...
// InvalidArgument lists the names.
absl::StatusOr<Handover> ParseHandover(std::string_view name);

struct RequestOptions {
  // Which entries a step reads (modes that select): dense, quest, hata, infinigen.
  std::string selector = "quest";
  double selection_budget = 0.2;  // share of the context, in (0, 1]
  // Share of the KV that is delivered in idle time a step, in [0, 1]; 0: as the idle time allows.
  double speculative_ratio = 0.1;
  Handover handover = Handover::kAuto;
  // Mode auto: may steps read a selection? when_needed: where the prefill side has no time for
  // steps that are handed over; never: then KV is waited for; always.
  std::string selection = "when_needed";
  // Ablation.
  bool profile = true;      // which blocks are pushed; off: the first by position
  bool parallel = true;     // attention to what is here while the rest is fetched
  bool prefetch = true;     // the next layer's predicted selection is fetched ahead
  bool speculation = true;  // delivery of the rest in idle time

  // InvalidArgument names the field.
  absl::Status Check() const;
};

}  // namespace smartgen::transfer
