#include "common/transfer/request_options.h"

#include <array>
#include <utility>

namespace smartgen::transfer {
namespace {

constexpr std::array<std::pair<Handover, std::string_view>, 4> kHandovers = {
    {{Handover::kAuto, "auto"},
     {Handover::kSplit, "split"},
     {Handover::kAttend, "attend"},
     {Handover::kNone, "none"}}};

}  // namespace

std::string_view HandoverName(Handover handover) {
  for (const auto& [known, name] : kHandovers) {
    if (known == handover) return name;
  }
  return "unknown";
}

absl::StatusOr<Handover> ParseHandover(std::string_view name) {
  for (const auto& [known, text] : kHandovers) {
    if (text == name) return known;
  }
  return base::InvalidArgument("handover: want auto, split, attend or none, got \"{}\"", name);
}

absl::Status RequestOptions::Check() const {
  if (selector != "dense" && selector != "quest" && selector != "hata" && selector != "infinigen") {
    return base::InvalidArgument("selector: want dense, quest, hata or infinigen, got \"{}\"",
                                 selector);
  }
  if (selection != "when_needed" && selection != "never" && selection != "always") {
    return base::InvalidArgument("selection: want when_needed, never or always, got \"{}\"",
                                 selection);
  }
  // Written so that no number fails as well.
  if (!(selection_budget > 0 && selection_budget <= 1)) {
    return base::InvalidArgument("selection_budget: want more than 0 and at most 1, got {}",
                                 selection_budget);
  }
  if (!(speculative_ratio >= 0 && speculative_ratio <= 1)) {
    return base::InvalidArgument("speculative_ratio: want 0 to 1, got {}", speculative_ratio);
  }
  return absl::OkStatus();
}

}  // namespace smartgen::transfer
