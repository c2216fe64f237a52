// Small vector helpers shared by the kernels' per-target code. Included once for every target, so
// the guard is Highway's toggle, not #pragma once.
#if defined(SMARTGEN_EXECUTOR_CPU_VEC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SMARTGEN_EXECUTOR_CPU_VEC_INL_H_
#undef SMARTGEN_EXECUTOR_CPU_VEC_INL_H_
#else
#define SMARTGEN_EXECUTOR_CPU_VEC_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace smartgen::executor::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most 512 bits, so that a panel (two vectors) is at most kMaxPanelWidth wide.
using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;
using DI = hn::RebindToSigned<DF>;
using VI = hn::Vec<DI>;
inline constexpr int kLanes = HWY_LANES(float) < 16 ? HWY_LANES(float) : 16;

// Sum of 16 partial sums, always in the same order: lane i takes i + 8, then i + 4, i + 2, i + 1.
HWY_INLINE float Sum16(const float* HWY_RESTRICT partial) {
  float s[8];
  for (int i = 0; i < 8; ++i) s[i] = partial[i] + partial[i + 8];
  for (int i = 0; i < 4; ++i) s[i] += s[i + 4];
  return (s[0] + s[2]) + (s[1] + s[3]);
}

// 2^x for x <= 127, relative error below 2e-7; exactly 0 for x <= -127 (-infinity included).
HWY_INLINE VF Exp2(VF x) {
  const DF d;
  const DI di;
  x = hn::Max(x, hn::Set(d, -127.0f));
  const VF n = hn::Round(x);
  const VF f = hn::Sub(x, n);
  // 2^f on [-0.5, 0.5]: 1 + f * (degree 5 Chebyshev fit of (2^f - 1) / f), relative error 9e-9.
  VF p = hn::Set(d, 1.5461448e-4f);
  p = hn::MulAdd(p, f, hn::Set(d, 1.3390867e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 9.6180569e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.5503570e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.4022651e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.9314718e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const VI exponent = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
  return hn::Mul(p, hn::BitCast(d, exponent));
}

}  // namespace smartgen::executor::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // per-target guard
