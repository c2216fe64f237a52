// A model's architecture as data. One forward pass (common/executor) reads these fields; a further
// architecture is a further way to fill them, not a further forward function.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace smartgen::model {

enum class RopeScaling { kNone, kLinear, kLlama3 };

struct RopeConfig {
  float theta = 10000.0f;
  RopeScaling scaling = RopeScaling::kNone;
  // kLinear: positions are divided by factor. kLlama3: see RopeInverseFrequencies.
  float factor = 1.0f;
  float low_freq_factor = 1.0f;
  float high_freq_factor = 4.0f;
  int64_t original_context = 8192;
  // GGUF files may carry the scaled frequencies' divisors themselves (rope_freqs.weight); then this
  // holds head_dim / 2 values and replaces `scaling`.
  std::vector<float> frequency_divisors;
  // GGUF's llama conversion permutes W_q and W_k so that RoPE pairs (2i, 2i+1); safetensors pairs
  // (i, i + d/2).
  bool interleaved = false;
};

struct LayerConfig {
  int num_heads = 0;     // query heads
  int num_kv_heads = 0;  // divides num_heads
  int head_dim = 0;
  int ffn_dim = 0;
  int window = 0;  // attends to the last `window` tokens, itself included; 0: to all
};

struct ModelConfig {
  std::string architecture;  // "llama"
  std::string name;          // from the file, for display
  int hidden_dim = 0;
  int vocab_size = 0;  // rows of the output matrix
  int64_t context_length = 0;
  float norm_eps = 1e-5f;
  bool tied_output = false;  // the output matrix is the embedding
  bool qkv_bias = false;
  RopeConfig rope;
  std::vector<LayerConfig> layers;

  int num_layers() const { return static_cast<int>(layers.size()); }
  // head_dim / 2 angular frequencies per position (theta^(-2i/d), scaled).
  // kLlama3: wavelengths longer than original/low_freq_factor are divided by factor, shorter than
  // original/high_freq_factor kept, smooth in between (Llama 3.1 reference code).
  std::vector<float> RopeInverseFrequencies() const;
  // All sizes positive, heads divisible, within the limits below; errors name the field.
  absl::Status Check() const;
};

// Limits on what a model file may claim, so that no file can make us allocate without bound.
inline constexpr int kMaxLayers = 1024;
inline constexpr int kMaxHeads = 1024;
inline constexpr int kMaxHeadDim = 1024;
inline constexpr int kMaxDim = 1 << 20;
inline constexpr int kMaxVocab = 1 << 22;
inline constexpr int64_t kMaxContext = int64_t{1} << 24;

}  // namespace smartgen::model
