// KV elements as numbers: exact to float, nearest (ties to even) from float.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/kv/layout.h"

namespace smartgen::selector {

inline float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t special = (half & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u;
  // Exponent and mantissa in a float's place are 2^112 too small; the product is exact.
  const float scaled = std::bit_cast<float>(static_cast<uint32_t>(half & 0x7fff) << 13) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | special | sign);
}

inline uint16_t FloatToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7e00;
  if (magnitude >= 65520.0f) return sign | 0x7c00;
  if (magnitude < 0x1p-14f) {
    // A subnormal counts steps of 2^-24, which is also the step of a float in [0.5, 1): after
    // adding 0.5 the rounded count stands in the mantissa.
    const uint32_t rounded = std::bit_cast<uint32_t>(magnitude + 0.5f);
    return sign | static_cast<uint16_t>(rounded - std::bit_cast<uint32_t>(0.5f));
  }
  const uint32_t m = std::bit_cast<uint32_t>(magnitude);
  const uint32_t rounded = m + 0xfff + ((m >> 13) & 1);
  return sign | static_cast<uint16_t>((rounded >> 13) - (112u << 10));
}

inline uint16_t FloatToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float LoadElement(const std::byte* at, kv::DType dtype) {
  if (dtype == kv::DType::kF32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return dtype == kv::DType::kBF16 ? std::bit_cast<float>(static_cast<uint32_t>(bits) << 16)
                                   : HalfToFloat(bits);
}

inline void StoreElement(float value, kv::DType dtype, std::byte* at) {
  if (dtype == kv::DType::kF32) {
    std::memcpy(at, &value, sizeof(value));
    return;
  }
  const uint16_t bits = dtype == kv::DType::kBF16 ? FloatToBf16(value) : FloatToHalf(value);
  std::memcpy(at, &bits, sizeof(bits));
}

inline void LoadRow(const std::byte* row, int count, kv::DType dtype, float* out) {
  switch (dtype) {
    case kv::DType::kF32:
      std::memcpy(out, row, static_cast<size_t>(count) * sizeof(float));
      return;
    case kv::DType::kBF16:
      for (int i = 0; i < count; ++i) {
        uint16_t bits;
        std::memcpy(&bits, row + 2 * i, sizeof(bits));
        out[i] = std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
      }
      return;
    case kv::DType::kF16:
      for (int i = 0; i < count; ++i) out[i] = LoadElement(row + 2 * i, dtype);
      return;
  }
}

}  // namespace smartgen::selector
