// GGUF's keys and tensor names for the llama architecture.
#include <algorithm>
#include <cmath>

#include "common/model/gguf.h"

namespace smartgen::model {
namespace {

// Typed access to keys; every message names the key.
class Keys {
 public:
  Keys(const GgufFile& file, std::string architecture)
      : file_(file), architecture_(std::move(architecture)) {}

  // "llama.block_count" for "block_count".
  std::string Full(std::string_view key) const { return fmt::format("{}.{}", architecture_, key); }
  const GgufValue* Find(std::string_view key) const { return file_.Find(Full(key)); }

  absl::StatusOr<int64_t> Integer(std::string_view key, int64_t low, int64_t high) const {
    const GgufValue* value = Find(key);
    if (value == nullptr) return base::InvalidArgument("key {} is missing", Full(key));
    return Ranged(key, value->AsInteger(), low, high);
  }
  absl::StatusOr<int64_t> IntegerOr(std::string_view key, int64_t otherwise, int64_t low,
                                    int64_t high) const {
    return Find(key) == nullptr ? absl::StatusOr<int64_t>(otherwise) : Integer(key, low, high);
  }
  absl::StatusOr<float> Real(std::string_view key) const {
    const GgufValue* value = Find(key);
    if (value == nullptr) return base::InvalidArgument("key {} is missing", Full(key));
    const std::optional<double> real = value->AsReal();
    if (!real.has_value() || !std::isfinite(*real) || std::fabs(*real) > 1e30) {
      return base::InvalidArgument("key {}: want a finite number", Full(key));
    }
    return static_cast<float>(*real);
  }
  absl::StatusOr<float> RealOr(std::string_view key, float otherwise) const {
    return Find(key) == nullptr ? absl::StatusOr<float>(otherwise) : Real(key);
  }
  // One integer for all layers, or an array with one for each.
  absl::StatusOr<std::vector<int>> PerLayer(std::string_view key, int layers, int64_t high) const {
    const GgufValue* value = Find(key);
    if (value == nullptr) return base::InvalidArgument("key {} is missing", Full(key));
    if (value->type != GgufType::kArray) {
      ASSIGN_OR_RETURN(const int64_t one, Ranged(key, value->AsInteger(), 1, high));
      return std::vector<int>(static_cast<size_t>(layers), static_cast<int>(one));
    }
    if (value->count != static_cast<uint64_t>(layers)) {
      return base::InvalidArgument("key {}: want {} values, one a layer, file has {}", Full(key),
                                   layers, value->count);
    }
    const auto values = value->AsIntegers();
    if (!values.has_value()) return base::InvalidArgument("key {}: want integers", Full(key));
    std::vector<int> out;
    for (const int64_t each : *values) {
      ASSIGN_OR_RETURN(const int64_t checked, Ranged(key, each, 1, high));
      out.push_back(static_cast<int>(checked));
    }
    return out;
  }

 private:
  absl::StatusOr<int64_t> Ranged(std::string_view key, std::optional<int64_t> value, int64_t low,
                                 int64_t high) const {
    if (!value.has_value()) {
      return base::InvalidArgument("key {}: want an integer from {} to {}", Full(key), low, high);
    }
    if (*value < low || *value > high) {
      return base::InvalidArgument("key {}: want {} to {}, file has {}", Full(key), low, high,
                                   *value);
    }
    return *value;
  }

  const GgufFile& file_;
  std::string architecture_;
};

absl::StatusOr<std::string> TextOr(const GgufFile& file, std::string_view key,
                                   std::string_view otherwise) {
  const GgufValue* value = file.Find(key);
  if (value == nullptr) return std::string(otherwise);
  const std::optional<std::string_view> text = value->AsString();
  if (!text.has_value()) return base::InvalidArgument("key {}: want a string", key);
  return std::string(*text);
}

absl::Status ReadRope(const GgufFile& file, const Keys& keys, int head_dim, RopeConfig& rope) {
  rope.interleaved = true;  // the llama conversion permutes Wq and Wk
  ASSIGN_OR_RETURN(rope.theta, keys.RealOr("rope.freq_base", 10000.0f));
  ASSIGN_OR_RETURN(const int64_t rotated,
                   keys.IntegerOr("rope.dimension_count", head_dim, 1, kMaxHeadDim));
  if (rotated != head_dim) {
    return base::Unimplemented(
        "key {}: rotating {} of {} dimensions of a head is not supported; this version rotates all",
        keys.Full("rope.dimension_count"), rotated, head_dim);
  }
  ASSIGN_OR_RETURN(const std::string scaling,
                   TextOr(file, keys.Full("rope.scaling.type"), "unset"));
  // Before there was a scaling type, files carried rope.scale_linear alone.
  const bool old_linear = scaling == "unset" && keys.Find("rope.scale_linear") != nullptr;
  if (scaling == "linear" || old_linear) {
    const std::string_view key = old_linear ? "rope.scale_linear" : "rope.scaling.factor";
    ASSIGN_OR_RETURN(rope.factor, keys.Real(key));
    rope.scaling = RopeScaling::kLinear;
  } else if (scaling != "unset" && scaling != "none") {
    return base::Unimplemented("key {}: {} is not supported; this version has none and linear",
                               keys.Full("rope.scaling.type"), Printable(scaling));
  }
  const auto divisors = file.tensors.find("rope_freqs.weight");
  if (divisors == file.tensors.end()) return absl::OkStatus();
  const FileTensor& tensor = divisors->second;
  const std::vector<int64_t> want = {head_dim / 2};
  if (tensor.shape != want || tensor.type != TensorType::kF32) {
    return base::InvalidArgument("tensor rope_freqs.weight: want {} of type F32, file has {} of {}",
                                 ShapeString(want), ShapeString(tensor.shape), tensor.type_name);
  }
  rope.frequency_divisors.resize(static_cast<size_t>(head_dim / 2));
  Dequantize(TensorView{tensor.name, TensorType::kF32, 1, head_dim / 2, tensor.data}, 0, 1,
             rope.frequency_divisors);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<LayerConfig>> ReadLayers(const Keys& keys, int hidden) {
  ASSIGN_OR_RETURN(const int64_t layers64, keys.Integer("block_count", 1, kMaxLayers));
  const int layers = static_cast<int>(layers64);
  ASSIGN_OR_RETURN(const auto heads, keys.PerLayer("attention.head_count", layers, kMaxHeads));
  std::vector<int> kv_heads = heads;
  if (keys.Find("attention.head_count_kv") != nullptr) {
    ASSIGN_OR_RETURN(kv_heads, keys.PerLayer("attention.head_count_kv", layers, kMaxHeads));
  }
  ASSIGN_OR_RETURN(const auto ffn, keys.PerLayer("feed_forward_length", layers, kMaxDim));
  int64_t head_dim = 0;
  if (keys.Find("attention.key_length") != nullptr) {
    ASSIGN_OR_RETURN(head_dim, keys.Integer("attention.key_length", 2, kMaxHeadDim));
  } else if (hidden % heads[0] == 0) {
    head_dim = hidden / heads[0];
  } else {
    return base::InvalidArgument("key {}: want a divisor of the embedding length {}, file has {}",
                                 keys.Full("attention.head_count"), hidden, heads[0]);
  }
  ASSIGN_OR_RETURN(const int64_t value_dim,
                   keys.IntegerOr("attention.value_length", head_dim, 1, kMaxHeadDim));
  if (value_dim != head_dim) {
    return base::Unimplemented("key {}: want the key length {}, file has {}",
                               keys.Full("attention.value_length"), head_dim, value_dim);
  }
  ASSIGN_OR_RETURN(const int64_t window,
                   keys.IntegerOr("attention.sliding_window", 0, 0, kMaxContext));
  std::vector<LayerConfig> out;
  for (size_t i = 0; i < heads.size(); ++i) {
    out.push_back(
        {heads[i], kv_heads[i], static_cast<int>(head_dim), ffn[i], static_cast<int>(window)});
  }
  return out;
}

absl::Status CheckSupported(const GgufFile& file, const Keys& keys,
                            const std::string& architecture) {
  if (architecture != "llama") {
    return base::Unimplemented("architecture {} is not supported; this version has llama",
                               Printable(architecture));
  }
  ASSIGN_OR_RETURN(const int64_t experts, keys.IntegerOr("expert_count", 0, 0, 1 << 20));
  if (experts > 0) {
    return base::Unimplemented("key {}: mixtures of experts are not supported (file has {})",
                               keys.Full("expert_count"), experts);
  }
  const GgufValue* split = file.Find("split.count");
  if (split != nullptr && split->AsInteger().value_or(0) > 1) {
    return base::Unimplemented(
        "key split.count: the model is split over {} files; merge them into one with "
        "llama-gguf-split --merge",
        *split->AsInteger());
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> ReadConfig(const GgufFile& file) {
  const GgufValue* named = file.Find("general.architecture");
  if (named == nullptr) return base::InvalidArgument("key general.architecture is missing");
  ASSIGN_OR_RETURN(const std::string architecture, TextOr(file, "general.architecture", ""));
  const Keys keys(file, architecture);
  RETURN_IF_ERROR(CheckSupported(file, keys, architecture));

  ModelConfig config;
  config.architecture = architecture;
  ASSIGN_OR_RETURN(config.name, TextOr(file, "general.name", ""));
  ASSIGN_OR_RETURN(const int64_t hidden, keys.Integer("embedding_length", 1, kMaxDim));
  config.hidden_dim = static_cast<int>(hidden);
  ASSIGN_OR_RETURN(config.context_length, keys.Integer("context_length", 1, kMaxContext));
  ASSIGN_OR_RETURN(config.norm_eps, keys.Real("attention.layer_norm_rms_epsilon"));
  ASSIGN_OR_RETURN(config.layers, ReadLayers(keys, config.hidden_dim));
  RETURN_IF_ERROR(ReadRope(file, keys, config.layers[0].head_dim, config.rope));

  const auto embedding = file.tensors.find("token_embd.weight");
  if (embedding == file.tensors.end()) {
    return base::InvalidArgument("tensor token_embd.weight is missing");
  }
  // The vocabulary is what the embedding has rows for; the key, where there is one, must agree.
  const std::vector<int64_t>& shape = embedding->second.shape;
  const int64_t rows = shape.size() == 2 ? shape[1] : 0;
  if (rows < 1 || rows > kMaxVocab) {
    return base::InvalidArgument("tensor token_embd.weight: want [{} 1..{}], file has {}", hidden,
                                 kMaxVocab, ShapeString(shape));
  }
  ASSIGN_OR_RETURN(const int64_t vocab, keys.IntegerOr("vocab_size", rows, 1, kMaxVocab));
  if (vocab != rows) {
    return base::InvalidArgument("key {}: want the embedding's {} rows, file has {}",
                                 keys.Full("vocab_size"), rows, vocab);
  }
  config.vocab_size = static_cast<int>(vocab);
  config.tied_output = !file.tensors.contains("output.weight");
  config.qkv_bias = file.tensors.contains("blk.0.attn_q.bias");
  return config;
}

absl::StatusOr<std::optional<int32_t>> TokenId(const GgufFile& file, std::string_view key,
                                               int vocab) {
  const GgufValue* value = file.Find(key);
  if (value == nullptr) return std::optional<int32_t>();
  const std::optional<int64_t> id = value->AsInteger();
  if (!id.has_value()) return base::InvalidArgument("key {}: want an integer", key);
  // Converters write -1 or 2^32 - 1 for "none".
  if (*id == -1 || *id == 0xffffffff) return std::optional<int32_t>();
  if (*id < 0 || *id >= vocab) {
    return base::InvalidArgument("key {}: want a token id below {}, file has {}", key, vocab, *id);
  }
  return std::optional<int32_t>(static_cast<int32_t>(*id));
}

// The array at `key`, or nullptr; at most `max_count` long.
absl::StatusOr<const GgufValue*> Array(const GgufFile& file, std::string_view key,
                                       uint64_t max_count) {
  const GgufValue* value = file.Find(key);
  if (value == nullptr) return nullptr;
  if (value->type != GgufType::kArray || value->count > max_count) {
    return base::InvalidArgument(
        "key {}: want an array of at most {} values, file has {}", key, max_count,
        value->type == GgufType::kArray ? std::to_string(value->count) : "no array");
  }
  return value;
}

absl::Status ReadVocabulary(const GgufFile& file, int vocab, TokenizerData& data) {
  const auto limit = static_cast<uint64_t>(vocab);
  ASSIGN_OR_RETURN(const GgufValue* tokens, Array(file, "tokenizer.ggml.tokens", limit));
  if (tokens != nullptr) {
    auto values = tokens->AsStrings();
    if (!values) return base::InvalidArgument("key tokenizer.ggml.tokens: want strings");
    data.tokens = *std::move(values);
  }
  const size_t count = data.tokens.size();
  const auto check_count = [count](std::string_view key, size_t have) {
    if (have == count) return absl::OkStatus();
    return base::InvalidArgument("key {}: want {} values, one a token, file has {}", key, count,
                                 have);
  };
  ASSIGN_OR_RETURN(const GgufValue* types, Array(file, "tokenizer.ggml.token_type", limit));
  if (types != nullptr) {
    const auto values = types->AsIntegers();
    if (!values) return base::InvalidArgument("key tokenizer.ggml.token_type: want integers");
    RETURN_IF_ERROR(check_count("tokenizer.ggml.token_type", values->size()));
    for (const int64_t type : *values) {
      if (type < 0 || type > 6) {
        return base::InvalidArgument("key tokenizer.ggml.token_type: want 0 to 6, file has {}",
                                     type);
      }
      data.types.push_back(static_cast<int32_t>(type));
    }
  }
  ASSIGN_OR_RETURN(const GgufValue* scores, Array(file, "tokenizer.ggml.scores", limit));
  if (scores != nullptr) {
    auto values = scores->AsFloats();
    if (!values) return base::InvalidArgument("key tokenizer.ggml.scores: want float32 values");
    RETURN_IF_ERROR(check_count("tokenizer.ggml.scores", values->size()));
    for (const float score : *values) {
      if (std::isnan(score)) {
        return base::InvalidArgument("key tokenizer.ggml.scores: want numbers, file has NaN");
      }
    }
    data.scores = *std::move(values);
  }
  // Every merge makes a token, so there cannot be many more merges than tokens.
  ASSIGN_OR_RETURN(const GgufValue* merges, Array(file, "tokenizer.ggml.merges", 4 * limit));
  if (merges != nullptr) {
    auto values = merges->AsStrings();
    if (!values) return base::InvalidArgument("key tokenizer.ggml.merges: want strings");
    data.merges = *std::move(values);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> AddBos(const GgufFile& file, const TokenizerData& data) {
  const GgufValue* value = file.Find("tokenizer.ggml.add_bos_token");
  if (value != nullptr) {
    const std::optional<bool> add = value->AsBool();
    if (!add.has_value()) {
      return base::InvalidArgument("key tokenizer.ggml.add_bos_token: want a boolean");
    }
    return *add;
  }
  // Where the file says nothing: SentencePiece vocabularies and Llama 3's begin with BOS.
  return data.ggml_model == "llama" || data.ggml_pre == "llama-bpe" || data.ggml_pre == "llama3" ||
         data.ggml_pre == "llama-v3";
}

absl::StatusOr<TokenizerData> ReadTokenizer(const GgufFile& file, int vocab) {
  TokenizerData data;
  ASSIGN_OR_RETURN(data.ggml_model, TextOr(file, "tokenizer.ggml.model", ""));
  ASSIGN_OR_RETURN(data.ggml_pre, TextOr(file, "tokenizer.ggml.pre", ""));
  ASSIGN_OR_RETURN(data.chat_template, TextOr(file, "tokenizer.chat_template", ""));
  RETURN_IF_ERROR(ReadVocabulary(file, vocab, data));
  ASSIGN_OR_RETURN(data.bos_id, TokenId(file, "tokenizer.ggml.bos_token_id", vocab));
  for (const std::string_view key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                     "tokenizer.ggml.eom_token_id"}) {
    ASSIGN_OR_RETURN(const std::optional<int32_t> id, TokenId(file, key, vocab));
    if (id.has_value() &&
        std::find(data.eos_ids.begin(), data.eos_ids.end(), *id) == data.eos_ids.end()) {
      data.eos_ids.push_back(*id);
    }
  }
  ASSIGN_OR_RETURN(data.add_bos, AddBos(file, data));
  if (data.add_bos && !data.bos_id.has_value() && !data.tokens.empty()) {
    return base::InvalidArgument(
        "prompts are to begin with BOS, but key tokenizer.ggml.bos_token_id names none");
  }
  return data;
}

std::string_view LayerTensor(Weight weight) {
  switch (weight) {
    case Weight::kAttnNorm:
      return "attn_norm.weight";
    case Weight::kQ:
      return "attn_q.weight";
    case Weight::kK:
      return "attn_k.weight";
    case Weight::kV:
      return "attn_v.weight";
    case Weight::kQBias:
      return "attn_q.bias";
    case Weight::kKBias:
      return "attn_k.bias";
    case Weight::kVBias:
      return "attn_v.bias";
    case Weight::kO:
      return "attn_output.weight";
    case Weight::kFfnNorm:
      return "ffn_norm.weight";
    case Weight::kGate:
      return "ffn_gate.weight";
    case Weight::kUp:
      return "ffn_up.weight";
    case Weight::kDown:
      return "ffn_down.weight";
    default:
      return "";
  }
}

WeightNaming GgufNaming() {
  WeightNaming naming;
  naming.columns_first = true;
  naming.name = [](Weight weight, int layer) -> std::string {
    if (weight == Weight::kEmbedding) return "token_embd.weight";
    if (weight == Weight::kOutputNorm) return "output_norm.weight";
    if (weight == Weight::kOutput) return "output.weight";
    return fmt::format("blk.{}.{}", layer, LayerTensor(weight));
  };
  naming.ignorable = [](std::string_view name) {
    // rope_freqs went into the configuration; old conversions repeat RoPE's plain frequencies.
    return name == "rope_freqs.weight" || name.ends_with(".attn_rot_embd.weight");
  };
  return naming;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> OpenGguf(std::span<const std::byte> bytes,
                                                std::unique_ptr<MappedFile> file) {
  ASSIGN_OR_RETURN(const GgufFile parsed, ParseGguf(bytes));
  ASSIGN_OR_RETURN(ModelConfig config, ReadConfig(parsed));
  ASSIGN_OR_RETURN(TokenizerData tokenizer, ReadTokenizer(parsed, config.vocab_size));
  std::vector<std::unique_ptr<MappedFile>> files;
  if (file != nullptr) files.push_back(std::move(file));
  return LoadedModel::Create(std::move(config), std::move(tokenizer), parsed.tensors, GgufNaming(),
                             std::move(files));
}

}  // namespace smartgen::model
