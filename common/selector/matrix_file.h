// One matrix per (layer, KV head), made offline for a model: InfiniGen's skew and HATA's trained
// hash weights, with the file format that both share.
//
// The file, little-endian: magic "SGMX", uint32 version, uint32 purpose, uint32 length and bytes of
// the model's fingerprint, uint32 layers; per layer uint32 heads, rows, columns; then all values as
// float, layer by layer, head by head, row-major; then the XXH3 of all before it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/kv/layout.h"

namespace smartgen::selector {

inline constexpr uint32_t kMatrixFileVersion = 1;

struct HeadMatrices {
  enum class Purpose : uint32_t { kSkew = 1, kHash = 2 };
  struct Layer {
    int heads = 0;  // 0: nothing for this layer (always dense)
    int rows = 0;
    int columns = 0;
    std::vector<float> values;
    std::span<const float> Matrix(int head) const {
      const size_t size = static_cast<size_t>(rows) * columns;
      return std::span<const float>(values).subspan(head * size, size);
    }
  };

  Purpose purpose = Purpose::kSkew;
  std::string model_fingerprint;
  std::vector<Layer> layers;

  bool empty() const { return layers.empty(); }

  // NotFound; InvalidArgument or DataLoss saying what is wrong (other purpose, version, sizes,
  // sum).
  static absl::StatusOr<HeadMatrices> Load(const std::string& path, Purpose purpose);
  // What the file at `path` says that it holds. NotFound; InvalidArgument if it is no such file.
  static absl::StatusOr<Purpose> PurposeOf(const std::string& path);
  // Written beside and renamed, so that a reader never sees half a file.
  absl::Status Save(const std::string& path) const;

  // Heads, rows and columns of every layer from `first_layer` on fit the layout: skew is head dim
  // squared and orthogonal within 1e-3, hash weights have `hash_bits` columns. Values are finite.
  absl::Status CheckShapes(const kv::KvLayout& layout, int first_layer, int hash_bits) const;
  // FailedPrecondition if made for another model.
  absl::Status CheckModel(const std::string& fingerprint) const;
};

}  // namespace smartgen::selector
