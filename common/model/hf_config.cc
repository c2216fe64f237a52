#include "common/model/hf_config.h"

#include "common/model/json.h"
#include "common/model/weight_table.h"

namespace smartgen::model {
namespace {

using Json = nlohmann::json;

absl::Status ReadRopeScaling(const Json& scaling, std::string_view key, RopeConfig& rope) {
  // "type" is the older spelling.
  ASSIGN_OR_RETURN(const std::string old_type, TextMemberOr(scaling, "type", "default"));
  ASSIGN_OR_RETURN(const std::string type, TextMemberOr(scaling, "rope_type", old_type));
  if (type == "default") return absl::OkStatus();
  if (type != "linear" && type != "llama3") {
    return base::Unimplemented(
        "key {}: rope_type {} is not supported; this version has default, linear, llama3", key,
        Printable(type));
  }
  ASSIGN_OR_RETURN(rope.factor, RealMember(scaling, "factor"));
  rope.scaling = type == "linear" ? RopeScaling::kLinear : RopeScaling::kLlama3;
  if (rope.scaling == RopeScaling::kLinear) return absl::OkStatus();
  ASSIGN_OR_RETURN(rope.low_freq_factor, RealMember(scaling, "low_freq_factor"));
  ASSIGN_OR_RETURN(rope.high_freq_factor, RealMember(scaling, "high_freq_factor"));
  ASSIGN_OR_RETURN(rope.original_context,
                   IntegerMember(scaling, "original_max_position_embeddings", 1, kMaxContext));
  return absl::OkStatus();
}

absl::Status ReadRope(const Json& config, RopeConfig& rope) {
  ASSIGN_OR_RETURN(rope.theta, RealMemberOr(config, "rope_theta", 10000.0f));
  for (const std::string_view key : {"rope_parameters", "rope_scaling"}) {
    const Json* scaling = Member(config, key);
    if (scaling == nullptr) continue;
    if (!scaling->is_object()) return base::InvalidArgument("key {}: want an object", key);
    ASSIGN_OR_RETURN(rope.theta, RealMemberOr(*scaling, "rope_theta", rope.theta));
    ASSIGN_OR_RETURN(const float part, RealMemberOr(*scaling, "partial_rotary_factor", 1.0f));
    if (part != 1.0f) {
      return base::Unimplemented("key {}.partial_rotary_factor: want 1, file has {}", key, part);
    }
    return base::Annotate(ReadRopeScaling(*scaling, key, rope), key);
  }
  return absl::OkStatus();
}

absl::Status CheckSupported(const Json& config, const std::string& type) {
  if (type != "llama" && type != "mistral") {
    return base::Unimplemented(
        "key model_type: \"{}\" is not supported; this version has llama and mistral",
        Printable(type));
  }
  ASSIGN_OR_RETURN(const std::string activation, TextMemberOr(config, "hidden_act", "silu"));
  if (activation != "silu") {
    return base::Unimplemented("key hidden_act: want silu, file has {}", Printable(activation));
  }
  if (Member(config, "quantization_config") != nullptr) {
    return base::Unimplemented(
        "key quantization_config: quantised safetensors are not supported; use the original "
        "weights or a GGUF file");
  }
  ASSIGN_OR_RETURN(const float part, RealMemberOr(config, "partial_rotary_factor", 1.0f));
  if (part != 1.0f) {
    return base::Unimplemented("key partial_rotary_factor: want 1, file has {}", part);
  }
  return absl::OkStatus();
}

absl::StatusOr<LayerConfig> ReadLayer(const Json& config, int hidden, bool mistral) {
  ASSIGN_OR_RETURN(const int64_t heads, IntegerMember(config, "num_attention_heads", 1, kMaxHeads));
  ASSIGN_OR_RETURN(const int64_t kv_heads,
                   IntegerMemberOr(config, "num_key_value_heads", heads, 1, kMaxHeads));
  int64_t head_dim = hidden / heads;
  if (Member(config, "head_dim") != nullptr) {
    ASSIGN_OR_RETURN(head_dim, IntegerMember(config, "head_dim", 2, kMaxHeadDim));
  } else if (hidden % heads != 0) {
    return base::InvalidArgument(
        "key num_attention_heads: want a divisor of hidden_size {} (there is no head_dim), file "
        "has {}",
        hidden, heads);
  }
  ASSIGN_OR_RETURN(const int64_t ffn, IntegerMember(config, "intermediate_size", 1, kMaxDim));
  int64_t window = 0;
  if (mistral) {
    // transformers takes 4096 where the key is absent; null says that there is no window.
    const int64_t absent = config.contains("sliding_window") ? 0 : 4096;
    ASSIGN_OR_RETURN(window, IntegerMemberOr(config, "sliding_window", absent, 1, kMaxContext));
  }
  return LayerConfig{static_cast<int>(heads), static_cast<int>(kv_heads),
                     static_cast<int>(head_dim), static_cast<int>(ffn), static_cast<int>(window)};
}

}  // namespace

absl::StatusOr<ModelConfig> ReadHfConfig(const Json& config) {
  ASSIGN_OR_RETURN(const std::string type, TextMemberOr(config, "model_type", ""));
  RETURN_IF_ERROR(CheckSupported(config, type));
  ModelConfig out;
  out.architecture = "llama";  // mistral differs from it by its window alone
  ASSIGN_OR_RETURN(out.name, TextMemberOr(config, "_name_or_path", ""));
  ASSIGN_OR_RETURN(const int64_t hidden, IntegerMember(config, "hidden_size", 1, kMaxDim));
  out.hidden_dim = static_cast<int>(hidden);
  ASSIGN_OR_RETURN(const int64_t vocab, IntegerMember(config, "vocab_size", 1, kMaxVocab));
  out.vocab_size = static_cast<int>(vocab);
  ASSIGN_OR_RETURN(out.context_length,
                   IntegerMember(config, "max_position_embeddings", 1, kMaxContext));
  ASSIGN_OR_RETURN(out.norm_eps, RealMemberOr(config, "rms_norm_eps", 1e-6f));
  ASSIGN_OR_RETURN(out.tied_output, BoolMemberOr(config, "tie_word_embeddings", false));
  ASSIGN_OR_RETURN(const int64_t layers, IntegerMember(config, "num_hidden_layers", 1, kMaxLayers));
  ASSIGN_OR_RETURN(const LayerConfig layer, ReadLayer(config, out.hidden_dim, type == "mistral"));
  out.layers.assign(static_cast<size_t>(layers), layer);
  RETURN_IF_ERROR(ReadRope(config, out.rope));
  return out;
}

}  // namespace smartgen::model
