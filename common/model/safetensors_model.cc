#include "common/model/safetensors_model.h"

#include <filesystem>
#include <utility>

#include "common/model/hf_config.h"
#include "common/model/hf_tokenizer.h"
#include "common/model/json.h"
#include "common/model/safetensors.h"

namespace smartgen::model {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxConfigBytes = 4 << 20;
constexpr size_t kMaxIndexBytes = 32 << 20;
constexpr size_t kMaxTokenizerBytes = 128 << 20;  // vocabularies of 256K tokens take about 34 MB

std::string_view LayerTensor(Weight weight) {
  switch (weight) {
    case Weight::kAttnNorm:
      return "input_layernorm.weight";
    case Weight::kQ:
      return "self_attn.q_proj.weight";
    case Weight::kK:
      return "self_attn.k_proj.weight";
    case Weight::kV:
      return "self_attn.v_proj.weight";
    case Weight::kQBias:
      return "self_attn.q_proj.bias";
    case Weight::kKBias:
      return "self_attn.k_proj.bias";
    case Weight::kVBias:
      return "self_attn.v_proj.bias";
    case Weight::kO:
      return "self_attn.o_proj.weight";
    case Weight::kFfnNorm:
      return "post_attention_layernorm.weight";
    case Weight::kGate:
      return "mlp.gate_proj.weight";
    case Weight::kUp:
      return "mlp.up_proj.weight";
    case Weight::kDown:
      return "mlp.down_proj.weight";
    default:
      return "";
  }
}

WeightNaming SafetensorsNaming(bool tied) {
  WeightNaming naming;
  naming.name = [](Weight weight, int layer) -> std::string {
    if (weight == Weight::kEmbedding) return "model.embed_tokens.weight";
    if (weight == Weight::kOutputNorm) return "model.norm.weight";
    if (weight == Weight::kOutput) return "lm_head.weight";
    return fmt::format("model.layers.{}.{}", layer, LayerTensor(weight));
  };
  naming.ignorable = [tied](std::string_view name) {
    // Old checkpoints carry RoPE's plain frequencies; tied ones sometimes a copy of the embedding.
    return name.ends_with(".self_attn.rotary_emb.inv_freq") || (tied && name == "lm_head.weight");
  };
  return naming;
}

// An optional file's text; empty where there is none.
absl::StatusOr<std::string> OptionalText(const fs::path& path, size_t max_bytes) {
  auto text = ReadTextFile(path.string(), max_bytes);
  if (absl::IsNotFound(text.status())) return std::string();
  return text;
}

absl::StatusOr<std::vector<std::string>> SingleFile(const fs::path& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors") found.push_back(it->path().filename().string());
  }
  if (error) return base::Unavailable("cannot list the folder: {}", error.message());
  if (found.size() == 1) return found;
  return base::InvalidArgument(
      "want model.safetensors, model.safetensors.index.json or exactly one *.safetensors, folder "
      "has {} of the last",
      found.size());
}

struct LoadedTensors {
  FileTensors tensors;
  std::vector<std::unique_ptr<MappedFile>> files;
};

absl::Status AddShard(const fs::path& folder, const std::string& name, LoadedTensors& loaded) {
  ASSIGN_OR_RETURN(auto file, MappedFile::Open((folder / name).string()));
  RETURN_IF_ERROR(base::Annotate(ParseSafetensors(file->bytes(), loaded.tensors), name));
  loaded.files.push_back(std::move(file));
  return absl::OkStatus();
}

absl::Status AddShards(const fs::path& folder, const std::string& index_text,
                       LoadedTensors& loaded) {
  ASSIGN_OR_RETURN(const ShardIndex index, ParseShardIndex(index_text));
  std::map<const std::byte*, std::string> shard_of;
  for (const std::string& name : index.files) {
    std::error_code error;
    if (!fs::exists(folder / name, error)) {
      return base::InvalidArgument("shard {} does not exist in the folder", Printable(name));
    }
    FileTensors before;
    std::swap(before, loaded.tensors);
    RETURN_IF_ERROR(AddShard(folder, name, loaded));
    for (const auto& [tensor, unused] : loaded.tensors) {
      const auto listed = index.file_of_tensor.find(tensor);
      if (listed == index.file_of_tensor.end() || listed->second != name) {
        return base::InvalidArgument(
            "tensor {}: it is in shard {}, weight_map says {}", Printable(tensor), Printable(name),
            listed == index.file_of_tensor.end() ? "nothing" : Printable(listed->second));
      }
    }
    loaded.tensors.merge(before);
  }
  for (const auto& [tensor, name] : index.file_of_tensor) {
    if (!loaded.tensors.contains(tensor)) {
      return base::InvalidArgument("tensor {}: weight_map says shard {}, which does not have it",
                                   Printable(tensor), Printable(name));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<LoadedTensors> LoadTensors(const fs::path& folder) {
  LoadedTensors loaded;
  std::error_code error;
  if (fs::exists(folder / "model.safetensors", error)) {
    RETURN_IF_ERROR(AddShard(folder, "model.safetensors", loaded));
    return loaded;
  }
  constexpr std::string_view kIndex = "model.safetensors.index.json";
  ASSIGN_OR_RETURN(const std::string index, OptionalText(folder / kIndex, kMaxIndexBytes));
  if (!index.empty()) {
    RETURN_IF_ERROR(base::Annotate(AddShards(folder, index, loaded), kIndex));
    return loaded;
  }
  ASSIGN_OR_RETURN(const auto names, SingleFile(folder));
  RETURN_IF_ERROR(AddShard(folder, names.front(), loaded));
  return loaded;
}

absl::StatusOr<FolderTexts> ReadTexts(const fs::path& folder) {
  FolderTexts texts;
  auto config = ReadTextFile((folder / "config.json").string(), kMaxConfigBytes);
  if (absl::IsNotFound(config.status())) {
    return base::InvalidArgument("the folder has no config.json");
  }
  ASSIGN_OR_RETURN(texts.config, std::move(config));
  ASSIGN_OR_RETURN(texts.generation_config,
                   OptionalText(folder / "generation_config.json", kMaxConfigBytes));
  ASSIGN_OR_RETURN(texts.tokenizer, OptionalText(folder / "tokenizer.json", kMaxTokenizerBytes));
  ASSIGN_OR_RETURN(texts.tokenizer_config,
                   OptionalText(folder / "tokenizer_config.json", kMaxConfigBytes));
  ASSIGN_OR_RETURN(texts.chat_template,
                   OptionalText(folder / "chat_template.jinja", kMaxConfigBytes));
  return texts;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> BuildSafetensorsModel(
    FolderTexts texts, FileTensors tensors, std::vector<std::unique_ptr<MappedFile>> files) {
  const auto json = ParseJsonObject(texts.config);
  if (!json.ok()) return base::Annotate(json.status(), "config.json");
  auto config = ReadHfConfig(*json);
  if (!config.ok()) return base::Annotate(config.status(), "config.json");
  config->qkv_bias = tensors.contains("model.layers.0.self_attn.q_proj.bias");
  ASSIGN_OR_RETURN(TokenizerData tokenizer,
                   ReadHfTokenizer(std::move(texts), *json, config->vocab_size));
  const WeightNaming naming = SafetensorsNaming(config->tied_output);
  return LoadedModel::Create(*std::move(config), std::move(tokenizer), tensors, naming,
                             std::move(files));
}

absl::StatusOr<std::unique_ptr<Model>> OpenSafetensorsFolder(const std::string& folder) {
  ASSIGN_OR_RETURN(FolderTexts texts, ReadTexts(folder));
  ASSIGN_OR_RETURN(LoadedTensors loaded, LoadTensors(folder));
  return BuildSafetensorsModel(std::move(texts), std::move(loaded.tensors),
                               std::move(loaded.files));
}

}  // namespace smartgen::model
