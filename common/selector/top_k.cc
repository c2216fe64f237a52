#include "common/selector/top_k.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <vector>

namespace smartgen::selector {
namespace {

// Greater floats have greater keys; -0 and +0 the same; NaN 0. No branches: signs are anyone's
// guess.
inline uint32_t KeyOf(float score) {
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);
  const uint32_t flip = static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u;
  const uint32_t number = score == score ? ~0u : 0u;
  return (bits ^ flip) & number;
}

// The k-th greatest key and how many of that key belong to the k. One pass counts the keys by their
// top 11 bits; only those that share the k-th's are looked at in full.
struct Threshold {
  uint32_t key = 0;
  int64_t equal = 0;
};

Threshold FindThreshold(std::span<const uint32_t> keys, int64_t k) {
  constexpr int kShift = 21;
  std::array<int32_t, 2048> histogram{};
  for (const uint32_t key : keys) ++histogram[key >> kShift];
  uint32_t digit = 2047;
  int64_t left = k;
  for (; histogram[digit] < left; --digit) left -= histogram[digit];
  // One more than there are: every key is written, and kept or written over by the next.
  std::vector<uint32_t> same(static_cast<size_t>(histogram[digit]) + 1);
  size_t count = 0;
  for (const uint32_t key : keys) {
    same[count] = key;
    count += static_cast<size_t>((key >> kShift) == digit);
  }
  same.resize(count);
  std::nth_element(same.begin(), same.begin() + (left - 1), same.end(), std::greater<>());
  const uint32_t key = same[static_cast<size_t>(left - 1)];
  const auto greater = std::count_if(same.begin(), same.begin() + (left - 1),
                                     [key](uint32_t other) { return other > key; });
  return {.key = key, .equal = left - greater};
}

}  // namespace

void LargestK(std::span<const float> scores, int32_t base, std::span<int32_t> out) {
  if (out.empty()) return;
  const auto k = static_cast<int64_t>(out.size());
  std::vector<uint32_t> keys(scores.size());
  for (size_t i = 0; i < scores.size(); ++i) keys[i] = KeyOf(scores[i]);
  const Threshold threshold = FindThreshold(keys, k);
  int64_t taken = 0;
  int64_t equal = threshold.equal;
  for (size_t i = 0; i < keys.size() && taken < k; ++i) {
    // What is not taken is written over.
    const auto same = static_cast<int64_t>(keys[i] == threshold.key) & (equal > 0 ? 1 : 0);
    equal -= same;
    out[taken] = base + static_cast<int32_t>(i);
    taken += static_cast<int64_t>(keys[i] > threshold.key) | same;
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
