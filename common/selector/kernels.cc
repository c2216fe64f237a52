#include "common/selector/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/selector/kernels.cc"
// SSE4, AVX2 and AVX-512 on x86, NEON on Arm; a lane block of 16 must be a whole number of vectors
// whose size the compiler knows.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on
#include <bit>
#include <cstring>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace smartgen::selector::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, kSumLanes>;
using VF = hn::Vec<DF>;
constexpr int kLanes = HWY_LANES(float) < kSumLanes ? HWY_LANES(float) : kSumLanes;
constexpr int kVectors = kSumLanes / kLanes;

template <typename T>
HWY_INLINE VF LoadAs(const std::byte* at) {
  const DF d;
  if constexpr (sizeof(T) == sizeof(float)) {
    return hn::LoadU(d, reinterpret_cast<const float*>(at));
  } else {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<T, DF>(), reinterpret_cast<const T*>(at)));
  }
}

// sums[j] += weights[j] * elements[j] for 16 channels.
template <typename T>
HWY_INLINE void AddProducts(const std::byte* elements, const float* weights, VF* sums) {
  const DF d;
  for (int v = 0; v < kVectors; ++v) {
    const VF x = LoadAs<T>(elements + static_cast<size_t>(v) * kLanes * sizeof(T));
    sums[v] = hn::Add(sums[v], hn::Mul(hn::LoadU(d, weights + v * kLanes), x));
  }
}

template <typename T>
HWY_INLINE float QuestScore(const std::byte* minima, int dim, const float* positive,
                            const float* negative) {
  const DF d;
  const std::byte* maxima = minima + static_cast<size_t>(dim) * sizeof(T);
  VF above[kVectors];
  VF below[kVectors];
  for (int v = 0; v < kVectors; ++v) above[v] = below[v] = hn::Zero(d);
  int c = 0;
  for (; c + kSumLanes <= dim; c += kSumLanes) {
    AddProducts<T>(maxima + c * sizeof(T), positive + c, above);
    AddProducts<T>(minima + c * sizeof(T), negative + c, below);
  }
  if (c < dim) {
    std::byte tail[2][kSumLanes * sizeof(T)] = {};
    std::memcpy(tail[0], maxima + c * sizeof(T), (dim - c) * sizeof(T));
    std::memcpy(tail[1], minima + c * sizeof(T), (dim - c) * sizeof(T));
    AddProducts<T>(tail[0], positive + c, above);
    AddProducts<T>(tail[1], negative + c, below);
  }
  float lanes[kSumLanes];
  for (int v = 0; v < kVectors; ++v) hn::StoreU(hn::Add(above[v], below[v]), d, lanes + v * kLanes);
  return SumLanes(lanes);
}

template <typename T>
void QuestScoresOf(const std::byte* units, int64_t stride, int64_t pages, int dim,
                   const float* positive, const float* negative, float* out) {
  for (int64_t p = 0; p < pages; ++p) {
    out[p] = QuestScore<T>(units + p * stride, dim, positive, negative);
  }
}

void QuestScores(const std::byte* units, int64_t stride, int64_t pages, kv::DType dtype, int dim,
                 const float* positive, const float* negative, float* out) {
  switch (dtype) {
    case kv::DType::kF32:
      return QuestScoresOf<float>(units, stride, pages, dim, positive, negative, out);
    case kv::DType::kBF16:
      return QuestScoresOf<hwy::bfloat16_t>(units, stride, pages, dim, positive, negative, out);
    case kv::DType::kF16:
      return QuestScoresOf<hwy::float16_t>(units, stride, pages, dim, positive, negative, out);
  }
}

template <typename T>
void PartialScoresOf(const std::byte* units, int64_t stride, int64_t pages, int channels,
                     const float* query, float* out) {
  const DF d;
  for (int64_t p = 0; p < pages; ++p) {
    const std::byte* unit = units + p * stride;
    VF sums[kVectors];
    for (int v = 0; v < kVectors; ++v) sums[v] = hn::Zero(d);
    for (int c = 0; c < channels; ++c) {
      const VF q = hn::Set(d, query[c]);
      for (int v = 0; v < kVectors; ++v) {
        const VF k =
            LoadAs<T>(unit + (static_cast<size_t>(c) * kSumLanes + v * kLanes) * sizeof(T));
        sums[v] = hn::Add(sums[v], hn::Mul(q, k));
      }
    }
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sums[v], d, out + p * kSumLanes + v * kLanes);
  }
}

void PartialScores(const std::byte* units, int64_t stride, int64_t pages, kv::DType dtype,
                   int channels, const float* query, float* out) {
  switch (dtype) {
    case kv::DType::kF32:
      return PartialScoresOf<float>(units, stride, pages, channels, query, out);
    case kv::DType::kBF16:
      return PartialScoresOf<hwy::bfloat16_t>(units, stride, pages, channels, query, out);
    case kv::DType::kF16:
      return PartialScoresOf<hwy::float16_t>(units, stride, pages, channels, query, out);
  }
}

HWY_INLINE uint64_t Word(const std::byte* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

// 128-bit codes: a vector holds whole codes, and the query's code is repeated along it.
void Hamming128(const std::byte* units, int64_t stride, int64_t pages, const std::byte* codes,
                int queries, uint16_t* out) {
  using D = hn::CappedTag<uint64_t, 8>;
  const D d;
  constexpr int kWords = HWY_LANES(uint64_t) < 8 ? HWY_LANES(uint64_t) : 8;
  HWY_ALIGN uint64_t repeated[kMaxQueryCodes * 8];
  for (int q = 0; q < queries; ++q) {
    for (int w = 0; w < kWords; ++w) repeated[q * kWords + w] = Word(codes + q * 16 + w % 2 * 8);
  }
  HWY_ALIGN uint64_t counts[2 * kSumLanes];
  for (int64_t p = 0; p < pages; ++p) {
    const auto* unit = reinterpret_cast<const uint64_t*>(units + p * stride);
    for (int w = 0; w < 2 * kSumLanes; w += kWords) {
      const auto keys = hn::LoadU(d, unit + w);
      auto sum = hn::Zero(d);
      for (int q = 0; q < queries; ++q) {
        const auto code = hn::Load(d, repeated + q * kWords);
        sum = hn::Add(sum, hn::PopulationCount(hn::Xor(keys, code)));
      }
      hn::Store(sum, d, counts + w);
    }
    for (int t = 0; t < kSumLanes; ++t) {
      out[p * kSumLanes + t] = static_cast<uint16_t>(counts[2 * t] + counts[2 * t + 1]);
    }
  }
}

void HammingDistances(const std::byte* units, int64_t stride, int64_t pages, int bytes,
                      const std::byte* codes, int queries, uint16_t* out) {
  if (bytes == 16) return Hamming128(units, stride, pages, codes, queries, out);
  for (int64_t p = 0; p < pages; ++p) {
    for (int t = 0; t < kSumLanes; ++t) {
      const std::byte* key = units + p * stride + static_cast<int64_t>(t) * bytes;
      int sum = 0;
      for (int q = 0; q < queries; ++q) {
        for (int b = 0; b < bytes; b += 8) {
          sum += std::popcount(Word(key + b) ^ Word(codes + static_cast<int64_t>(q) * bytes + b));
        }
      }
      out[p * kSumLanes + t] = static_cast<uint16_t>(sum);
    }
  }
}

// kRows rows times 16 columns stay in registers.
template <int kRows>
HWY_INLINE void ProjectTile(const float* x, int inner, const float* matrix, int columns,
                            float* out) {
  const DF d;
  VF sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::Zero(d);
  }
  for (int c = 0; c < inner; ++c) {
    for (int v = 0; v < kVectors; ++v) {
      const VF w = hn::LoadU(d, matrix + static_cast<int64_t>(c) * columns + v * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const VF xs = hn::Set(d, x[static_cast<int64_t>(r) * inner + c]);
        sums[r][v] = hn::Add(sums[r][v], hn::Mul(xs, w));
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(sums[r][v], d, out + static_cast<int64_t>(r) * columns + v * kLanes);
    }
  }
}

void Project(const float* x, int64_t rows, int inner, const float* matrix, int columns,
             float* out) {
  for (int m = 0; m < columns; m += kSumLanes) {
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) {
      ProjectTile<4>(x + r * inner, inner, matrix + m, columns, out + r * columns + m);
    }
    for (; r < rows; ++r) {
      ProjectTile<1>(x + r * inner, inner, matrix + m, columns, out + r * columns + m);
    }
  }
}

int64_t CountAbove(const float* scores, int64_t count, float threshold) {
  const DF d;
  const VF limit = hn::Set(d, threshold);
  int64_t above = 0;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    above += static_cast<int64_t>(hn::CountTrue(d, hn::Gt(hn::LoadU(d, scores + i), limit)));
  }
  for (; i < count; ++i) above += scores[i] > threshold ? 1 : 0;
  return above;
}

float Greatest(const float* scores, int64_t count) {
  const DF d;
  float lanes[kLanes];
  VF best = hn::Set(d, -std::numeric_limits<float>::infinity());
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    // Not Max, whose treatment of NaN differs among instruction sets.
    const VF x = hn::LoadU(d, scores + i);
    best = hn::IfThenElse(hn::Gt(x, best), x, best);
  }
  hn::StoreU(best, d, lanes);
  float greatest = lanes[0];
  for (int j = 1; j < kLanes; ++j) greatest = lanes[j] > greatest ? lanes[j] : greatest;
  for (; i < count; ++i) greatest = scores[i] > greatest ? scores[i] : greatest;
  return greatest;
}

}  // namespace smartgen::selector::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace smartgen::selector {

HWY_EXPORT(QuestScores);
HWY_EXPORT(PartialScores);
HWY_EXPORT(HammingDistances);
HWY_EXPORT(Project);
HWY_EXPORT(CountAbove);
HWY_EXPORT(Greatest);

void QuestScores(const std::byte* units, int64_t stride, int64_t pages, kv::DType dtype,
                 int head_dim, const float* positive, const float* negative, float* out) {
  HWY_DYNAMIC_DISPATCH(QuestScores)
  (units, stride, pages, dtype, head_dim, positive, negative, out);
}
void PartialScores(const std::byte* units, int64_t stride, int64_t pages, kv::DType dtype,
                   int channels, const float* query, float* out) {
  HWY_DYNAMIC_DISPATCH(PartialScores)(units, stride, pages, dtype, channels, query, out);
}
void HammingDistances(const std::byte* units, int64_t stride, int64_t pages, int bytes,
                      const std::byte* query_codes, int queries, uint16_t* out) {
  HWY_DYNAMIC_DISPATCH(HammingDistances)(units, stride, pages, bytes, query_codes, queries, out);
}
void Project(const float* x, int64_t rows, int inner, const float* matrix, int columns,
             float* out) {
  HWY_DYNAMIC_DISPATCH(Project)(x, rows, inner, matrix, columns, out);
}
int64_t CountAbove(std::span<const float> scores, float threshold) {
  return HWY_DYNAMIC_DISPATCH(CountAbove)(scores.data(), static_cast<int64_t>(scores.size()),
                                          threshold);
}
float Greatest(std::span<const float> scores) {
  return HWY_DYNAMIC_DISPATCH(Greatest)(scores.data(), static_cast<int64_t>(scores.size()));
}

}  // namespace smartgen::selector
#endif  // HWY_ONCE
