// Internal to common/model: the safetensors container.
//
//   u64 n, n bytes of JSON {name: {"dtype", "shape", "data_offsets": [begin, end]},
//   "__metadata__"}, then the data that the offsets count from, without holes or overlaps
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <span>
#include <string>

#include "common/base/status.h"
#include "common/model/weight_table.h"

namespace smartgen::model {

// Adds the file's tensors to `out`; a name that is there already is an error. Checks every length,
// offset, shape and name. The views point into `bytes`.
absl::Status ParseSafetensors(std::span<const std::byte> bytes, FileTensors& out);

// model.safetensors.index.json: which shard holds which tensor.
struct ShardIndex {
  std::map<std::string, std::string> file_of_tensor;
  std::set<std::string> files;  // plain file names, in the index's own folder
};
absl::StatusOr<ShardIndex> ParseShardIndex(const std::string& text);

}  // namespace smartgen::model
