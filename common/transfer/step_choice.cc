#include "common/transfer/step_choice.h"

#include <algorithm>

namespace smartgen::transfer {

std::string_view StepKindName(StepKind kind) {
  switch (kind) {
    case StepKind::kFetch:
      return "fetch";
    case StepKind::kSplit:
      return "split";
    case StepKind::kAttend:
      return "attend";
    case StepKind::kWait:
      return "wait";
  }
  return "unknown";
}

StepCosts PredictStep(const StepOutlook& outlook) {
  const auto carried = [&](double bytes) {
    return outlook.bytes_per_second > 0 ? bytes / outlook.bytes_per_second : 0;
  };
  const double trip = outlook.round_trip_seconds;
  const double trips =
      (outlook.missed_bytes > 0 ? outlook.layers * trip : 0) + (outlook.owed_bytes > 0 ? trip : 0);
  StepCosts costs;
  costs.fetch = outlook.step_seconds + carried(outlook.missed_bytes + outlook.owed_bytes) + trips;
  // A step there, without the way there and back.
  const double there = std::max(outlook.split_seconds - trip, 0.0);
  costs.split = outlook.split_seconds + static_cast<double>(outlook.replayed) * there;
  costs.attend = outlook.step_seconds + outlook.layers * (trip + carried(outlook.attend_bytes) +
                                                          outlook.attend_queue_seconds);
  costs.wait = outlook.step_seconds + carried(outlook.remaining_bytes);
  return costs;
}

StepKind Soonest(const StepCosts& costs) {
  StepKind best = StepKind::kFetch;
  double seconds = costs.fetch;
  const auto consider = [&](StepKind kind, double cost) {
    if (cost >= seconds) return;
    best = kind;
    seconds = cost;
  };
  consider(StepKind::kWait, costs.wait);
  consider(StepKind::kSplit, costs.split);
  consider(StepKind::kAttend, costs.attend);
  return best;
}

}  // namespace smartgen::transfer
