// Who gets KV room, and what is believed of a peer. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace smartgen::decode_server {

// Pages that must stay free beside a newcomer's own, so that those that run can grow for a while
// before anybody is pre-empted: one page each (16 tokens), and one for the newcomer. None when
// nothing runs: whatever fits may start.
inline int64_t HeadroomPages(int64_t running) { return running == 0 ? 0 : running + 1; }

// The youngest (greatest serial) is pre-empted: the oldest always gets on, so everybody does in the
// end.
inline std::optional<size_t> ChooseVictim(std::span<const uint64_t> serials) {
  std::optional<size_t> victim;
  for (size_t i = 0; i < serials.size(); ++i) {
    if (!victim || serials[i] > serials[*victim]) victim = i;
  }
  return victim;
}

// A lease that a broken peer claims to be endless, zero or no number would stop renewals or flood
// it with them.
inline double BelievableLease(double seconds) {
  constexpr double kMin = 0.1;
  constexpr double kMax = 24 * 3600;
  if (!(seconds >= kMin)) return kMin;  // also when it is not a number
  return std::min(seconds, kMax);
}

// What a peer says of the link; 0, not known, for what is no number or cannot be.
inline double BelievableRate(double bytes_per_second) {
  constexpr double kMin = 1;
  constexpr double kMax = 1e12;
  return bytes_per_second >= kMin && bytes_per_second <= kMax ? bytes_per_second : 0;
}
inline double BelievableTrip(double seconds) {
  constexpr double kMax = 10;
  return seconds > 0 && seconds <= kMax ? seconds : 0;
}

}  // namespace smartgen::decode_server
