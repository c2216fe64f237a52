// Random numbers that are the same on every platform, for hash weights and sampling in training.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace smartgen::selector {

// SplitMix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // In [0, n), n > 0. The bias is n / 2^32 at most.
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>((Next() >> 32) * n >> 32); }
  // Mean 0, variance 1: the sum of 12 uniform numbers less 6, whose distribution is within 0.003 of
  // the normal one. Integer sums are exact, where a logarithm would differ among math libraries.
  float Normal() {
    int64_t sum = 0;
    for (int i = 0; i < 6; ++i) {
      const uint64_t bits = Next();
      sum += static_cast<int64_t>(bits >> 32) + static_cast<int64_t>(bits & 0xffffffff);
    }
    return static_cast<float>(static_cast<double>(sum - (int64_t{6} << 32)) * 0x1p-32);
  }

 private:
  uint64_t state_;
};

// [dim][bits] for plain locality-sensitive hashing.
inline std::vector<float> RandomHashWeights(int dim, int bits, uint64_t seed) {
  Random random(seed);
  std::vector<float> weights(static_cast<size_t>(dim) * bits);
  for (float& w : weights) w = random.Normal();
  return weights;
}

}  // namespace smartgen::selector
