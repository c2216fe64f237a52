// How a request's KV gets to the decode side (smartgen.md, section 7).
#pragma once

#include <string_view>

#include "common/base/status.h"

namespace smartgen::transfer {

enum class Mode {
  kAuto,      // the scheduler's choice, lossless first
  kFull,      // everything travels, decoding waits for all of it; the baseline
  kLocal,     // the decode side computes the prompt itself
  kExact,     // full attention; what is not here yet is computed where it is
  kSmartGen,  // a selection; profile, on-demand, speculative
  kPartial,   // a selection; the first blocks of each layer, then on-demand; baseline
  kRandom,    // a selection; random blocks, then on-demand; baseline
};
std::string_view ModeName(Mode mode);  // "auto", "full", ...
// InvalidArgument lists the names.
absl::StatusOr<Mode> ParseMode(std::string_view name);

// Decoding reads a selection of the KV.
constexpr bool Selects(Mode mode) {
  return mode == Mode::kSmartGen || mode == Mode::kPartial || mode == Mode::kRandom;
}

}  // namespace smartgen::transfer
