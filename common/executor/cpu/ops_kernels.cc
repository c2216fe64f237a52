// Element-wise kernels: norm, rotary embedding, SwiGLU, conversion to and from the KV type.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/executor/cpu/ops_kernels.cc"
#include "common/executor/cpu/targets.h"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "common/executor/cpu/vec-inl.h"
// clang-format on
#include <cmath>
#include <cstring>

#include "common/executor/cpu/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace smartgen::executor::cpu::HWY_NAMESPACE {

void RmsNorm(const float* HWY_RESTRICT x, const float* HWY_RESTRICT weight, float eps, int64_t size,
             float* HWY_RESTRICT out) {
  const DF d;
  HWY_ALIGN float partial[16] = {};
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) {
    for (int j = 0; j < 16; j += kLanes) {
      const VF v = hn::LoadU(d, x + i + j);
      hn::Store(hn::MulAdd(v, v, hn::Load(d, partial + j)), d, partial + j);
    }
  }
  for (int j = 0; i < size; ++i, ++j) partial[j] += x[i] * x[i];
  const float mean = Sum16(partial) / static_cast<float>(size);
  const float inverse = 1.0f / std::sqrt(mean + eps);
  for (int64_t k = 0; k < size; ++k) out[k] = x[k] * inverse * weight[k];
}

void Rope(const float* HWY_RESTRICT cosines, const float* HWY_RESTRICT sines, int size,
          float* HWY_RESTRICT x) {
  const DF d;
  const int half = size / 2;
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const VF c = hn::LoadU(d, cosines + i), s = hn::LoadU(d, sines + i);
    const VF a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + half + i);
    hn::StoreU(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), d, x + i);
    hn::StoreU(hn::Add(hn::Mul(b, c), hn::Mul(a, s)), d, x + half + i);
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    x[i] = a * cosines[i] - b * sines[i];
    x[half + i] = b * cosines[i] + a * sines[i];
  }
}

HWY_INLINE VF SwiGluVector(VF gate, VF up) {
  const DF d;
  // silu(g) = g / (1 + e^-g); beyond the clamp the quotient is 0 or g to float precision.
  const VF x = hn::Min(hn::Mul(gate, hn::Set(d, -1.44269504f)), hn::Set(d, 126.0f));
  return hn::Mul(hn::Div(gate, hn::Add(hn::Set(d, 1.0f), Exp2(x))), up);
}

void SwiGlu(const float* HWY_RESTRICT gate, const float* HWY_RESTRICT up, int64_t size,
            float* HWY_RESTRICT out) {
  const DF d;
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    hn::StoreU(SwiGluVector(hn::LoadU(d, gate + i), hn::LoadU(d, up + i)), d, out + i);
  }
  if (i == size) return;
  HWY_ALIGN float g[kLanes] = {}, u[kLanes] = {};
  std::memcpy(g, gate + i, (size - i) * sizeof(float));
  std::memcpy(u, up + i, (size - i) * sizeof(float));
  hn::Store(SwiGluVector(hn::Load(d, g), hn::Load(d, u)), d, g);
  std::memcpy(out + i, g, (size - i) * sizeof(float));
}

// Rounds to nearest even. Values that are not finite keep their upper half (a NaN stays one by its
// quiet bit).
HWY_INLINE uint16_t ToBF16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7F800000u) == 0x7F800000u) {
    return static_cast<uint16_t>((bits >> 16) | ((bits & 0x7FFFFFu) != 0 ? 0x40u : 0u));
  }
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1)) >> 16);
}

void StoreKv(const float* HWY_RESTRICT x, int64_t size, kv::DType dtype, std::byte* out) {
  switch (dtype) {
    case kv::DType::kF32:
      std::memcpy(out, x, size * sizeof(float));
      return;
    case kv::DType::kBF16: {
      auto* to = reinterpret_cast<uint16_t*>(out);
      for (int64_t i = 0; i < size; ++i) to[i] = ToBF16(x[i]);
      return;
    }
    case kv::DType::kF16: {
      auto* to = reinterpret_cast<hwy::float16_t*>(out);
      const hn::CappedTag<float, 1> d1;
      const hn::Rebind<hwy::float16_t, decltype(d1)> h1;
      for (int64_t i = 0; i < size; ++i) {
        hn::Store(hn::DemoteTo(h1, hn::Set(d1, x[i])), h1, to + i);
      }
      return;
    }
  }
}

template <class T>
HWY_INLINE void Promote(const std::byte* x, int64_t size, float* HWY_RESTRICT out) {
  const DF d;
  const hn::Rebind<T, DF> dt;
  const auto* from = reinterpret_cast<const T*>(x);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    hn::StoreU(hn::PromoteTo(d, hn::LoadU(dt, from + i)), d, out + i);
  }
  if (i == size) return;
  HWY_ALIGN T rest[kLanes] = {};
  HWY_ALIGN float wide[kLanes];
  std::memcpy(rest, from + i, (size - i) * sizeof(T));
  hn::Store(hn::PromoteTo(d, hn::Load(dt, rest)), d, wide);
  std::memcpy(out + i, wide, (size - i) * sizeof(float));
}

void LoadKv(const std::byte* x, int64_t size, kv::DType dtype, float* out) {
  switch (dtype) {
    case kv::DType::kF32:
      std::memcpy(out, x, size * sizeof(float));
      return;
    case kv::DType::kBF16:
      return Promote<hwy::bfloat16_t>(x, size, out);
    case kv::DType::kF16:
      return Promote<hwy::float16_t>(x, size, out);
  }
}

}  // namespace smartgen::executor::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace smartgen::executor::cpu {

HWY_EXPORT(RmsNorm);
HWY_EXPORT(Rope);
HWY_EXPORT(SwiGlu);
HWY_EXPORT(StoreKv);
HWY_EXPORT(LoadKv);

void RmsNorm(const float* x, const float* weight, float eps, int64_t size, float* out) {
  HWY_DYNAMIC_DISPATCH(RmsNorm)(x, weight, eps, size, out);
}
void Rope(const float* cosines, const float* sines, int size, float* x) {
  HWY_DYNAMIC_DISPATCH(Rope)(cosines, sines, size, x);
}
void SwiGlu(const float* gate, const float* up, int64_t size, float* out) {
  HWY_DYNAMIC_DISPATCH(SwiGlu)(gate, up, size, out);
}
void StoreKv(const float* x, int64_t size, kv::DType dtype, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(StoreKv)(x, size, dtype, out);
}
void LoadKv(const std::byte* x, int64_t size, kv::DType dtype, float* out) {
  HWY_DYNAMIC_DISPATCH(LoadKv)(x, size, dtype, out);
}

}  // namespace smartgen::executor::cpu
#endif  // HWY_ONCE
