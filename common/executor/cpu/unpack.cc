#include "common/executor/cpu/unpack.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "common/model/half.h"

namespace smartgen::executor::cpu {
namespace {

using model::TensorType;

const uint8_t* RowBytes(const model::TensorView& tensor, int64_t row) {
  const model::BlockShape shape = model::BlockShapeOf(tensor.type);
  const int64_t bytes = tensor.cols / shape.elements * shape.bytes;
  return reinterpret_cast<const uint8_t*>(tensor.data.data()) + row * bytes;
}

uint16_t LoadU16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
uint32_t LoadU32(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
float Half(const uint8_t* p) { return model::HalfToFloat(LoadU16(p)); }

// Blocks of 32 with their 4- or 5-bit numbers split in a low and a high half of nibbles.
// `high_bits` is the fifth bits' place or null.
void Nibbles32(const uint8_t* nibbles, const uint8_t* high_bits, int offset, int8_t* q) {
  const uint32_t high = high_bits != nullptr ? LoadU32(high_bits) : 0;
  for (int i = 0; i < 16; ++i) {
    const int lo = (nibbles[i] & 15) | static_cast<int>((high >> i) & 1) << 4;
    const int hi = (nibbles[i] >> 4) | static_cast<int>((high >> (i + 16)) & 1) << 4;
    q[i] = static_cast<int8_t>(lo - offset);
    q[i + 16] = static_cast<int8_t>(hi - offset);
  }
}

// The 6-bit scale and minimum of a K-quant's group of 32 (8 groups in 12 bytes).
void GroupScale(const uint8_t* p, int group, int* scale, int* min) {
  if (group < 4) {
    *scale = p[group] & 63;
    *min = p[group + 4] & 63;
  } else {
    *scale = (p[group + 4] & 15) | ((p[group - 4] >> 6) << 4);
    *min = (p[group + 4] >> 4) | ((p[group] >> 6) << 4);
  }
}

// Q4_K and Q5_K: `high` is the place of the fifth bits or null.
void UnpackK(const uint8_t* block, const uint8_t* high, const uint8_t* nibbles, int8_t* q,
             float* scale, float* min) {
  for (int group = 0; group < 8; ++group) {
    int s = 0, m = 0;
    GroupScale(block + 4, group, &s, &m);
    scale[group] = Half(block) * static_cast<float>(s);
    min[group] = -(Half(block + 2) * static_cast<float>(m));
    const uint8_t* from = nibbles + group / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      const int low = (from[i] >> (group % 2 * 4)) & 15;
      const int bit = high != nullptr ? (high[i] >> group) & 1 : 0;
      q[group * 32 + i] = static_cast<int8_t>(low | bit << 4);
    }
  }
}

// 256 values: 128 bytes of low nibbles, 64 of upper bit pairs, 16 scales, the super-scale.
void UnpackQ6(const uint8_t* block, int8_t* q, float* scale) {
  const float d = Half(block + 208);
  for (int i = 0; i < 16; ++i) {
    scale[i] = d * static_cast<float>(static_cast<int8_t>(block[192 + i]));
  }
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, quarter = i % 128 / 32, at = i % 32;
    const int low = (block[half * 64 + quarter % 2 * 32 + at] >> (quarter / 2 * 4)) & 15;
    const int high = (block[128 + half * 32 + at] >> (quarter * 2)) & 3;
    q[i] = static_cast<int8_t>((low | high << 4) - 32);
  }
}

void UnpackBlock(TensorType type, const uint8_t* in, int8_t* q, float* scale, float* min) {
  switch (type) {
    case TensorType::kQ4_0:
      *scale = Half(in);
      *min = -8.0f * *scale;
      return Nibbles32(in + 2, nullptr, 0, q);
    case TensorType::kQ4_1:
      *scale = Half(in);
      *min = Half(in + 2);
      return Nibbles32(in + 4, nullptr, 0, q);
    case TensorType::kQ5_0:
      *scale = Half(in);
      return Nibbles32(in + 6, in + 2, 16, q);
    case TensorType::kQ5_1:
      *scale = Half(in);
      *min = Half(in + 2);
      return Nibbles32(in + 8, in + 4, 0, q);
    case TensorType::kQ8_0:
      *scale = Half(in);
      std::memcpy(q, in + 2, 32);
      return;
    case TensorType::kQ4_K:
      return UnpackK(in, nullptr, in + 16, q, scale, min);
    case TensorType::kQ5_K:
      return UnpackK(in, in + 16, in + 48, q, scale, min);
    case TensorType::kQ6_K:
      return UnpackQ6(in, q, scale);
    case TensorType::kF32:
    case TensorType::kF16:
    case TensorType::kBF16:
      return;
  }
}

// -8 d must be a half as well; it isn't for scales near the type's maximum.
bool MinimaAreHalves(const model::TensorView& tensor) {
  const uint8_t* in = reinterpret_cast<const uint8_t*>(tensor.data.data());
  const int64_t blocks = tensor.rows * tensor.cols / 32;
  for (int64_t i = 0; i < blocks; ++i) {
    bool ok = true;
    ExactHalf(-8.0f * Half(in + i * 18), &ok);
    if (!ok) return false;
  }
  return true;
}

}  // namespace

uint16_t ExactHalf(float value, bool* ok) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  // 2^-24 is the smallest half; what is a multiple of a half's last place converts exactly.
  const float magnitude = std::fabs(value);
  uint32_t half = 0;
  if (magnitude >= 0x1p-14f) {
    half = ((std::bit_cast<uint32_t>(magnitude) >> 13) - (112u << 10)) & 0x7FFF;
  } else {
    half = static_cast<uint32_t>(magnitude * 0x1p24f);
  }
  const auto result = static_cast<uint16_t>(sign | half);
  if (magnitude > 65504.0f || !(model::HalfToFloat(result) == value)) *ok = false;
  return result;
}

PanelShape ShapeFor(const model::TensorView& tensor, int width) {
  PanelShape shape{.width = width, .k = tensor.cols};
  const auto quantised = [&](PanelFormat format, bool has_min, bool half, int block) {
    shape.format = format;
    shape.has_min = has_min;
    shape.half_scales = half;
    shape.block = block;
  };
  switch (tensor.type) {
    case TensorType::kF32:
      shape.format = PanelFormat::kF32;
      break;
    case TensorType::kF16:
      shape.format = PanelFormat::kF16;
      break;
    case TensorType::kBF16:
      shape.format = PanelFormat::kBF16;
      break;
    case TensorType::kQ4_0:
      quantised(PanelFormat::kNibble, true, MinimaAreHalves(tensor), 32);
      break;
    case TensorType::kQ4_1:
      quantised(PanelFormat::kNibble, true, true, 32);
      break;
    case TensorType::kQ5_0:
      quantised(PanelFormat::kByte, false, true, 32);
      break;
    case TensorType::kQ5_1:
      quantised(PanelFormat::kByte, true, true, 32);
      break;
    case TensorType::kQ8_0:
      quantised(PanelFormat::kByte, false, true, 32);
      break;
    case TensorType::kQ4_K:
      quantised(PanelFormat::kNibble, true, false, 32);
      break;
    case TensorType::kQ5_K:
      quantised(PanelFormat::kByte, true, false, 32);
      break;
    case TensorType::kQ6_K:
      quantised(PanelFormat::kByte, false, false, 16);
      break;
  }
  return shape;
}

void UnpackRow(const model::TensorView& tensor, int64_t row, int block, UnpackedRow* out) {
  const model::BlockShape shape = model::BlockShapeOf(tensor.type);
  out->q.assign(tensor.cols, 0);
  out->scale.assign(tensor.cols / block, 0.0f);
  out->min.assign(tensor.cols / block, 0.0f);
  const uint8_t* in = RowBytes(tensor, row);
  const int scales = shape.elements / block;
  for (int64_t b = 0; b < tensor.cols / shape.elements; ++b, in += shape.bytes) {
    UnpackBlock(tensor.type, in, out->q.data() + b * shape.elements, out->scale.data() + b * scales,
                out->min.data() + b * scales);
  }
}

}  // namespace smartgen::executor::cpu
