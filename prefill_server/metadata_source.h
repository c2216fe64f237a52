// Selection metadata of one prompt: built layer by layer as its keys are made, handed out in
// pieces. Used by the engine's thread alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/kv/sequence.h"
#include "common/selector/selector.h"

namespace smartgen::prefill_server {

class MetadataSource {
 public:
  // Takes a piece of the wire format (common/selector/metadata.h); `header`: the layer's header.
  using Sink = std::function<absl::Status(int layer, int64_t begin, int64_t end, bool header,
                                          std::vector<std::byte> bytes)>;

  // Handed out are tokens from `begin` on: the other side has the keys before.
  MetadataSource(std::shared_ptr<const selector::KvSelector> selector, int64_t token_capacity,
                 int64_t begin);

  // The prompt's queries of a layer, [rows][query heads][head dim], rows `ld` apart. Kinds that
  // choose channels do so from the first chunk's. Called before OnLayer of the same chunk.
  absl::Status OnQueries(int layer, std::span<const float> queries, int64_t ld, const Sink& sink);
  // Keys of tokens [0, end) of the layer are final.
  absl::Status OnLayer(int layer, int64_t end, kv::KvSequence& sequence, const Sink& sink);

  // What was handed out of tokens [begin, end) of the layer, and its header, once more.
  // InvalidArgument for a layer or range that there is not.
  absl::Status Resend(int layer, int64_t begin, int64_t end, const Sink& sink) const;

  const selector::KvSelector* selector() const { return selector_.get(); }
  selector::MetadataStore* store() { return &store_; }

 private:
  const std::shared_ptr<const selector::KvSelector> selector_;
  selector::MetadataStore store_;
  const int64_t begin_;
  std::vector<int64_t> next_;  // by layer: the first token that was not handed out
};

}  // namespace smartgen::prefill_server
