#include "common/selector/top_k.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <vector>

namespace smartgen::selector {
namespace {

// Greater floats have greater keys; -0 and +0 the same; NaN 0.
inline uint32_t KeyOf(float score) {
  if (score != score) return 0;
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// The k-th greatest key and how many of that key belong to the k. Radix search from the top: 11, 11
// and 10 bits, each pass over the keys that share the digits found so far.
struct Threshold {
  uint32_t key = 0;
  int64_t equal = 0;
};

Threshold FindThreshold(std::span<const float> scores, int64_t k) {
  Threshold found{.key = 0, .equal = k};
  uint32_t known = 0;  // mask of the digits found
  for (const auto& [shift, bits] : {std::pair{21, 11}, std::pair{10, 11}, std::pair{0, 10}}) {
    std::array<int32_t, 2048> histogram{};
    const uint32_t digit_mask = (1u << bits) - 1;
    for (const float score : scores) {
      const uint32_t key = KeyOf(score);
      if ((key & known) == found.key) ++histogram[(key >> shift) & digit_mask];
    }
    uint32_t digit = digit_mask;
    for (; histogram[digit] < found.equal; --digit) found.equal -= histogram[digit];
    found.key |= digit << shift;
    known |= digit_mask << shift;
    if (histogram[digit] == found.equal) {
      // All that share these digits belong to the k: the rest of the digits is "any".
      return {.key = found.key, .equal = found.equal};
    }
  }
  return found;
}

}  // namespace

void LargestK(std::span<const float> scores, int32_t base, std::span<int32_t> out) {
  if (out.empty()) return;
  const auto k = static_cast<int64_t>(out.size());
  const Threshold threshold = FindThreshold(scores, k);
  int64_t taken = 0;
  int64_t equal = threshold.equal;
  for (size_t i = 0; i < scores.size() && taken < k; ++i) {
    const uint32_t key = KeyOf(scores[i]);
    if (key < threshold.key) continue;
    if (key == threshold.key && equal-- <= 0) continue;
    out[taken++] = base + static_cast<int32_t>(i);
  }
}

void SmallestK(std::span<const uint16_t> distances, int32_t base, std::span<int32_t> out) {
  if (out.empty()) return;
  const auto k = static_cast<int64_t>(out.size());
  const uint16_t greatest = *std::max_element(distances.begin(), distances.end());
  std::vector<int32_t> histogram(static_cast<size_t>(greatest) + 1);
  for (const uint16_t distance : distances) ++histogram[distance];
  int64_t equal = k;
  uint16_t threshold = 0;
  for (; histogram[threshold] < equal; ++threshold) equal -= histogram[threshold];
  int64_t taken = 0;
  for (size_t i = 0; i < distances.size() && taken < k; ++i) {
    if (distances[i] > threshold) continue;
    if (distances[i] == threshold && equal-- <= 0) continue;
    out[taken++] = base + static_cast<int32_t>(i);
  }
}

}  // namespace smartgen::selector
