#include "common/kv/layout.h"

namespace smartgen::kv {
namespace {

constexpr int kMaxLayers = 1024;
constexpr int kMaxHeads = 1024;
constexpr int kMaxHeadDim = 1024;
constexpr int64_t kMaxTokenCapacity = 1 << 24;  // a sequence's page table stays under 4 MiB

absl::Status CheckRange(std::string_view what, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return base::InvalidArgument("KV layout: {}: want {} to {}, got {}", what, low, high, value);
}

absl::Status Differs(std::string_view field, int64_t ours, int64_t theirs) {
  return base::FailedPrecondition("KV layout: {}: ours {}, theirs {}", field, ours, theirs);
}

}  // namespace

std::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
  }
  return "unknown";
}

absl::StatusOr<DType> ParseDType(std::string_view name) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (name == DTypeName(dtype)) return dtype;
  }
  return base::InvalidArgument("KV dtype: want one of f32, bf16, f16; got \"{}\"",
                               name.substr(0, 64));
}

int64_t KvLayout::TokenBytes() const { return PageBytesTotal() / kPageTokens; }

int64_t KvLayout::PageBytesTotal() const {
  int64_t bytes = 0;
  for (int layer = 0; layer < num_layers(); ++layer) bytes += PageBytes(layer);
  return bytes;
}

absl::Status KvLayout::Check() const {
  RETURN_IF_ERROR(CheckRange("layers", static_cast<int64_t>(layers.size()), 1, kMaxLayers));
  RETURN_IF_ERROR(CheckRange("dtype", static_cast<int64_t>(dtype), 0, 2));
  RETURN_IF_ERROR(CheckRange("token capacity", token_capacity, 1, kMaxTokenCapacity));
  for (int i = 0; i < num_layers(); ++i) {
    const LayerLayout& layer = layers[i];
    RETURN_IF_ERROR(CheckRange(fmt::format("layer {} kv_heads", i), layer.kv_heads, 1, kMaxHeads));
    RETURN_IF_ERROR(
        CheckRange(fmt::format("layer {} head_dim", i), layer.head_dim, 1, kMaxHeadDim));
    RETURN_IF_ERROR(
        CheckRange(fmt::format("layer {} window", i), layer.window, 0, kMaxTokenCapacity));
  }
  return absl::OkStatus();
}

absl::Status KvLayout::CheckEqual(const KvLayout& theirs) const {
  if (dtype != theirs.dtype) {
    return base::FailedPrecondition("KV layout: dtype: ours {}, theirs {}", DTypeName(dtype),
                                    DTypeName(theirs.dtype));
  }
  if (layers.size() != theirs.layers.size()) {
    return Differs("layers", num_layers(), theirs.num_layers());
  }
  if (token_capacity != theirs.token_capacity) {
    return Differs("token capacity", token_capacity, theirs.token_capacity);
  }
  for (int i = 0; i < num_layers(); ++i) {
    const LayerLayout& a = layers[i];
    const LayerLayout& b = theirs.layers[i];
    if (a.kv_heads != b.kv_heads) {
      return Differs(fmt::format("layer {} kv_heads", i), a.kv_heads, b.kv_heads);
    }
    if (a.head_dim != b.head_dim) {
      return Differs(fmt::format("layer {} head_dim", i), a.head_dim, b.head_dim);
    }
    if (a.window != b.window) return Differs(fmt::format("layer {} window", i), a.window, b.window);
  }
  return absl::OkStatus();
}

}  // namespace smartgen::kv
