// Writes GGUF files for tests, well-formed ones and others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace smartgen::model {

class GgufBuilder {
 public:
  struct Tensor {
    std::string name;
    std::vector<uint64_t> shape;
    uint32_t type = 0;
    uint64_t bytes = 0;
    int64_t offset = -1;  // -1: after the one before
  };

  uint32_t version = 3;
  uint64_t alignment = 32;
  std::vector<std::pair<std::string, std::string>> keys;  // name, encoded type and value
  std::vector<Tensor> tensors;

  template <typename T>
  static std::string Raw(T value) {
    std::string out(sizeof(T), '\0');
    std::memcpy(out.data(), &value, sizeof(T));
    return out;
  }
  static std::string Text(const std::string& text) { return Raw<uint64_t>(text.size()) + text; }
  static std::string U32(uint32_t v) { return Raw<uint32_t>(4) + Raw(v); }
  static std::string F32(float v) { return Raw<uint32_t>(6) + Raw(v); }
  static std::string Bool(uint8_t v) { return Raw<uint32_t>(7) + Raw(v); }
  static std::string String(const std::string& v) { return Raw<uint32_t>(8) + Text(v); }
  static std::string U64(uint64_t v) { return Raw<uint32_t>(10) + Raw(v); }
  static std::string ArrayOf(uint32_t type, uint64_t count, const std::string& elements) {
    return Raw<uint32_t>(9) + Raw(type) + Raw(count) + elements;
  }
  static std::string Strings(const std::vector<std::string>& values) {
    std::string out;
    for (const std::string& value : values) out += Text(value);
    return ArrayOf(8, values.size(), out);
  }
  static std::string Ints(const std::vector<int32_t>& values) {
    std::string out;
    for (const int32_t value : values) out += Raw(value);
    return ArrayOf(5, values.size(), out);
  }

  void Set(const std::string& key, const std::string& value) {
    for (auto& [name, old] : keys) {
      if (name == key) {
        old = value;
        return;
      }
    }
    keys.emplace_back(key, value);
  }
  void Erase(const std::string& key) {
    std::erase_if(keys, [&](const auto& entry) { return entry.first == key; });
  }
  Tensor& Get(const std::string& name) {
    for (Tensor& tensor : tensors) {
      if (tensor.name == name) return tensor;
    }
    tensors.push_back({.name = name});
    return tensors.back();
  }
  void EraseTensor(const std::string& name) {
    std::erase_if(tensors, [&](const Tensor& tensor) { return tensor.name == name; });
  }

  // `header_bytes`, if given, gets the length of all before the data.
  std::string Build(size_t* header_bytes = nullptr) const {
    std::string out =
        "GGUF" + Raw(version) + Raw<uint64_t>(tensors.size()) + Raw<uint64_t>(keys.size());
    for (const auto& [name, value] : keys) out += Text(name) + value;
    uint64_t next = 0;
    std::string data;
    for (const Tensor& tensor : tensors) {
      out += Text(tensor.name) + Raw<uint32_t>(static_cast<uint32_t>(tensor.shape.size()));
      for (const uint64_t size : tensor.shape) out += Raw(size);
      out += Raw(tensor.type) + Raw<uint64_t>(tensor.offset < 0 ? next : tensor.offset);
      data.resize(next, '\0');
      for (uint64_t i = 0; i < tensor.bytes; ++i) data += static_cast<char>(i % 7);
      next = (data.size() + alignment - 1) / alignment * alignment;
    }
    if (header_bytes != nullptr) *header_bytes = out.size();
    out.resize((out.size() + alignment - 1) / alignment * alignment, '\0');
    return out + data;
  }

  // A llama of one layer: hidden 32, 2 heads, 1 KV head, FFN 64, vocabulary 8, all float32.
  static GgufBuilder TinyLlama() {
    GgufBuilder b;
    b.keys = {{"general.architecture", String("llama")},
              {"general.name", String("tiny")},
              {"llama.block_count", U32(1)},
              {"llama.context_length", U32(128)},
              {"llama.embedding_length", U32(32)},
              {"llama.feed_forward_length", U32(64)},
              {"llama.attention.head_count", U32(2)},
              {"llama.attention.head_count_kv", U32(1)},
              {"llama.attention.layer_norm_rms_epsilon", F32(1e-5f)},
              {"llama.vocab_size", U32(8)},
              {"tokenizer.ggml.model", String("gpt2")},
              {"tokenizer.ggml.tokens", Strings({"a", "b", "c", "d", "e", "f", "ab", "<e>"})},
              {"tokenizer.ggml.token_type", Ints({1, 1, 1, 1, 1, 1, 1, 3})},
              {"tokenizer.ggml.merges", Strings({"a b"})},
              {"tokenizer.ggml.eos_token_id", U32(7)},
              {"tokenizer.ggml.add_bos_token", Bool(0)}};
    const auto add = [&b](const std::string& name, std::vector<uint64_t> shape) {
      uint64_t bytes = 4;
      for (const uint64_t size : shape) bytes *= size;
      b.tensors.push_back({name, std::move(shape), 0, bytes, -1});
    };
    add("token_embd.weight", {32, 8});
    add("blk.0.attn_norm.weight", {32});
    add("blk.0.attn_q.weight", {32, 32});
    add("blk.0.attn_k.weight", {32, 16});
    add("blk.0.attn_v.weight", {32, 16});
    add("blk.0.attn_output.weight", {32, 32});
    add("blk.0.ffn_norm.weight", {32});
    add("blk.0.ffn_gate.weight", {32, 64});
    add("blk.0.ffn_up.weight", {32, 64});
    add("blk.0.ffn_down.weight", {64, 32});
    add("output_norm.weight", {32});
    return b;
  }
};

}  // namespace smartgen::model
