// The register tile that all products are made of. Included once for every target (see vec-inl.h).
#if defined(SMARTGEN_EXECUTOR_CPU_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SMARTGEN_EXECUTOR_CPU_TILE_INL_H_
#undef SMARTGEN_EXECUTOR_CPU_TILE_INL_H_
#else
#define SMARTGEN_EXECUTOR_CPU_TILE_INL_H_
#endif

#include <cstdint>

#include "common/executor/cpu/vec-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace smartgen::executor::cpu::HWY_NAMESPACE {

// 2 * kMaxTileRows accumulators, two vectors of b and one broadcast fit in the registers.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || HWY_ARCH_ARM_A64
inline constexpr int kMaxTileRows = 12;
#else
inline constexpr int kMaxTileRows = 6;
#endif

template <int kRows>
HWY_INLINE void MicroTile(const float* HWY_RESTRICT a, int64_t lda, const float* HWY_RESTRICT b,
                          int64_t ldb, int64_t k, float* HWY_RESTRICT c, int64_t ldc,
                          bool accumulate) {
  const DF d;
  VF acc0[kRows], acc1[kRows];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    acc0[r] = accumulate ? hn::LoadU(d, c + r * ldc) : hn::Zero(d);
    acc1[r] = accumulate ? hn::LoadU(d, c + r * ldc + kLanes) : hn::Zero(d);
  }
  for (int64_t i = 0; i < k; ++i) {
    const VF b0 = hn::LoadU(d, b + i * ldb);
    const VF b1 = hn::LoadU(d, b + i * ldb + kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const VF x = hn::Set(d, a[r * lda + i]);
      acc0[r] = hn::MulAdd(x, b0, acc0[r]);
      acc1[r] = hn::MulAdd(x, b1, acc1[r]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    hn::StoreU(acc0[r], d, c + r * ldc);
    hn::StoreU(acc1[r], d, c + r * ldc + kLanes);
  }
}

template <int kRows>
HWY_INLINE void TailTile(int rows, const float* a, int64_t lda, const float* b, int64_t ldb,
                         int64_t k, float* c, int64_t ldc, bool accumulate) {
  if constexpr (kRows > 0) {
    if (rows == kRows) {
      MicroTile<kRows>(a, lda, b, ldb, k, c, ldc, accumulate);
    } else {
      TailTile<kRows - 1>(rows, a, lda, b, ldb, k, c, ldc, accumulate);
    }
  }
}

HWY_INLINE void TileRows(const float* a, int64_t lda, int rows, const float* b, int64_t ldb,
                         int64_t k, float* c, int64_t ldc, bool accumulate) {
  int r = 0;
  for (; r + kMaxTileRows <= rows; r += kMaxTileRows) {
    MicroTile<kMaxTileRows>(a + r * lda, lda, b, ldb, k, c + r * ldc, ldc, accumulate);
  }
  TailTile<kMaxTileRows - 1>(rows - r, a + r * lda, lda, b, ldb, k, c + r * ldc, ldc, accumulate);
}

}  // namespace smartgen::executor::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // per-target guard
