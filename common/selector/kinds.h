// The implementations behind KvSelector::Create.
#pragma once

#include <map>
#include <vector>

#include "common/selector/selector.h"

namespace smartgen::selector {

class DenseSelector final : public KvSelector {
 public:
  DenseSelector(const Options& options, const kv::KvLayout& layout, std::vector<int> query_heads);

 protected:
  void EncodePage(int, const std::byte*, int64_t, int, std::span<const std::byte>,
                  std::byte*) const override {}
  void Choose(int, const MetadataStore::View&, std::span<const float>, const Extent&,
              Selection&) const override {}
};

class QuestSelector final : public KvSelector {
 public:
  QuestSelector(const Options& options, const kv::KvLayout& layout, std::vector<int> query_heads);

 protected:
  void EncodePage(int layer, const std::byte* keys, int64_t head_stride, int tokens,
                  std::span<const std::byte> header, std::byte* out) const override;
  void Choose(int layer, const MetadataStore::View& view, std::span<const float> queries,
              const Extent& extent, Selection& out) const override;
};

class HataSelector final : public KvSelector {
 public:
  HataSelector(const Options& options, const kv::KvLayout& layout, std::vector<int> query_heads,
               HeadMatrices trained);

 protected:
  void EncodePage(int layer, const std::byte* keys, int64_t head_stride, int tokens,
                  std::span<const std::byte> header, std::byte* out) const override;
  void Choose(int layer, const MetadataStore::View& view, std::span<const float> queries,
              const Extent& extent, Selection& out) const override;

 private:
  std::span<const float> Weights(int layer, int head) const;

  HeadMatrices trained_;
  std::map<int, std::vector<float>> random_;  // by head dim; shared by all layers and heads
};

class InfiniGenSelector final : public KvSelector {
 public:
  InfiniGenSelector(const Options& options, const kv::KvLayout& layout,
                    std::vector<int> query_heads, HeadMatrices skew);

  absl::Status ChooseChannels(int layer, std::span<const float> queries,
                              MetadataStore& store) const override;

 protected:
  void EncodePage(int layer, const std::byte* keys, int64_t head_stride, int tokens,
                  std::span<const std::byte> header, std::byte* out) const override;
  void Choose(int layer, const MetadataStore::View& view, std::span<const float> queries,
              const Extent& extent, Selection& out) const override;

 private:
  int Channels(int layer) const { return metadata_.layers[layer].row; }
  // out[r][c] = (x[r] A)[channel c of the head], `padded` floats a row.
  void ProjectToChannels(int layer, int head, std::span<const std::byte> header, const float* x,
                         int rows, int padded, float* out) const;

  HeadMatrices skew_;  // empty: identity
};

// Up to a multiple of 16.
inline int PadTo16(int n) { return (n + 15) / 16 * 16; }

}  // namespace smartgen::selector
