// Matrix kernels: register tiles of MR rows x two vectors over float panels, and the same products
// straight from packed weights. The order of operations is kernels.h's promise: one multiply-add
// chain over k.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/executor/cpu/gemm_kernels.cc"
#include "common/executor/cpu/targets.h"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "common/executor/cpu/vec-inl.h"
#include "common/executor/cpu/tile-inl.h"
#include "common/executor/cpu/decode-inl.h"
// clang-format on
#include "common/executor/cpu/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace smartgen::executor::cpu::HWY_NAMESPACE {

void GemmTile(const float* a, int64_t lda, int rows, const float* b, int64_t ldb, int64_t k,
              float* c, int64_t ldc, bool accumulate) {
  TileRows(a, lda, rows, b, ldb, k, c, ldc, accumulate);
}

void ExpandPanel(const PanelShape& shape, const std::byte* panel, int64_t k_begin, int64_t k_end,
                 float* out) {
  const DF d;
  DispatchFormat(shape, [&]<class Format>(Format format) HWY_ATTR {
    const int64_t step = shape.BlockBytes();
    const std::byte* p = panel + k_begin / shape.block * step;
    for (int64_t k = k_begin; k < k_end; k += shape.block, p += step) {
      const std::byte* panels[1] = {p};
      float* to = out + (k - k_begin) * 2 * kLanes;
      const int64_t valid = k_end - k;
      DecodeBlock<2>(format, shape, panels, [&](int i, const VF* w) HWY_ATTR {
        if (i >= valid) return;
        hn::StoreU(w[0], d, to + i * 2 * kLanes);
        hn::StoreU(w[1], d, to + (i * 2 + 1) * kLanes);
      });
    }
  });
}

template <int kRows, int kPanels>
HWY_INLINE void Gemv(const PanelShape& shape, const std::byte* const* blocks,
                     const float* HWY_RESTRICT x, int64_t ldx, float* HWY_RESTRICT c, int64_t ldc) {
  constexpr int kVectors = 2 * kPanels;
  const DF d;
  DispatchFormat(shape, [&]<class Format>(Format format) HWY_ATTR {
    VF acc[kRows][kVectors];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::Zero(d);
    }
    const int64_t step = shape.BlockBytes();
    const std::byte* panels[kPanels];
    for (int i = 0; i < kPanels; ++i) panels[i] = blocks[i];
    for (int64_t k = 0; k < shape.k; k += shape.block) {
      const int64_t valid = shape.k - k;
      DecodeBlock<kVectors>(format, shape, panels, [&](int i, const VF* w) HWY_ATTR {
        if (Format::kPadded && i >= valid) return;
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const VF xv = hn::Set(d, x[r * ldx + k + i]);
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::MulAdd(xv, w[v], acc[r][v]);
        }
      });
      for (int i = 0; i < kPanels; ++i) panels[i] += step;
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) hn::StoreU(acc[r][v], d, c + r * ldc + v * kLanes);
    }
  });
}

void GemvPanels(const PanelShape& shape, const std::byte* const* panels, int count, const float* x,
                int64_t ldx, int rows, float* c, int64_t ldc) {
  if (count == 2 && rows == 1) return Gemv<1, 2>(shape, panels, x, ldx, c, ldc);
  if (count == 2 && rows == 2) return Gemv<2, 2>(shape, panels, x, ldx, c, ldc);
  for (int i = 0; i < count; ++i, ++panels, c += 2 * kLanes) {
    switch (rows) {
      case 1:
        Gemv<1, 1>(shape, panels, x, ldx, c, ldc);
        break;
      case 2:
        Gemv<2, 1>(shape, panels, x, ldx, c, ldc);
        break;
      case 3:
        Gemv<3, 1>(shape, panels, x, ldx, c, ldc);
        break;
      case 4:
        Gemv<4, 1>(shape, panels, x, ldx, c, ldc);
        break;
      default:
        HWY_ABORT("GemvPanels: %d rows", rows);
    }
  }
}

int PanelWidth() { return 2 * kLanes; }
const char* InstructionSet() { return hwy::TargetName(HWY_TARGET); }

}  // namespace smartgen::executor::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace smartgen::executor::cpu {

HWY_EXPORT(GemmTile);
HWY_EXPORT(ExpandPanel);
HWY_EXPORT(GemvPanels);
HWY_EXPORT(PanelWidth);
HWY_EXPORT(InstructionSet);

int PanelWidth() { return HWY_DYNAMIC_DISPATCH(PanelWidth)(); }
const char* InstructionSet() { return HWY_DYNAMIC_DISPATCH(InstructionSet)(); }

void GemmTile(const float* a, int64_t lda, int rows, const float* b, int64_t ldb, int64_t k,
              float* c, int64_t ldc, bool accumulate) {
  HWY_DYNAMIC_DISPATCH(GemmTile)(a, lda, rows, b, ldb, k, c, ldc, accumulate);
}

void ExpandPanel(const PanelShape& shape, const std::byte* panel, int64_t k_begin, int64_t k_end,
                 float* out) {
  HWY_DYNAMIC_DISPATCH(ExpandPanel)(shape, panel, k_begin, k_end, out);
}

void GemvPanels(const PanelShape& shape, const std::byte* const* panels, int count, const float* x,
                int64_t ldx, int rows, float* c, int64_t ldc) {
  HWY_DYNAMIC_DISPATCH(GemvPanels)(shape, panels, count, x, ldx, rows, c, ldc);
}

}  // namespace smartgen::executor::cpu
#endif  // HWY_ONCE
