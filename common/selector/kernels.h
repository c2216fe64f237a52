// The loops over metadata, compiled for several instruction sets (Highway picks one at run time).
// Every result is the same bit for bit on all of them and equal to the scalar formula stated here:
// sums run in the order given, and no product is fused into a sum. That lets both sides of a
// transfer select the same tokens on unlike machines.
//
// `units` points at one KV head's part of the first unit; the next unit is `stride` bytes further
// (metadata.h has the layout).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/kv/layout.h"

namespace smartgen::selector {

// Channels summed side by side: channel c goes to lane c % 16.
inline constexpr int kSumLanes = 16;

// Query codes that HammingDistances takes at once.
inline constexpr int kMaxQueryCodes = 64;

// Sums of 16 lanes in a fixed order: i with i + 8, then i + 4, i + 2, i + 1.
inline float SumLanes(const float* lanes) {
  float s[8];
  for (int i = 0; i < 8; ++i) s[i] = lanes[i] + lanes[i + 8];
  for (int i = 0; i < 4; ++i) s[i] += s[i + 4];
  return (s[0] + s[2]) + (s[1] + s[3]);
}

// out[p] = sum over channels of positive[c] * max[p][c] and negative[c] * min[p][c]: lane sums of
// the former and of the latter, added lane by lane, then SumLanes. With positive = sum of max(q, 0)
// and negative = sum of min(q, 0) over a group's queries it is the group's sum of
// max(q * min, q * max). `positive` and `negative` are padded with zeros to a multiple of 16.
void QuestScores(const std::byte* units, int64_t stride, int64_t pages, kv::DType dtype,
                 int head_dim, const float* positive, const float* negative, float* out);

// out[16 p + t] = sum over c, ascending, of query[c] * unit p's element (c, t).
void PartialScores(const std::byte* units, int64_t stride, int64_t pages, kv::DType dtype,
                   int channels, const float* query, float* out);

// out[16 p + t] = sum over `queries` codes of the number of bits in which code and unit p's code t
// differ. Codes are `bytes` long, a multiple of 8; `queries` is at most kMaxQueryCodes.
void HammingDistances(const std::byte* units, int64_t stride, int64_t pages, int bytes,
                      const std::byte* query_codes, int queries, uint16_t* out);

// out[r][m] = sum over c, ascending, of x[r][c] * matrix[c][m]. `columns` is a multiple of 16.
void Project(const float* x, int64_t rows, int inner, const float* matrix, int columns, float* out);

// How many are greater than the threshold (NaN is not).
int64_t CountAbove(std::span<const float> scores, float threshold);
// -infinity if nothing is greater than that.
float Greatest(std::span<const float> scores);

}  // namespace smartgen::selector
