#include "common/selector/merge.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace smartgen::selector {

void MergePartial(std::span<float> v, float& s, std::span<const float> other_v, float other_s) {
  constexpr float kEmpty = -std::numeric_limits<float>::infinity();
  if (other_s == kEmpty) {
    if (s == kEmpty) std::fill(v.begin(), v.end(), 0.0f);
    return;
  }
  if (s == kEmpty) {
    std::copy(other_v.begin(), other_v.end(), v.begin());
    s = other_s;
    return;
  }
  const float m = std::max(s, other_s);
  const float a = std::exp(s - m);
  const float b = std::exp(other_s - m);
  const float sum = a + b;
  const float mine = a / sum;
  const float theirs = b / sum;
  for (size_t i = 0; i < v.size(); ++i) v[i] = mine * v[i] + theirs * other_v[i];
  s = m + std::log(sum);
}

}  // namespace smartgen::selector
