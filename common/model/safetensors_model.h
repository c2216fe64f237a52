// Internal to common/model: a folder of safetensors files as transformers writes it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/model/model.h"
#include "common/model/weight_table.h"

namespace smartgen::model {

absl::StatusOr<std::unique_ptr<Model>> OpenSafetensorsFolder(const std::string& folder);

// The folder's small files as text; all but `config` may be empty (absent).
struct FolderTexts {
  std::string config;             // config.json
  std::string generation_config;  // generation_config.json
  std::string tokenizer;          // tokenizer.json
  std::string tokenizer_config;   // tokenizer_config.json
  std::string chat_template;      // chat_template.jinja
};

// The same out of memory, for OpenSafetensorsFolder and fuzzing. `tensors` from ParseSafetensors,
// of all shards together; what they view must outlive the model unless `files` maps it.
absl::StatusOr<std::unique_ptr<Model>> BuildSafetensorsModel(
    FolderTexts texts, FileTensors tensors, std::vector<std::unique_ptr<MappedFile>> files);

}  // namespace smartgen::model
