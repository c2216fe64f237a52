#include "common/model/weight_table.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/hash.h"

namespace smartgen::model {
namespace {

constexpr Weight kGlobalWeights[] = {Weight::kEmbedding, Weight::kOutputNorm, Weight::kOutput};
constexpr Weight kLayerWeights[] = {
    Weight::kAttnNorm, Weight::kQ, Weight::kK,       Weight::kV,    Weight::kQBias, Weight::kKBias,
    Weight::kVBias,    Weight::kO, Weight::kFfnNorm, Weight::kGate, Weight::kUp,    Weight::kDown};

struct Extent {
  int64_t rows;
  int64_t cols;
  bool vector;
};

// What the configuration says that `weight` must be.
Extent ExtentOf(Weight weight, const ModelConfig& config, int layer_index) {
  const int64_t hidden = config.hidden_dim;
  const LayerConfig& layer = config.layers[static_cast<size_t>(layer_index)];
  const int64_t q = int64_t{layer.num_heads} * layer.head_dim;
  const int64_t kv = int64_t{layer.num_kv_heads} * layer.head_dim;
  switch (weight) {
    case Weight::kEmbedding:
    case Weight::kOutput:
      return {config.vocab_size, hidden, false};
    case Weight::kOutputNorm:
    case Weight::kAttnNorm:
    case Weight::kFfnNorm:
      return {1, hidden, true};
    case Weight::kQ:
      return {q, hidden, false};
    case Weight::kK:
    case Weight::kV:
      return {kv, hidden, false};
    case Weight::kQBias:
      return {1, q, true};
    case Weight::kKBias:
    case Weight::kVBias:
      return {1, kv, true};
    case Weight::kO:
      return {hidden, q, false};
    case Weight::kGate:
    case Weight::kUp:
      return {layer.ffn_dim, hidden, false};
    case Weight::kDown:
      return {hidden, layer.ffn_dim, false};
  }
  return {0, 0, false};
}

bool IsBias(Weight weight) {
  return weight == Weight::kQBias || weight == Weight::kKBias || weight == Weight::kVBias;
}

absl::StatusOr<TensorView> CheckedView(const FileTensor& tensor, Extent want, bool columns_first) {
  std::vector<int64_t> shape;
  if (want.vector) {
    shape = {want.cols};
  } else if (columns_first) {
    shape = {want.cols, want.rows};
  } else {
    shape = {want.rows, want.cols};
  }
  if (tensor.shape != shape) {
    return base::InvalidArgument("tensor {}: want {}, file has {}", Printable(tensor.name),
                                 ShapeString(shape), ShapeString(tensor.shape));
  }
  if (!tensor.type.has_value()) {
    return base::Unimplemented(
        "tensor {}: type {} is not supported; this version reads F32, F16, BF16, and in GGUF Q4_0, "
        "Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K",
        Printable(tensor.name), Printable(tensor.type_name));
  }
  // The readers check this too; rows are addressed by it, so it is not taken on trust.
  const BlockShape block = BlockShapeOf(*tensor.type);
  const int64_t bytes = want.cols / block.elements * block.bytes * want.rows;
  if (want.cols % block.elements != 0 || static_cast<int64_t>(tensor.data.size()) != bytes) {
    return base::InvalidArgument(
        "tensor {}: {} of type {} wants whole blocks of {} values and {} bytes, file has {} bytes",
        Printable(tensor.name), ShapeString(tensor.shape), TensorTypeName(*tensor.type),
        block.elements, bytes, tensor.data.size());
  }
  return TensorView{tensor.name, *tensor.type, want.rows, want.cols, tensor.data};
}

void HashText(base::Hasher64& hasher, std::string_view text) {
  hasher.Update(std::as_bytes(std::span(text.data(), text.size())));
}

std::string ConfigText(const ModelConfig& c) {
  std::string text = fmt::format("{}|{}|{}|{}|{}|{}|{}", c.architecture, c.hidden_dim, c.vocab_size,
                                 c.context_length, c.norm_eps, c.tied_output, c.qkv_bias);
  const RopeConfig& r = c.rope;
  text += fmt::format("|{}|{}|{}|{}|{}|{}|{}", r.theta, static_cast<int>(r.scaling), r.factor,
                      r.low_freq_factor, r.high_freq_factor, r.original_context, r.interleaved);
  for (float divisor : r.frequency_divisors) text += fmt::format(",{}", divisor);
  for (const LayerConfig& l : c.layers) {
    text += fmt::format("|{},{},{},{},{}", l.num_heads, l.num_kv_heads, l.head_dim, l.ffn_dim,
                        l.window);
  }
  return text;
}

}  // namespace

std::string ShapeString(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ' ';
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

std::string Printable(std::string_view text) {
  constexpr size_t kLongest = 80;
  std::string out;
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  if (text.size() > kLongest) out += "...";
  return out;
}

std::optional<size_t> WeightTable::SlotOf(Weight weight, int layer, int num_layers) {
  const auto* global = std::ranges::find(kGlobalWeights, weight);
  if (global != std::end(kGlobalWeights)) {
    return static_cast<size_t>(global - std::begin(kGlobalWeights));
  }
  const auto* local = std::ranges::find(kLayerWeights, weight);
  if (local == std::end(kLayerWeights) || layer < 0 || layer >= num_layers) return std::nullopt;
  return static_cast<size_t>(kGlobals + layer * kPerLayer + (local - std::begin(kLayerWeights)));
}

absl::StatusOr<WeightTable> WeightTable::Build(const ModelConfig& config,
                                               const FileTensors& tensors,
                                               const WeightNaming& naming) {
  static_assert(std::size(kGlobalWeights) == kGlobals && std::size(kLayerWeights) == kPerLayer);
  WeightTable table;
  table.num_layers_ = config.num_layers();
  table.slots_.resize(static_cast<size_t>(kGlobals + table.num_layers_ * kPerLayer));
  std::set<std::string_view> used;

  const auto place = [&](Weight weight, int layer) -> absl::Status {
    const std::string name = naming.name(weight, layer);
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      const Extent want = ExtentOf(weight, config, layer);
      return base::InvalidArgument("tensor {} is missing ({} outputs x {} inputs)", name, want.rows,
                                   want.cols);
    }
    used.insert(found->first);
    ASSIGN_OR_RETURN(
        table.slots_[*SlotOf(weight, layer, table.num_layers_)],
        CheckedView(found->second, ExtentOf(weight, config, layer), naming.columns_first));
    return absl::OkStatus();
  };

  RETURN_IF_ERROR(place(Weight::kEmbedding, 0));
  RETURN_IF_ERROR(place(Weight::kOutputNorm, 0));
  if (config.tied_output) {
    table.slots_[*SlotOf(Weight::kOutput, 0, 0)] = table.slots_[*SlotOf(Weight::kEmbedding, 0, 0)];
  } else {
    RETURN_IF_ERROR(place(Weight::kOutput, 0));
  }
  for (int layer = 0; layer < table.num_layers_; ++layer) {
    for (const Weight weight : kLayerWeights) {
      if (IsBias(weight) && !config.qkv_bias) continue;
      RETURN_IF_ERROR(place(weight, layer));
    }
  }
  for (const auto& [name, tensor] : tensors) {
    if (used.contains(name) || naming.ignorable(name)) continue;
    return base::Unimplemented(
        "tensor {} {}: architecture {} with {} layers has no such weight in this version, and "
        "results without it would be wrong",
        Printable(name), ShapeString(tensor.shape), config.architecture, table.num_layers_);
  }
  return table;
}

std::optional<TensorView> WeightTable::Find(Weight weight, int layer) const {
  const std::optional<size_t> slot = SlotOf(weight, layer, num_layers_);
  if (!slot.has_value()) return std::nullopt;
  return slots_[*slot];
}

std::string Fingerprint(const ModelConfig& config, const FileTensors& tensors) {
  constexpr size_t kSample = 4096;
  base::Hasher64 hasher;
  HashText(hasher, ConfigText(config));
  for (const auto& [name, tensor] : tensors) {
    // The length before the name keeps neighbours from running into each other.
    HashText(hasher, fmt::format("|{}:{}|{}|{}|", name.size(), name, ShapeString(tensor.shape),
                                 tensor.type_name));
    const size_t sample = std::min(kSample, tensor.data.size());
    hasher.Update(tensor.data.first(sample));
    hasher.Update(tensor.data.last(sample));
  }
  return fmt::format("{:016x}", hasher.Digest());
}

absl::StatusOr<std::unique_ptr<Model>> LoadedModel::Create(
    ModelConfig config, TokenizerData tokenizer_data, const FileTensors& tensors,
    const WeightNaming& naming, std::vector<std::unique_ptr<MappedFile>> files) {
  RETURN_IF_ERROR(base::Annotate(config.Check(), "model configuration"));
  std::unique_ptr<LoadedModel> model(new LoadedModel());
  ASSIGN_OR_RETURN(model->weights_, WeightTable::Build(config, tensors, naming));
  model->fingerprint_ = Fingerprint(config, tensors);
  model->config_ = std::move(config);
  model->tokenizer_data_ = std::move(tokenizer_data);
  model->files_ = std::move(files);
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace smartgen::model
