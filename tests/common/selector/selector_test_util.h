// Sequences with known keys, and random numbers, for the tests of this folder.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "common/kv/sequence.h"
#include "common/selector/dtype.h"
#include "common/selector/random.h"
#include "common/selector/selector.h"

namespace smartgen::selector {

inline std::vector<float> Normals(Random& random, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& x : values) x = random.Normal();
  return values;
}

// Rounded before anything is added to it, on every platform, as the kernels do.
inline float Product(float a, float b) {
  volatile float product = a * b;
  return product;
}

inline kv::KvLayout LayoutOf(int layers, int kv_heads, int head_dim, kv::DType dtype,
                             int64_t tokens, int window = 0) {
  kv::KvLayout layout{.dtype = dtype, .token_capacity = tokens};
  layout.layers.assign(static_cast<size_t>(layers),
                       {.kv_heads = kv_heads, .head_dim = head_dim, .window = window});
  return layout;
}

// A sequence whose keys are random normals in every layer.
class TestSequence {
 public:
  TestSequence(const kv::KvLayout& layout, int64_t tokens, uint64_t seed) : tokens_(tokens) {
    auto pool = kv::KvPool::Create(
        layout, {.bytes = (kv::KvPool::PagesFor(tokens) + 1) * layout.PageBytesTotal()});
    if (!pool.ok()) std::abort();
    pool_ = std::move(pool).value();
    sequence_ = std::make_unique<kv::KvSequence>(pool_.get());
    if (!sequence_->Reserve(tokens).ok()) std::abort();
    Random random(seed);
    for (int layer = 0; layer < layout.num_layers(); ++layer) {
      for (int64_t t = 0; t < tokens; ++t) {
        for (int h = 0; h < layout.layers[layer].kv_heads; ++h) {
          for (int c = 0; c < layout.layers[layer].head_dim; ++c) {
            StoreElement(random.Normal(), layout.dtype,
                         KeyAt(layer, h, t) + c * kv::DTypeBytes(layout.dtype));
          }
        }
      }
    }
  }

  kv::KvSequence& operator*() { return *sequence_; }
  kv::KvSequence* operator->() { return sequence_.get(); }
  int64_t tokens() const { return tokens_; }
  std::byte* KeyAt(int layer, int head, int64_t token) {
    return sequence_->Page(layer, token / kv::kPageTokens) +
           pool_->layout().KOffset(layer, head, static_cast<int>(token % kv::kPageTokens));
  }
  std::vector<float> Key(int layer, int head, int64_t token) {
    std::vector<float> key(static_cast<size_t>(pool_->layout().layers[layer].head_dim));
    LoadRow(KeyAt(layer, head, token), static_cast<int>(key.size()), pool_->layout().dtype,
            key.data());
    return key;
  }

 private:
  int64_t tokens_;
  std::unique_ptr<kv::KvPool> pool_;
  std::unique_ptr<kv::KvSequence> sequence_;
};

inline std::unique_ptr<KvSelector> MakeSelector(const Options& options, const kv::KvLayout& layout,
                                                int group, const Parameters& parameters = {}) {
  std::vector<int> query_heads;
  for (const auto& layer : layout.layers) query_heads.push_back(layer.kv_heads * group);
  auto selector = KvSelector::Create(options, layout, std::move(query_heads), parameters);
  if (!selector.ok()) std::abort();
  return std::move(selector).value();
}

}  // namespace smartgen::selector
