#include "common/sampling/kernels.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace smartgen::sampling {
namespace {

constexpr size_t kLanes = 16;
constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

// exp for x <= 0 as 2^n * e^r, |r| <= ln(2) / 2; e^r by its Taylor series to r^7 (remainder below
// 6e-9). ln(2) is split in two, so that n * high is exact.
inline float ExpNonPositive(float x) {
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  const float clamped = x < -87.0f ? -87.0f : x;
  const auto n = static_cast<int32_t>(clamped * kLog2E - 0.5f);
  const auto nf = static_cast<float>(n);
  const float r = clamped - nf * kLn2High - nf * kLn2Low;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const float result = p * std::bit_cast<float>((n + 127) << 23);
  return x < -87.0f ? 0.0f : result;
}

// Sums f(value) over a block in kLanes independent sums: the order is fixed, whatever the compiler.
template <typename F>
inline double SumBlock(size_t count, F f) {
  float lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) lanes[j] += f(i + j);
  }
  for (size_t j = 0; i + j < count; ++j) lanes[j] += f(i + j);
  double sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

}  // namespace

ScanResult Scan(std::span<const float> logits, std::vector<float>& block_max) {
  const size_t size = logits.size();
  block_max.resize((size + kBlock - 1) / kBlock);
  ScanResult result{.max = kNegativeInfinity};
  int32_t unordered[kLanes] = {};
  for (size_t begin = 0, block = 0; begin < size; begin += kBlock, ++block) {
    const float* x = logits.data() + begin;
    const size_t count = std::min(kBlock, size - begin);
    float lanes[kLanes];
    std::fill(lanes, lanes + kLanes, kNegativeInfinity);
    size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      for (size_t j = 0; j < kLanes; ++j) {
        lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
        unordered[j] |= x[i + j] != x[i + j] ? 1 : 0;
      }
    }
    for (size_t j = 0; i + j < count; ++j) {
      lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
      unordered[j] |= x[i + j] != x[i + j] ? 1 : 0;
    }
    const float max = *std::max_element(lanes, lanes + kLanes);
    block_max[block] = max;
    result.max = std::max(result.max, max);
  }
  for (const int32_t lane : unordered) result.has_nan |= lane != 0;
  return result;
}

int64_t FirstMax(std::span<const float> logits, const std::vector<float>& block_max, float max) {
  const auto block = std::find(block_max.begin(), block_max.end(), max) - block_max.begin();
  const auto begin = logits.begin() + block * static_cast<int64_t>(kBlock);
  return std::find(begin, logits.end(), max) - logits.begin();
}

double ExpInPlace(std::span<float> values, float max, float scale, std::vector<double>& block_sum) {
  block_sum.resize((values.size() + kBlock - 1) / kBlock);
  double total = 0;
  for (size_t begin = 0, block = 0; begin < values.size(); begin += kBlock, ++block) {
    float* x = values.data() + begin;
    const size_t count = std::min(kBlock, values.size() - begin);
    for (size_t i = 0; i < count; ++i) x[i] = ExpNonPositive((x[i] - max) * scale);
    block_sum[block] = SumBlock(count, [x](size_t i) { return x[i]; });
    total += block_sum[block];
  }
  return total;
}

double SumExp(std::span<const float> values, float max) {
  double total = 0;
  for (size_t begin = 0; begin < values.size(); begin += kBlock) {
    const float* x = values.data() + begin;
    total += SumBlock(std::min(kBlock, values.size() - begin),
                      [x, max](size_t i) { return ExpNonPositive(x[i] - max); });
  }
  return total;
}

float ExpOf(float value, float max, float scale) { return ExpNonPositive((value - max) * scale); }

}  // namespace smartgen::sampling
