// What a request may choose of its transfer, and what a daemon's configuration gives as default.
#pragma once

#include <string>

#include "common/base/status.h"

namespace smartgen::transfer {

struct RequestOptions {
  // Which entries a step reads (modes that select): dense, quest, hata, infinigen.
  std::string selector = "quest";
  double selection_budget = 0.2;  // share of the context, in (0, 1]
  // Share of the KV that is delivered in idle time a step, in [0, 1]; 0: as the idle time allows.
  double speculative_ratio = 0.1;
  bool ship_queries = false;  // exact by query shipping; false: by split decode
  // Ablation.
  bool profile = true;      // which blocks are pushed; off: the first by position
  bool parallel = true;     // attention to what is here while the rest is fetched
  bool prefetch = true;     // the next layer's predicted selection is fetched ahead
  bool speculation = true;  // delivery of the rest in idle time

  // InvalidArgument names the field.
  absl::Status Check() const;
};

}  // namespace smartgen::transfer
