// Internal to common/model: config.json of transformers as a ModelConfig.
#pragma once

#include <nlohmann/json.hpp>

#include "common/base/status.h"
#include "common/model/model_config.h"

namespace smartgen::model {

// Reads both the style of published checkpoints (rope_theta, rope_scaling) and that of transformers
// 5 (rope_parameters). model_type llama and mistral. qkv_bias is left to who sees the tensors.
absl::StatusOr<ModelConfig> ReadHfConfig(const nlohmann::json& config);

}  // namespace smartgen::model
