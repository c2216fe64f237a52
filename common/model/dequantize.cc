// The formats' definitions, written so that each value takes the same roundings as in the gguf
// Python package. In all of them `d` is the block's scale (half precision) and `m` or `dmin` its
// offset.
//   Q4_0  d (q - 8)         d, 16 bytes of nibbles (low ones are elements 0..15, high ones 16..31)
//   Q4_1  d q + m           d, m, nibbles
//   Q5_0  d (q - 16)        d, 32 fifth bits, nibbles
//   Q5_1  d q + m           d, m, 32 fifth bits, nibbles
//   Q8_0  d q               d, 32 signed bytes
//   Q4_K  (d s) q - dmin t  d, dmin, 8 pairs (s, t) of 6 bits, nibbles; 32 elements a pair
//   Q5_K  as Q4_K           with 256 fifth bits before the nibbles
//   Q6_K  (d s) (q - 32)    nibbles, pairs of upper bits, 16 signed scales, d; 16 elements a scale
#include <bit>
#include <cstring>

#include "common/model/half.h"
#include "common/model/model.h"

namespace smartgen::model {
namespace {

static_assert(std::endian::native == std::endian::little, "model files are little-endian");

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
float LoadHalf(const uint8_t* p) { return HalfToFloat(LoadU16(p)); }

void BlockQ4_0(const uint8_t* in, float* __restrict out) {
  const float d = LoadHalf(in);
  const uint8_t* q = in + 2;
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(static_cast<int>(q[i] & 15) - 8);
    out[i + 16] = d * static_cast<float>(static_cast<int>(q[i] >> 4) - 8);
  }
}

void BlockQ4_1(const uint8_t* in, float* __restrict out) {
  const float d = LoadHalf(in);
  const float m = LoadHalf(in + 2);
  const uint8_t* q = in + 4;
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(static_cast<int>(q[i] & 15)) + m;
    out[i + 16] = d * static_cast<float>(static_cast<int>(q[i] >> 4)) + m;
  }
}

// The 5-bit numbers of a Q5_0 or Q5_1 block.
void UnpackFiveBits(const uint8_t* high_bits, const uint8_t* q, int* __restrict out) {
  const uint32_t high = LoadU32(high_bits);
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<int>((q[i] & 15) | (((high >> i) & 1) << 4));
    out[i + 16] = static_cast<int>((q[i] >> 4) | (((high >> (i + 16)) & 1) << 4));
  }
}

void BlockQ5_0(const uint8_t* in, float* __restrict out) {
  const float d = LoadHalf(in);
  int q[32];
  UnpackFiveBits(in + 2, in + 6, q);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(q[i] - 16);
}

void BlockQ5_1(const uint8_t* in, float* __restrict out) {
  const float d = LoadHalf(in);
  const float m = LoadHalf(in + 2);
  int q[32];
  UnpackFiveBits(in + 4, in + 8, q);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(q[i]) + m;
}

void BlockQ8_0(const uint8_t* in, float* __restrict out) {
  const float d = LoadHalf(in);
  for (int i = 0; i < 32; ++i) {
    out[i] = d * static_cast<float>(static_cast<int8_t>(in[2 + i]));
  }
}

struct ScaleMin {
  float scale;
  float min;
};

// Eight pairs of 6-bit numbers in 12 bytes: bytes 0-3 and 4-7 hold scales and minima 0..3 in their
// low six bits; bytes 8-11 hold the low nibbles of pairs 4..7, whose upper bits fill bytes 0-7.
ScaleMin UnpackScaleMin(const uint8_t* p, int pair) {
  if (pair < 4) {
    return {static_cast<float>(p[pair] & 63), static_cast<float>(p[pair + 4] & 63)};
  }
  const int i = pair - 4;
  return {static_cast<float>((p[i + 8] & 15) | ((p[i] >> 2) & 0x30)),
          static_cast<float>((p[i + 8] >> 4) | ((p[i + 4] >> 2) & 0x30))};
}

void BlockQ4_K(const uint8_t* in, float* __restrict out) {
  const float d = LoadHalf(in);
  const float dmin = LoadHalf(in + 2);
  for (int pair = 0; pair < 8; ++pair) {
    const ScaleMin sm = UnpackScaleMin(in + 4, pair);
    const float scale = d * sm.scale;
    const float offset = dmin * sm.min;
    const uint8_t* q = in + 16 + 32 * (pair / 2);
    const int shift = 4 * (pair % 2);
    for (int i = 0; i < 32; ++i) {
      out[32 * pair + i] = scale * static_cast<float>((q[i] >> shift) & 15) - offset;
    }
  }
}

void BlockQ5_K(const uint8_t* in, float* __restrict out) {
  const float d = LoadHalf(in);
  const float dmin = LoadHalf(in + 2);
  const uint8_t* high = in + 16;
  for (int pair = 0; pair < 8; ++pair) {
    const ScaleMin sm = UnpackScaleMin(in + 4, pair);
    const float scale = d * sm.scale;
    const float offset = dmin * sm.min;
    const uint8_t* q = in + 48 + 32 * (pair / 2);
    const int shift = 4 * (pair % 2);
    for (int i = 0; i < 32; ++i) {
      const int value = ((q[i] >> shift) & 15) | (((high[i] >> pair) & 1) << 4);
      out[32 * pair + i] = scale * static_cast<float>(value) - offset;
    }
  }
}

void BlockQ6_K(const uint8_t* in, float* __restrict out) {
  const uint8_t* scales = in + 192;
  const float d = LoadHalf(in + 208);
  for (int group = 0; group < 8; ++group) {  // 32 elements each
    const int half = group / 4;
    const uint8_t* q = in + 64 * half + 32 * (group % 2);
    const int shift = 4 * ((group % 4) / 2);
    const uint8_t* high = in + 128 + 32 * half;
    const int high_shift = 2 * (group % 4);
    for (int part = 0; part < 2; ++part) {
      const float scale = d * static_cast<float>(static_cast<int8_t>(scales[2 * group + part]));
      for (int i = 16 * part; i < 16 * part + 16; ++i) {
        const int value = ((q[i] >> shift) & 15) | (((high[i] >> high_shift) & 3) << 4);
        out[32 * group + i] = scale * static_cast<float>(value - 32);
      }
    }
  }
}

template <void (*Block)(const uint8_t*, float*), int kElements, int kBytes>
void Blocks(const uint8_t* in, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) Block(in + i * kBytes, out + i * kElements);
}

}  // namespace

void Dequantize(const TensorView& tensor, int64_t row_begin, int64_t row_end,
                std::span<float> out) {
  const BlockShape shape = BlockShapeOf(tensor.type);
  const int64_t blocks_per_row = tensor.cols / shape.elements;
  const int64_t count = blocks_per_row * (row_end - row_begin);
  const auto* in = reinterpret_cast<const uint8_t*>(tensor.data.data()) +
                   row_begin * blocks_per_row * shape.bytes;
  float* to = out.data();
  switch (tensor.type) {
    case TensorType::kF32:
      std::memcpy(to, in, static_cast<size_t>(count) * sizeof(float));
      return;
    case TensorType::kF16:
      for (int64_t i = 0; i < count; ++i) to[i] = LoadHalf(in + 2 * i);
      return;
    case TensorType::kBF16:
      for (int64_t i = 0; i < count; ++i) to[i] = Bf16ToFloat(LoadU16(in + 2 * i));
      return;
    case TensorType::kQ4_0:
      return Blocks<BlockQ4_0, 32, 18>(in, count, to);
    case TensorType::kQ4_1:
      return Blocks<BlockQ4_1, 32, 20>(in, count, to);
    case TensorType::kQ5_0:
      return Blocks<BlockQ5_0, 32, 22>(in, count, to);
    case TensorType::kQ5_1:
      return Blocks<BlockQ5_1, 32, 24>(in, count, to);
    case TensorType::kQ8_0:
      return Blocks<BlockQ8_0, 32, 34>(in, count, to);
    case TensorType::kQ4_K:
      return Blocks<BlockQ4_K, 256, 144>(in, count, to);
    case TensorType::kQ5_K:
      return Blocks<BlockQ5_K, 256, 176>(in, count, to);
    case TensorType::kQ6_K:
      return Blocks<BlockQ6_K, 256, 210>(in, count, to);
  }
}

}  // namespace smartgen::model
