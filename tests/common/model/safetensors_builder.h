// Writes safetensors files and model folders for tests, well-formed ones and others.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/fakes/temp_folder.h"

namespace smartgen::model {

struct SafetensorsBuilder {
  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;
    std::string dtype = "F32";
    int element_bytes = 4;
  };
  std::vector<Tensor> tensors;

  // 8 bytes of length, `header`, `data_bytes` bytes of data.
  static std::string Raw(const std::string& header, size_t data_bytes) {
    const uint64_t length = header.size();
    std::string out(sizeof(length), '\0');
    std::memcpy(out.data(), &length, sizeof(length));
    return out + header + std::string(data_bytes, '\0');
  }

  std::string Build() const {
    std::string header = R"({"__metadata__":{"format":"pt"})";
    int64_t at = 0;
    for (const Tensor& tensor : tensors) {
      int64_t bytes = tensor.element_bytes;
      std::string shape;
      for (const int64_t size : tensor.shape) {
        bytes *= size;
        shape += (shape.empty() ? "" : ",") + std::to_string(size);
      }
      header += ",\"" + tensor.name + "\":{\"dtype\":\"" + tensor.dtype + "\",\"shape\":[" + shape +
                "],\"data_offsets\":[" + std::to_string(at) + "," + std::to_string(at + bytes) +
                "]}";
      at += bytes;
    }
    return Raw(header + "}", static_cast<size_t>(at));
  }

  void Erase(const std::string& name) {
    std::erase_if(tensors, [&](const Tensor& tensor) { return tensor.name == name; });
  }

  // One layer: hidden 8, 2 heads of 4, 1 KV head, FFN 16, vocabulary 4, tied.
  static SafetensorsBuilder TinyLlama() {
    const std::string layer = "model.layers.0.";
    return {{{"model.embed_tokens.weight", {4, 8}},
             {layer + "input_layernorm.weight", {8}},
             {layer + "self_attn.q_proj.weight", {8, 8}},
             {layer + "self_attn.k_proj.weight", {4, 8}},
             {layer + "self_attn.v_proj.weight", {4, 8}},
             {layer + "self_attn.o_proj.weight", {8, 8}},
             {layer + "post_attention_layernorm.weight", {8}},
             {layer + "mlp.gate_proj.weight", {16, 8}},
             {layer + "mlp.up_proj.weight", {16, 8}},
             {layer + "mlp.down_proj.weight", {8, 16}},
             {"model.norm.weight", {8}}}};
  }
};

inline constexpr const char* kTinyConfig = R"({
  "model_type": "llama", "hidden_act": "silu", "hidden_size": 8, "intermediate_size": 16,
  "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 4,
  "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
  "bos_token_id": 0, "eos_token_id": 1})";

}  // namespace smartgen::model
