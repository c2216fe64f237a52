// Internal to common/model: what a model folder's JSON files say about tokens.
#pragma once

#include <nlohmann/json.hpp>

#include "common/base/status.h"
#include "common/model/model.h"
#include "common/model/safetensors_model.h"

namespace smartgen::model {

// `config` is the parsed config.json. Token ids are checked against `vocab`.
absl::StatusOr<TokenizerData> ReadHfTokenizer(FolderTexts texts, const nlohmann::json& config,
                                              int vocab);

}  // namespace smartgen::model
