// An executor without a model, for tests of everything around one.
//
// Each token's KV in a layer is made from the token and from the KV before it as it stands in
// memory, and logits are made from every byte of KV of all layers: one wrong or missing byte
// anywhere changes all tokens that follow. A hidden state is a hash over the KV of the layers so
// far, so that a step run by two executors gives the logits of a whole one.
#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "common/base/hash.h"
#include "common/base/status.h"
#include "common/executor/executor.h"

namespace smartgen::fakes {

class FakeExecutor final : public executor::Executor {
 public:
  struct Options {
    int layers = 4;
    int kv_heads = 2;
    int head_dim = 8;
    int vocab = 256;
    int64_t context = 4096;
    int max_prefill_tokens = 2048;
    executor::ComputeType compute = executor::ComputeType::kBF16;
    // Called before each layer of a prefill and before each decode step (layer -1): tests block or
    // count here.
    std::function<void(int layer)> before;
  };

  explicit FakeExecutor(Options options) : options_(std::move(options)) {
    config_.architecture = "fake";
    config_.name = "fake";
    config_.vocab_size = options_.vocab;
    config_.context_length = options_.context;
    config_.hidden_dim = kHidden;
    config_.layers.resize(static_cast<size_t>(options_.layers));
  }

  const model::ModelConfig& config() const override { return config_; }
  executor::ComputeType compute() const override { return options_.compute; }
  kv::DType kv_dtype() const override { return kv::DType::kBF16; }
  int threads() const override { return 1; }
  kv::KvLayout Layout(int64_t token_capacity) const override {
    kv::KvLayout layout;
    layout.layers.assign(
        static_cast<size_t>(options_.layers),
        {.kv_heads = options_.kv_heads, .head_dim = options_.head_dim, .window = 0});
    layout.dtype = kv_dtype();
    layout.token_capacity = token_capacity;
    return layout;
  }

  absl::Status Prefill(const executor::PrefillChunk& chunk) override {
    const auto count = static_cast<int64_t>(chunk.tokens.size());
    if (count < 1 || count > options_.max_prefill_tokens)
      return base::InvalidArgument("chunk of {} tokens", count);
    for (int layer = 0; layer < options_.layers; ++layer) {
      if (chunk.cancelled && chunk.cancelled())
        return base::Cancelled("cancelled before layer {}", layer);
      if (options_.before) options_.before(layer);
      RETURN_IF_ERROR(CheckLocal(*chunk.sequence, layer, chunk.start));
      for (int64_t i = 0; i < count; ++i)
        Write(*chunk.sequence, layer, chunk.start + i, chunk.tokens[i]);
      chunk.sequence->MarkLocal(layer, chunk.start, chunk.start + count);
      if (chunk.on_layer) chunk.on_layer(layer, chunk.start, chunk.start + count);
    }
    if (chunk.last_logits.empty()) return absl::OkStatus();
    uint64_t state = 0;
    for (int layer = 0; layer < options_.layers; ++layer)
      state = Absorb(state, *chunk.sequence, layer, chunk.start + count);
    Logits(state, chunk.last_logits);
    return absl::OkStatus();
  }

  absl::Status Decode(std::span<const executor::DecodeSlot> batch) override {
    if (options_.before) options_.before(-1);
    for (const executor::DecodeSlot& slot : batch) {
      if (slot.read != nullptr) return base::InvalidArgument("read: this fake reads all");
      const int end = slot.layer_end < 0 ? options_.layers : slot.layer_end;
      if (slot.layer_begin < 0 || slot.layer_begin > end || end > options_.layers)
        return base::InvalidArgument("layers [{}, {})", slot.layer_begin, end);
      if ((slot.layer_begin > 0 || end < options_.layers) && slot.hidden.size() != kHidden)
        return base::InvalidArgument("hidden: {} values", slot.hidden.size());
      uint64_t state = 0;
      if (slot.layer_begin > 0) std::memcpy(&state, slot.hidden.data(), sizeof state);
      for (int layer = slot.layer_begin; layer < end; ++layer) {
        RETURN_IF_ERROR(CheckLocal(*slot.sequence, layer, slot.position));
        Write(*slot.sequence, layer, slot.position, slot.token);
        slot.sequence->MarkLocal(layer, slot.position, slot.position + 1);
        state = Absorb(state, *slot.sequence, layer, slot.position + 1);
      }
      if (!slot.hidden.empty()) std::memcpy(slot.hidden.data(), &state, sizeof state);
      if (end == options_.layers) Logits(state, slot.logits);
    }
    return absl::OkStatus();
  }

  // Runs the whole step in the first Advance.
  absl::StatusOr<std::unique_ptr<executor::StepRun>> StartStep(
      std::span<const executor::DecodeSlot> batch) override {
    class Run final : public executor::StepRun {
     public:
      Run(FakeExecutor* executor, std::span<const executor::DecodeSlot> batch)
          : executor_(executor), batch_(batch.begin(), batch.end()) {}
      absl::StatusOr<State> Advance() override {
        RETURN_IF_ERROR(executor_->Decode(batch_));
        return State::kDone;
      }

     private:
      FakeExecutor* executor_;
      std::vector<executor::DecodeSlot> batch_;
    };
    return std::make_unique<Run>(this, batch);
  }

  absl::Status Attend(std::span<const executor::AttendJob>) override {
    return base::Unimplemented("this fake has no attention");
  }

 private:
  static absl::Status CheckLocal(const kv::KvSequence& sequence, int layer, int64_t end) {
    const int64_t first = sequence.FirstNotLocal(layer, 0, end);
    if (first == end) return absl::OkStatus();
    return base::FailedPrecondition("layer {} token {} is not local", layer, first);
  }

  static void Write(kv::KvSequence& sequence, int layer, int64_t position, int32_t token) {
    uint64_t before = 0;
    if (position > 0) {
      const auto row = sequence.Segments(layer, position - 1, position).front();
      std::memcpy(&before, row.data(), sizeof before);
    }
    const uint64_t parts[] = {before, static_cast<uint64_t>(layer), static_cast<uint64_t>(position),
                              static_cast<uint64_t>(token)};
    uint64_t value = base::Hash64(std::as_bytes(std::span(parts)));
    for (const std::span<std::byte> segment : sequence.Segments(layer, position, position + 1)) {
      for (size_t at = 0; at < segment.size(); at += sizeof value) {
        std::memcpy(segment.data() + at, &value, std::min(sizeof value, segment.size() - at));
        value = value * 6364136223846793005ULL + 1442695040888963407ULL;
      }
    }
  }

  // One hash over all bytes of a layer's KV: how they lie in memory does not count.
  static uint64_t Absorb(uint64_t state, kv::KvSequence& sequence, int layer, int64_t end) {
    base::Hasher64 hasher;
    hasher.Update(std::as_bytes(std::span(&state, 1)));
    for (const std::span<std::byte> segment : sequence.Segments(layer, 0, end)) {
      hasher.Update(segment);
    }
    return hasher.Digest();
  }

  static void Logits(uint64_t digest, std::span<float> out) {
    for (size_t i = 0; i < out.size(); ++i) {
      const uint64_t parts[] = {digest, i};
      out[i] = static_cast<float>(base::Hash64(std::as_bytes(std::span(parts))) >> 40) * 1e-6f;
    }
  }

  static constexpr int kHidden = 2;  // floats that hold a hash

  const Options options_;
  model::ModelConfig config_;
};

}  // namespace smartgen::fakes
