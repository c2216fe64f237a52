// Internal to common/model: from the tensors of a file, whatever its format, to the weights of an
// architecture, each checked against the configuration.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/model/mapped_file.h"
#include "common/model/model.h"

namespace smartgen::model {

// A tensor as its file describes it; `data` is known to lie inside the file and to have the size
// that type and shape ask for.
struct FileTensor {
  std::string name;
  std::vector<int64_t> shape;      // in the file's own order
  std::string type_name;           // as the file calls it
  std::optional<TensorType> type;  // nullopt: a type that no weight may have
  std::span<const std::byte> data;
};
using FileTensors = std::map<std::string, FileTensor, std::less<>>;

// "[576 192]", as in messages.
std::string ShapeString(std::span<const int64_t> shape);
// Text from a file made safe for a message: control bytes escaped, cut after 80 characters.
std::string Printable(std::string_view text);

// How a file format names and shapes weights.
struct WeightNaming {
  // The tensor's name; `layer` is ignored for weights that are not part of a layer.
  std::function<std::string(Weight weight, int layer)> name;
  // Whether a tensor that no weight uses may be passed over. Anything else is refused: a model
  // computed without one of its tensors would quietly give wrong results.
  std::function<bool(std::string_view name)> ignorable;
  // GGUF lists the contiguous dimension first, safetensors last.
  bool columns_first = false;
};

class WeightTable {
 public:
  // `config` has passed Check. Errors: InvalidArgument (missing tensor, wrong shape), Unimplemented
  // (tensor type, tensors that the architecture does not have).
  static absl::StatusOr<WeightTable> Build(const ModelConfig& config, const FileTensors& tensors,
                                           const WeightNaming& naming);

  std::optional<TensorView> Find(Weight weight, int layer) const;

 private:
  static constexpr int kGlobals = 3;
  static constexpr int kPerLayer = 12;
  static std::optional<size_t> SlotOf(Weight weight, int layer, int num_layers);

  int num_layers_ = 0;
  std::vector<std::optional<TensorView>> slots_;
};

// See Model::fingerprint.
std::string Fingerprint(const ModelConfig& config, const FileTensors& tensors);

// What both readers end in.
class LoadedModel final : public Model {
 public:
  // `files` are the mappings that `tensors` point into; empty where the caller keeps the bytes.
  static absl::StatusOr<std::unique_ptr<Model>> Create(
      ModelConfig config, TokenizerData tokenizer_data, const FileTensors& tensors,
      const WeightNaming& naming, std::vector<std::unique_ptr<MappedFile>> files);

  const ModelConfig& config() const override { return config_; }
  const TokenizerData& tokenizer_data() const override { return tokenizer_data_; }
  std::optional<TensorView> Find(Weight weight, int layer) const override {
    return weights_.Find(weight, layer);
  }
  const std::string& fingerprint() const override { return fingerprint_; }

 private:
  LoadedModel() = default;
  ModelConfig config_;
  TokenizerData tokenizer_data_;
  WeightTable weights_;
  std::string fingerprint_;
  std::vector<std::unique_ptr<MappedFile>> files_;
};

}  // namespace smartgen::model
