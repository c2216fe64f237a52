// Attention over one tile of keys: scores by register tiles on transposed keys, an online softmax,
// weighted values by the same register tiles. See kernels.h for the order of operations.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/executor/cpu/attention_kernels.cc"
#include "common/executor/cpu/targets.h"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "common/executor/cpu/vec-inl.h"
#include "common/executor/cpu/tile-inl.h"
// clang-format on
#include <algorithm>
#include <cstring>
#include <limits>

#include "common/executor/cpu/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace smartgen::executor::cpu::HWY_NAMESPACE {

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
inline constexpr int kTileVectors = kKeyTile / kLanes;

#if HWY_TARGET != HWY_SCALAR
// 4 rows of 4 floats, transposed to columns `out`, `out + ld`, ...
template <class Load>
HWY_INLINE void Transpose4x4(Load&& load, float* HWY_RESTRICT out, int64_t ld) {
  const hn::Full128<float> d4;
  const hn::Full128<double> d2;
  const auto r0 = load(0), r1 = load(1), r2 = load(2), r3 = load(3);
  const auto low01 = hn::BitCast(d2, hn::InterleaveLower(d4, r0, r1));
  const auto high01 = hn::BitCast(d2, hn::InterleaveUpper(d4, r0, r1));
  const auto low23 = hn::BitCast(d2, hn::InterleaveLower(d4, r2, r3));
  const auto high23 = hn::BitCast(d2, hn::InterleaveUpper(d4, r2, r3));
  hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, low01, low23)), d4, out);
  hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, low01, low23)), d4, out + ld);
  hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, high01, high23)), d4, out + 2 * ld);
  hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, high01, high23)), d4, out + 3 * ld);
}
#endif

// Rows of keys: one after the other, or each where its pointer says.
template <class T>
struct AdjacentRows {
  const T* first;
  int dim;
  HWY_INLINE const T* operator[](int token) const { return first + token * dim; }
};
template <class T>
struct ScatteredRows {
  const std::byte* const* rows;
  HWY_INLINE const T* operator[](int token) const {
    return reinterpret_cast<const T*>(rows[token]);
  }
};

template <class T, template <class> class Rows>
HWY_INLINE void TransposeTyped(const Rows<T> k, int tokens, int dim, float* HWY_RESTRICT out) {
  const auto one = [&](int token, int i) HWY_ATTR {
    if constexpr (sizeof(T) == 4) {
      return k[token][i];
    } else {
      const hn::CappedTag<float, 1> d1;
      const hn::Rebind<T, decltype(d1)> t1;
      return hn::GetLane(hn::PromoteTo(d1, hn::LoadU(t1, k[token] + i)));
    }
  };
  int t = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::Full128<float> d4;
  for (; t + 4 <= tokens; t += 4) {
    int i = 0;
    for (; i + 4 <= dim; i += 4) {
      const auto load = [&](int row) HWY_ATTR {
        const T* from = k[t + row] + i;
        if constexpr (sizeof(T) == 4) {
          return hn::LoadU(d4, from);
        } else {
          const hn::Rebind<T, decltype(d4)> dt;
          return hn::PromoteTo(d4, hn::LoadU(dt, from));
        }
      };
      Transpose4x4(load, out + i * kKeyTile + t, kKeyTile);
    }
    for (; i < dim; ++i) {
      for (int row = 0; row < 4; ++row) out[i * kKeyTile + t + row] = one(t + row, i);
    }
  }
#endif
  for (; t < tokens; ++t) {
    for (int i = 0; i < dim; ++i) out[i * kKeyTile + t] = one(t, i);
  }
}

void TransposeKeys(const std::byte* k, kv::DType dtype, int tokens, int dim, int column,
                   float* out) {
  const auto transpose = [&](auto type) HWY_ATTR {
    using T = decltype(type);
    TransposeTyped(AdjacentRows<T>{reinterpret_cast<const T*>(k), dim}, tokens, dim, out + column);
  };
  switch (dtype) {
    case kv::DType::kF32:
      return transpose(float());
    case kv::DType::kBF16:
      return transpose(hwy::bfloat16_t());
    case kv::DType::kF16:
      return transpose(hwy::float16_t());
  }
}

void GatherKeys(const std::byte* const* rows, kv::DType dtype, int tokens, int dim, float* out) {
  switch (dtype) {
    case kv::DType::kF32:
      return TransposeTyped(ScatteredRows<float>{rows}, tokens, dim, out);
    case kv::DType::kBF16:
      return TransposeTyped(ScatteredRows<hwy::bfloat16_t>{rows}, tokens, dim, out);
    case kv::DType::kF16:
      return TransposeTyped(ScatteredRows<hwy::float16_t>{rows}, tokens, dim, out);
  }
}

template <class T>
HWY_INLINE void GatherTyped(const std::byte* const* rows, int tokens, int dim, int padded_dim,
                            float* HWY_RESTRICT out) {
  const DF d;
  const hn::CappedTag<float, 1> d1;
  for (int t = 0; t < tokens; ++t, out += padded_dim) {
    const T* from = reinterpret_cast<const T*>(rows[t]);
    const auto copy = [&](auto tag, int i) HWY_ATTR {
      if constexpr (sizeof(T) == 4) {
        hn::StoreU(hn::LoadU(tag, from + i), tag, out + i);
      } else {
        const hn::Rebind<T, decltype(tag)> narrow;
        hn::StoreU(hn::PromoteTo(tag, hn::LoadU(narrow, from + i)), tag, out + i);
      }
    };
    int i = 0;
    for (; i + kLanes <= dim; i += kLanes) copy(d, i);
    for (; i < dim; ++i) copy(d1, i);
    for (; i < padded_dim; ++i) out[i] = 0.0f;
  }
}

void GatherValues(const std::byte* const* rows, kv::DType dtype, int tokens, int dim,
                  int padded_dim, float* out) {
  switch (dtype) {
    case kv::DType::kF32:
      return GatherTyped<float>(rows, tokens, dim, padded_dim, out);
    case kv::DType::kBF16:
      return GatherTyped<hwy::bfloat16_t>(rows, tokens, dim, padded_dim, out);
    case kv::DType::kF16:
      return GatherTyped<hwy::float16_t>(rows, tokens, dim, padded_dim, out);
  }
}

// Turns a row's scores into weights 2^(s - max), updates max and sum, returns the factor for what
// was accumulated before.
HWY_INLINE float SoftmaxRow(float* HWY_RESTRICT scores, int begin, int end, float* max,
                            float* sum) {
  const DF d;
  for (int i = 0; i < begin; ++i) scores[i] = kMinusInfinity;
  for (int i = end; i < kKeyTile; ++i) scores[i] = kMinusInfinity;
  VF top = hn::LoadU(d, scores);
  for (int i = 1; i < kTileVectors; ++i) top = hn::Max(top, hn::LoadU(d, scores + i * kLanes));
  const float new_max = std::max(*max, hn::GetLane(hn::MaxOfLanes(d, top)));
  HWY_ALIGN float partial[16];
  constexpr int kParts = 16 / kLanes;
  VF parts[kParts];
  for (int j = 0; j < kParts; ++j) parts[j] = hn::Zero(d);
  const VF shift = hn::Set(d, new_max);
#pragma GCC unroll 4
  for (int i = 0; i < kTileVectors; ++i) {
    const VF p = Exp2(hn::Sub(hn::LoadU(d, scores + i * kLanes), shift));
    hn::StoreU(p, d, scores + i * kLanes);
    parts[i % kParts] = hn::Add(parts[i % kParts], p);
  }
  for (int j = 0; j < kParts; ++j) hn::Store(parts[j], d, partial + j * kLanes);
  const float factor = hn::GetLane(Exp2(hn::Set(d, *max - new_max)));
  *sum = *sum * factor + Sum16(partial);
  *max = new_max;
  return factor;
}

void AttendTile(const AttendArgs& args, const SoftmaxState& state) {
  const DF d;
  constexpr int kStep = kMaxTileRows;
  HWY_ALIGN float scores[kStep * kKeyTile];
  for (int r0 = 0; r0 < args.rows; r0 += kStep) {
    const int rows = std::min(kStep, args.rows - r0);
    int first = kKeyTile, last = 0;
    for (int r = r0; r < r0 + rows; ++r) {
      if (args.begin[r] >= args.end[r]) continue;
      first = std::min<int>(first, args.begin[r]);
      last = std::max<int>(last, args.end[r]);
    }
    if (first >= last) continue;
    // Columns that no row of the step sees are left out: their weight is exactly 0.
    constexpr int kWidth = 2 * kLanes;
    const int panel_begin = first / kWidth * kWidth;
    const int panel_end = (last + kWidth - 1) / kWidth * kWidth;
    const float* q = args.q + static_cast<int64_t>(r0) * args.dim;
    for (int c = panel_begin; c < panel_end; c += kWidth) {
      TileRows(q, args.dim, rows, args.keys + c, kKeyTile, args.dim, scores + c, kKeyTile, false);
    }
    float* acc = state.acc + static_cast<int64_t>(r0) * args.padded_dim;
    for (int r = 0; r < rows; ++r) {
      float* row = scores + r * kKeyTile;
      if (args.begin[r0 + r] >= args.end[r0 + r]) {  // sees nothing here: weights 0, state as it is
        std::fill(row, row + kKeyTile, 0.0f);
        continue;
      }
      const float factor = SoftmaxRow(row, args.begin[r0 + r], args.end[r0 + r], &state.max[r0 + r],
                                      &state.sum[r0 + r]);
      const VF f = hn::Set(d, factor);
      float* to = acc + static_cast<int64_t>(r) * args.padded_dim;
      for (int i = 0; i < args.padded_dim; i += kLanes) {
        hn::StoreU(hn::Mul(hn::LoadU(d, to + i), f), d, to + i);
      }
    }
    const int key_end = last;
    for (int c = 0; c < args.padded_dim; c += kWidth) {
      TileRows(scores + first, kKeyTile, rows, args.values + first * args.padded_dim + c,
               args.padded_dim, key_end - first, acc + c, args.padded_dim, true);
    }
  }
}

HWY_INLINE void Clear(int rows, int padded_dim, const SoftmaxState& state) {
  std::fill(state.acc, state.acc + static_cast<int64_t>(rows) * padded_dim, 0.0f);
  std::fill(state.max, state.max + rows, kMinusInfinity);
  std::fill(state.sum, state.sum + rows, 0.0f);
}

void ResetState(int rows, int padded_dim, const SoftmaxState& state) {
  Clear(rows, padded_dim, state);
}

void MergeSpan(int rows, int padded_dim, const SoftmaxState& into, const SoftmaxState& from) {
  const DF d;
  for (int r = 0; r < rows; ++r) {
    if (from.max[r] == kMinusInfinity) continue;
    float* to = into.acc + static_cast<int64_t>(r) * padded_dim;
    const float* add = from.acc + static_cast<int64_t>(r) * padded_dim;
    const float max = std::max(into.max[r], from.max[r]);
    const VF mine = Exp2(hn::Set(d, into.max[r] - max));
    const VF theirs = Exp2(hn::Set(d, from.max[r] - max));
    for (int i = 0; i < padded_dim; i += kLanes) {
      const VF scaled = hn::Mul(hn::LoadU(d, to + i), mine);
      hn::StoreU(hn::MulAdd(hn::LoadU(d, add + i), theirs, scaled), d, to + i);
    }
    const VF sum = hn::Mul(hn::Set(d, into.sum[r]), mine);
    into.sum[r] = hn::GetLane(hn::MulAdd(hn::Set(d, from.sum[r]), theirs, sum));
    into.max[r] = max;
  }
  Clear(rows, padded_dim, from);
}

void FinishRow(const SoftmaxState& state, int row, int dim, int padded_dim, float* out) {
  const float* acc = state.acc + static_cast<int64_t>(row) * padded_dim;
  const float inverse = 1.0f / state.sum[row];
  for (int i = 0; i < dim; ++i) out[i] = acc[i] * inverse;
}

}  // namespace smartgen::executor::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace smartgen::executor::cpu {

HWY_EXPORT(TransposeKeys);
HWY_EXPORT(GatherKeys);
HWY_EXPORT(GatherValues);
HWY_EXPORT(AttendTile);
HWY_EXPORT(ResetState);
HWY_EXPORT(MergeSpan);
HWY_EXPORT(FinishRow);

void TransposeKeys(const std::byte* k, kv::DType dtype, int tokens, int dim, int column,
                   float* out) {
  HWY_DYNAMIC_DISPATCH(TransposeKeys)(k, dtype, tokens, dim, column, out);
}
void GatherKeys(const std::byte* const* rows, kv::DType dtype, int tokens, int dim, float* out) {
  HWY_DYNAMIC_DISPATCH(GatherKeys)(rows, dtype, tokens, dim, out);
}
void GatherValues(const std::byte* const* rows, kv::DType dtype, int tokens, int dim,
                  int padded_dim, float* out) {
  HWY_DYNAMIC_DISPATCH(GatherValues)(rows, dtype, tokens, dim, padded_dim, out);
}
void AttendTile(const AttendArgs& args, const SoftmaxState& state) {
  HWY_DYNAMIC_DISPATCH(AttendTile)(args, state);
}
void ResetState(int rows, int padded_dim, const SoftmaxState& state) {
  HWY_DYNAMIC_DISPATCH(ResetState)(rows, padded_dim, state);
}
void MergeSpan(int rows, int padded_dim, const SoftmaxState& into, const SoftmaxState& from) {
  HWY_DYNAMIC_DISPATCH(MergeSpan)(rows, padded_dim, into, from);
}
void FinishRow(const SoftmaxState& state, int row, int dim, int padded_dim, float* out) {
  HWY_DYNAMIC_DISPATCH(FinishRow)(state, row, dim, padded_dim, out);
}

}  // namespace smartgen::executor::cpu
#endif  // HWY_ONCE
