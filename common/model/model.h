// A model on disk: configuration, tensors, tokenizer data. GGUF file or safetensors folder behind
// one interface.
//
// Thread-safe after Open: all methods are const. The files stay mapped for the object's life.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/model/model_config.h"

namespace smartgen::model {

// Element formats as stored in files.
enum class TensorType { kF32, kF16, kBF16, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K };

std::string_view TensorTypeName(TensorType type);
// Elements a block and bytes a block ({32, 20} for Q4_1, {1, 4} for F32).
struct BlockShape {
  int elements;
  int bytes;
};
BlockShape BlockShapeOf(TensorType type);

// A matrix of `rows` x `cols`, rows contiguous (y = W x has rows outputs and cols inputs). A vector
// has rows == 1. `data` points into the mapped file and is not aligned.
struct TensorView {
  std::string name;  // as in the file, for messages
  TensorType type = TensorType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  std::span<const std::byte> data;
};

// Canonical names of weights, independent of file format. `layer` is ignored for the first three.
enum class Weight {
  kEmbedding,   // vocab x hidden
  kOutputNorm,  // 1 x hidden
  kOutput,      // vocab x hidden; where the model ties it, the embedding's view
  kAttnNorm,    // 1 x hidden
  kQ,
  kK,
  kV,  // heads*d x hidden
  kQBias,
  kKBias,
  kVBias,
  kO,        // hidden x heads*d
  kFfnNorm,  // 1 x hidden
  kGate,
  kUp,    // ffn x hidden
  kDown,  // hidden x ffn
};

// What the tokenizer folder needs, in the file's own terms. Exactly one of the two is filled.
struct TokenizerData {
  // GGUF: tokenizer.ggml.*
  std::string ggml_model;  // "gpt2", "llama"
  std::string ggml_pre;    // "smollm", "llama-bpe", "qwen2", ...
  std::vector<std::string> tokens;
  std::vector<int32_t> types;  // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte
  std::vector<float> scores;
  std::vector<std::string> merges;  // "a b"
  // safetensors folder: the text of tokenizer.json, and of tokenizer_config.json if there is one.
  std::string tokenizer_json;
  std::string tokenizer_config_json;

  std::optional<int32_t> bos_id;
  std::vector<int32_t> eos_ids;  // every end-of-text / end-of-turn id the file names
  bool add_bos = false;
  std::string chat_template;  // empty: the model has none
};

class Model {
 public:
  // A GGUF file (v2, v3) or a folder with config.json, *.safetensors (sharded by
  // model.safetensors.index.json) and optionally tokenizer.json. Checks every offset, size, shape
  // and key that is used later, the shape of every weight against the configuration included.
  // Errors: NotFound (no such path), InvalidArgument (what is wrong in it and where), Unimplemented
  // (an architecture or tensor type that this version does not have; the message lists those it
  // has).
  static absl::StatusOr<std::unique_ptr<Model>> Open(const std::string& path);
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const TokenizerData& tokenizer_data() const = 0;
  // The weight's view. nullopt where the architecture has none (biases).
  virtual std::optional<TensorView> Find(Weight weight, int layer = 0) const = 0;
  // Identity of configuration and weights: XXH3 over the configuration and all tensors' names,
  // shapes, types and a sample of their bytes (first and last 4 KiB of each). 16 hex digits. Equal
  // on both daemons or the pairing is refused.
  virtual const std::string& fingerprint() const = 0;
};

// Decodes rows [row_begin, row_end) of `tensor` into `out` ((row_end - row_begin) * cols values).
// Exactly the reference formulas of the formats (see dequantize.cc), so results equal those of the
// gguf Python package bit for bit.
void Dequantize(const TensorView& tensor, int64_t row_begin, int64_t row_end, std::span<float> out);

// Turns what users write where a model is named into a path: an existing file or folder as it is,
// else a name that `smartgen fetch-model` knows ("smollm2-135m") in `cache_dir` (empty:
// $SMARTGEN_CACHE, else
// ~/.cache/smartgen). NotFound names the command that would fetch it.
absl::StatusOr<std::string> ResolveModelPath(const std::string& name_or_path,
                                             const std::string& cache_dir = "");

}  // namespace smartgen::model
