// How a weight matrix lies in memory for the CPU: panels of PanelWidth() output columns, k
// ascending inside, weights in their file's own precision. Decoding gives exactly the values of
// model::Dequantize.
#pragma once

#include <cstddef>
#include <cstdint>

namespace smartgen::executor::cpu {

enum class PanelFormat : uint8_t {
  kF32,
  kF16,
  kBF16,
  kNibble,  // w = scale * q + min, q in 0..15
  kByte,    // w = scale * q (+ min), q an int8
};

// A quantised panel is a row of blocks; a block holds `block` values of k for all columns:
//   scale[width], min[width] if has_min (each f16 or f32), then
//   kNibble: block / 8 groups of uint32[width]: bits 4j..4j+3 are k = 8 * group + j
//   kByte:   int8[block][width]
// Other formats are [k][width] of the type.
struct PanelShape {
  PanelFormat format = PanelFormat::kF32;
  bool has_min = false;
  bool half_scales = false;
  int block = 8;  // k values a block; the step in which k can be cut
  int width = 0;
  int64_t k = 0;

  int64_t ScaleBytes() const {
    if (format != PanelFormat::kNibble && format != PanelFormat::kByte) return 0;
    return static_cast<int64_t>(width) * (half_scales ? 2 : 4) * (has_min ? 2 : 1);
  }
  int64_t BlockBytes() const {
    const int64_t values = static_cast<int64_t>(block) * width;
    switch (format) {
      case PanelFormat::kF32:
        return values * 4;
      case PanelFormat::kF16:
      case PanelFormat::kBF16:
        return values * 2;
      case PanelFormat::kNibble:
        return ScaleBytes() + values / 2;
      case PanelFormat::kByte:
        return ScaleBytes() + values;
    }
    return 0;
  }
  // Panels of full-precision formats whose k is no multiple of the block are padded with zeros.
  int64_t Blocks() const { return (k + block - 1) / block; }
  int64_t PanelBytes() const { return Blocks() * BlockBytes(); }
  friend bool operator==(const PanelShape&, const PanelShape&) = default;
};

}  // namespace smartgen::executor::cpu
