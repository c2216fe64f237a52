// Weights of a panel's block as float vectors, per format. Included once for every target (see
// vec-inl.h).
//
// Exactness: scale (at most 19 significant bits) times q (at most 8) is exact in float, so scale *
// q + min as one multiply-add rounds once, as model::Dequantize's multiplication and addition do.
#if defined(SMARTGEN_EXECUTOR_CPU_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SMARTGEN_EXECUTOR_CPU_DECODE_INL_H_
#undef SMARTGEN_EXECUTOR_CPU_DECODE_INL_H_
#else
#define SMARTGEN_EXECUTOR_CPU_DECODE_INL_H_
#endif

#include <cstddef>

#include "common/executor/cpu/panel.h"
#include "common/executor/cpu/vec-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace smartgen::executor::cpu::HWY_NAMESPACE {

template <class T>
HWY_INLINE const T* As(const std::byte* p) {
  return reinterpret_cast<const T*>(p);
}

template <bool kHalf>
struct Scales {
  static constexpr int kBytes = kHalf ? 2 : 4;
  // `lane`: which column of the panel the vector begins at.
  static HWY_INLINE VF Load(const std::byte* p, int lane) {
    const DF d;
    if constexpr (kHalf) {
      const hn::Rebind<hwy::float16_t, DF> dh;
      return hn::PromoteTo(d, hn::LoadU(dh, As<hwy::float16_t>(p) + lane));
    } else {
      return hn::LoadU(d, As<float>(p) + lane);
    }
  }
};

struct FormatF32 {
  static constexpr bool kPadded = true;
  static HWY_INLINE VF Load(const std::byte* p, int64_t i) {
    return hn::LoadU(DF(), As<float>(p) + i);
  }
};
struct FormatF16 {
  static constexpr bool kPadded = true;
  static HWY_INLINE VF Load(const std::byte* p, int64_t i) {
    const hn::Rebind<hwy::float16_t, DF> dh;
    return hn::PromoteTo(DF(), hn::LoadU(dh, As<hwy::float16_t>(p) + i));
  }
};
struct FormatBF16 {
  static constexpr bool kPadded = true;
  static HWY_INLINE VF Load(const std::byte* p, int64_t i) {
    const hn::Rebind<hwy::bfloat16_t, DF> db;
    return hn::PromoteTo(DF(), hn::LoadU(db, As<hwy::bfloat16_t>(p) + i));
  }
};
template <bool kHalf>
struct FormatNibble {
  static constexpr bool kPadded = false;
};
template <bool kHalf, bool kHasMin>
struct FormatByte {
  static constexpr bool kPadded = false;
};

// Calls fn(i, w[kVectors]) for i = 0 .. block - 1 in ascending order. panels: kVectors / 2 blocks
// side by side, two vectors of columns each.
template <int kVectors, class Format, class Fn>
HWY_INLINE void DecodeBlock(Format, const PanelShape& shape, const std::byte* const* panels,
                            Fn&& fn) {
  for (int i = 0; i < shape.block; ++i) {
    VF w[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      w[v] = Format::Load(panels[v / 2], (i * 2 + v % 2) * kLanes);
    }
    fn(i, w);
  }
}

template <int kVectors, bool kHalf, class Fn>
HWY_INLINE void DecodeBlock(FormatNibble<kHalf>, const PanelShape& shape,
                            const std::byte* const* panels, Fn&& fn) {
  const DF d;
  const DI di;
  using S = Scales<kHalf>;
  constexpr int kWidth = 2 * kLanes;
  const VI low = hn::Set(di, 0xF);
  const VI high = hn::Set(di, 0xF0);
  // Two scales, so that every second nibble needs no shift: (word & 0xF0) is 16 q, exactly.
  VF scale[kVectors], scale16[kVectors], min[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const int lane = v % 2 * kLanes;
    scale[v] = S::Load(panels[v / 2], lane);
    scale16[v] = hn::Mul(scale[v], hn::Set(d, 1.0f / 16));
    min[v] = S::Load(panels[v / 2] + kWidth * S::kBytes, lane);
  }
  for (int group = 0; group < shape.block / 8; ++group) {
    VI words[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const std::byte* q = panels[v / 2] + 2 * kWidth * S::kBytes;
      words[v] = hn::LoadU(di, As<int32_t>(q) + (group * 2 + v % 2) * kLanes);
    }
#pragma GCC unroll 4
    for (int pair = 0; pair < 4; ++pair) {
      VF w[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        w[v] = hn::MulAdd(hn::ConvertTo(d, hn::And(words[v], low)), scale[v], min[v]);
      }
      fn(group * 8 + pair * 2, w);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        w[v] = hn::MulAdd(hn::ConvertTo(d, hn::And(words[v], high)), scale16[v], min[v]);
        words[v] = hn::ShiftRight<8>(words[v]);
      }
      fn(group * 8 + pair * 2 + 1, w);
    }
  }
}

template <int kVectors, bool kHalf, bool kHasMin, class Fn>
HWY_INLINE void DecodeBlock(FormatByte<kHalf, kHasMin>, const PanelShape& shape,
                            const std::byte* const* panels, Fn&& fn) {
  const DF d;
  const DI di;
  const hn::Rebind<int8_t, DF> d8;
  using S = Scales<kHalf>;
  constexpr int kWidth = 2 * kLanes;
  constexpr int kHeader = kWidth * S::kBytes * (kHasMin ? 2 : 1);
  VF scale[kVectors], min[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    scale[v] = S::Load(panels[v / 2], v % 2 * kLanes);
    min[v] = hn::Zero(d);
    if (kHasMin) min[v] = S::Load(panels[v / 2] + kWidth * S::kBytes, v % 2 * kLanes);
  }
#pragma GCC unroll 4
  for (int i = 0; i < shape.block; ++i) {
    VF w[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const int8_t* q = As<int8_t>(panels[v / 2] + kHeader) + (i * 2 + v % 2) * kLanes;
      const VF value = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, q)));
      w[v] = kHasMin ? hn::MulAdd(value, scale[v], min[v]) : hn::Mul(value, scale[v]);
    }
    fn(i, w);
  }
}

// Calls fn(Format{}) for the shape's format.
template <class Fn>
HWY_INLINE void DispatchFormat(const PanelShape& shape, Fn&& fn) {
  switch (shape.format) {
    case PanelFormat::kF32:
      return fn(FormatF32{});
    case PanelFormat::kF16:
      return fn(FormatF16{});
    case PanelFormat::kBF16:
      return fn(FormatBF16{});
    case PanelFormat::kNibble:
      return shape.half_scales ? fn(FormatNibble<true>{}) : fn(FormatNibble<false>{});
    case PanelFormat::kByte:
      if (shape.half_scales) {
        return shape.has_min ? fn(FormatByte<true, true>{}) : fn(FormatByte<true, false>{});
      }
      return shape.has_min ? fn(FormatByte<false, true>{}) : fn(FormatByte<false, false>{});
  }
}

}  // namespace smartgen::executor::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // per-target guard
