// The passes over a whole vocabulary (49k to 256k floats a token), written so that compilers
// vectorise them. All work in blocks, whose maxima or sums let later steps skip most of the array.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace smartgen::sampling {

inline constexpr size_t kBlock = 64;

struct ScanResult {
  float max = 0;         // -infinity if there is nothing above it
  bool has_nan = false;  // then max means nothing
};

// block_max[b] becomes the largest of logits[b * kBlock, (b + 1) * kBlock).
ScanResult Scan(std::span<const float> logits, std::vector<float>& block_max);

// The first index that holds `scan.max`. `block_max` is of the same logits.
int64_t FirstMax(std::span<const float> logits, const std::vector<float>& block_max, float max);

// values[i] = exp((values[i] - max) * scale), relative error below 3e-7, 0 below exp(-87). Returns
// the sum; block_sum as above. Requires values[i] <= max, max finite, 0 < scale < 1e6.
double ExpInPlace(std::span<float> values, float max, float scale, std::vector<double>& block_sum);
// The same sum, values left as they are, scale 1.
double SumExp(std::span<const float> values, float max);
// The same function of one value.
float ExpOf(float value, float max, float scale);

}  // namespace smartgen::sampling
