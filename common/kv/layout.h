// How KV lies in memory. Equal on both sides of a transfer or the pairing is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace smartgen::kv {

enum class DType : uint8_t { kF32 = 0, kBF16 = 1, kF16 = 2 };
std::string_view DTypeName(DType dtype);  // "f32", "bf16", "f16"
absl::StatusOr<DType> ParseDType(std::string_view name);
inline int DTypeBytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

// Tokens a page. Fixed: it is also the grain of the prefix cache and of Quest's selection pages.
inline constexpr int kPageTokens = 16;

struct LayerLayout {
  int kv_heads = 0;
  int head_dim = 0;
  int window = 0;  // 0: none
  friend bool operator==(const LayerLayout&, const LayerLayout&) = default;
};

// A page of a layer, in bytes: K[head][token][dim], then V[head][token][dim] ("KV heads before
// tokens, K apart from V").
struct KvLayout {
  std::vector<LayerLayout> layers;
  DType dtype = DType::kBF16;
  int64_t token_capacity = 0;  // the longest sequence

  int num_layers() const { return static_cast<int>(layers.size()); }
  int64_t PageBytes(int layer) const {
    return 2LL * kPageTokens * layers[layer].kv_heads * layers[layer].head_dim * DTypeBytes(dtype);
  }
  // Offset inside the page; a head's rows of consecutive tokens are contiguous.
  int64_t KOffset(int layer, int head, int token) const {
    return (static_cast<int64_t>(head) * kPageTokens + token) * layers[layer].head_dim *
           DTypeBytes(dtype);
  }
  int64_t VOffset(int layer, int head, int token) const {
    return PageBytes(layer) / 2 + KOffset(layer, head, token);
  }
  int64_t RowBytes(int layer) const { return layers[layer].head_dim * DTypeBytes(dtype); }
  // K and V of one token.
  int64_t TokenBytes(int layer) const { return PageBytes(layer) / kPageTokens; }
  int64_t TokenBytes() const;      // all layers
  int64_t PageBytesTotal() const;  // a page of every layer

  // Sizes within limits (1024 layers, 1024 heads, head dim 1024).
  absl::Status Check() const;
  // FailedPrecondition naming the first field that differs ("layer 3 kv_heads: ours 3, theirs 4").
  absl::Status CheckEqual(const KvLayout& theirs) const;
};

}  // namespace smartgen::kv
