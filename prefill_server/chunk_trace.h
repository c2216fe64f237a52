// The layers of a prompt's chunk as events of a traced request: a layer runs between two calls of
// PrefillChunk::cancelled, and what is computed for others in such a call is not its time.
#pragma once

#include <cstdint>
#include <utility>

#include "common/trace/trace.h"

namespace smartgen::prefill_server {

// Does nothing with a null trace. One thread.
class ChunkTrace {
 public:
  ChunkTrace(trace::TracePtr trace, int64_t first_token, int64_t tokens)
      : trace_(std::move(trace)), first_token_(first_token), tokens_(tokens) {
    if (trace_ != nullptr) begun_ = trace_->Now();
  }
  // The layer and the chunk under way end.
  ~ChunkTrace() {
    EndLayer();
    if (trace_ != nullptr) {
      trace_->Add(trace::Kind::kPrefillChunk, begun_, {first_token_, tokens_});
    }
  }
  ChunkTrace(const ChunkTrace&) = delete;
  ChunkTrace& operator=(const ChunkTrace&) = delete;

  void EndLayer() {
    if (trace_ == nullptr || !running_) return;
    running_ = false;
    trace_->Add(trace::Kind::kPrefillLayer, layer_begun_, {layer_++, first_token_, tokens_});
  }
  void BeginLayer() {
    if (trace_ == nullptr) return;
    running_ = true;
    layer_begun_ = trace_->Now();
  }
  void LayerReady(int layer) { trace::Mark(trace_, trace::Kind::kLayerReady, {layer}); }

 private:
  const trace::TracePtr trace_;
  const int64_t first_token_;
  const int64_t tokens_;
  base::TimePoint begun_{};
  base::TimePoint layer_begun_{};
  int64_t layer_ = 0;
  bool running_ = false;
};

}  // namespace smartgen::prefill_server
