// The k best of many, in ascending order of position; ties go to the lower position, so that the
// answer is one and the same everywhere.
#pragma once

#include <cstdint>
#include <span>

namespace smartgen::selector {

// The positions of the k greatest scores, each plus `base`. NaN counts as less than everything.
// REQUIRES: out.size() <= scores.size(); k is out.size().
void LargestK(std::span<const float> scores, int32_t base, std::span<int32_t> out);

// The positions of the k smallest distances, each plus `base`.
void SmallestK(std::span<const uint16_t> distances, int32_t base, std::span<int32_t> out);

}  // namespace smartgen::selector
