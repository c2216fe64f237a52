// IEEE half precision and bfloat16 to float, exactly. Plain integer and float operations, so that
// loops over them vectorise without any instruction-set flag.
#pragma once

#include <bit>
#include <cstdint>

namespace smartgen::model {

inline float HalfToFloat(uint16_t half) {
  // Exponent and mantissa moved into a float's place are 2^112 too small; the product with it is
  // exact, subnormals included.
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fff) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
  const uint32_t special = (half & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u;  // infinity, NaN
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | special | sign);
}

inline float Bf16ToFloat(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

}  // namespace smartgen::model
