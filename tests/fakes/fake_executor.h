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
    std::vector<int> windows;  // by layer, 2 or more; 0, or fewer than layers: none
    int max_prefill_tokens = 2048;
    int64_t read_from = 0;  // slots with `read` read no token before
    executor::ComputeType compute = executor::ComputeType::kBF16;
    // Called before each layer of a prefill and before each decode step (layer -1): tests block or
    // count here.
    std::function<void(int layer)> before;
    // Why a slot of a step cannot be computed; null: all can.
    std::function<absl::Status(const executor::DecodeSlot& slot)> fails;
  };

  explicit FakeExecutor(Options options) : options_(std::move(options)) {
    config_.architecture = "fake";
    config_.name = "fake";
    config_.vocab_size = options_.vocab;
    config_.context_length = options_.context;
    config_.hidden_dim = kHidden;
    config_.layers.resize(static_cast<size_t>(options_.layers));
    for (auto& layer : config_.layers) {
      layer.num_heads = options_.kv_heads;
      layer.head_dim = options_.head_dim;
    }
  }

  const model::ModelConfig& config() const override { return config_; }
  executor::ComputeType compute() const override { return options_.compute; }
  kv::DType kv_dtype() const override { return kv::DType::kBF16; }
  int threads() const override { return 1; }
  absl::Status health() const override {
    return failed_ ? base::Internal("the fake executor's device is lost") : absl::OkStatus();
  }
  // For good: prompts and steps fail from here on. Thread-safe.
  void Fail() { failed_ = true; }
  kv::KvLayout Layout(int64_t token_capacity) const override {
    kv::KvLayout layout;
    layout.layers.assign(
        static_cast<size_t>(options_.layers),
        {.kv_heads = options_.kv_heads, .head_dim = options_.head_dim, .window = 0});
    for (size_t i = 0; i < options_.windows.size(); ++i) {
      layout.layers[i].window = options_.windows[i];
    }
    layout.dtype = kv_dtype();
    layout.token_capacity = token_capacity;
    return layout;
  }

  absl::Status Prefill(const executor::PrefillChunk& chunk) override {
    RETURN_IF_ERROR(health());
    const auto count = static_cast<int64_t>(chunk.tokens.size());
    if (count < 1 || count > options_.max_prefill_tokens)
      return base::InvalidArgument("chunk of {} tokens", count);
    for (int layer = 0; layer < options_.layers; ++layer) {
      if (chunk.cancelled && chunk.cancelled())
        return base::Cancelled("cancelled before layer {}", layer);
      if (options_.before) options_.before(layer);
      RETURN_IF_ERROR(CheckLocal(*chunk.sequence, layer, Seen(*chunk.sequence, layer, chunk.start),
                                 chunk.start));
      for (int64_t i = 0; i < count; ++i)
        Write(*chunk.sequence, layer, chunk.start + i, chunk.tokens[i]);
      chunk.sequence->MarkLocal(layer, chunk.start, chunk.start + count);
      if (chunk.on_layer) chunk.on_layer(layer, chunk.start, chunk.start + count);
    }
    if (chunk.last_logits.empty()) return absl::OkStatus();
    uint64_t state = 0;
    for (int layer = 0; layer < options_.layers; ++layer)
      state = Absorb(state, *chunk.sequence, layer,
                     Seen(*chunk.sequence, layer, chunk.start + count - 1), chunk.start + count);
    Logits(state, chunk.last_logits);
    return absl::OkStatus();
  }

  absl::Status Decode(std::span<const executor::DecodeSlot> batch) override {
    for (const executor::DecodeSlot& slot : batch) {
      if (slot.read != nullptr) return base::InvalidArgument("read: only for StartStep");
    }
    Run run(this, batch);
    return run.Advance().status();
  }

  // Slots with `read` read everything, whatever the selector; what is not here is fetched.
  absl::StatusOr<std::unique_ptr<executor::StepRun>> StartStep(
      std::span<const executor::DecodeSlot> batch) override {
    return std::make_unique<Run>(this, batch);
  }

  absl::Status Attend(std::span<const executor::AttendJob>) override {
    return base::Unimplemented("this fake has no attention");
  }

 private:
  class Run final : public executor::StepRun {
   public:
    Run(FakeExecutor* executor, std::span<const executor::DecodeSlot> batch)
        : executor_(executor), batch_(batch.begin(), batch.end()) {}

    absl::StatusOr<State> Advance() override {
      for (; at_ < batch_.size(); ++at_, layer_ = -1) {
        const executor::DecodeSlot& slot = batch_[at_];
        if (layer_ < 0) RETURN_IF_ERROR(Begin(slot));
        for (; layer_ < end_; ++layer_, asked_ = false) {
          ASSIGN_OR_RETURN(const bool here, Fetch(slot));
          if (!here) return State::kWaiting;
          const int64_t first = First(slot, slot.position);
          RETURN_IF_ERROR(CheckLocal(*slot.sequence, layer_, first, slot.position));
          Write(*slot.sequence, layer_, slot.position, slot.token);
          slot.sequence->MarkLocal(layer_, slot.position, slot.position + 1);
          state_ =
              Absorb(state_, *slot.sequence, layer_, First(slot, slot.position), slot.position + 1);
        }
        if (!slot.hidden.empty()) std::memcpy(slot.hidden.data(), &state_, sizeof state_);
        if (end_ == executor_->options_.layers) Logits(state_, slot.logits);
      }
      return State::kDone;
    }

   private:
    absl::Status Begin(const executor::DecodeSlot& slot) {
      RETURN_IF_ERROR(executor_->health());
      const int layers = executor_->options_.layers;
      if (at_ == 0 && executor_->options_.before) executor_->options_.before(-1);
      if (executor_->options_.fails) RETURN_IF_ERROR(executor_->options_.fails(slot));
      end_ = slot.layer_end < 0 ? layers : slot.layer_end;
      if (slot.layer_begin < 0 || slot.layer_begin > end_ || end_ > layers)
        return base::InvalidArgument("layers [{}, {})", slot.layer_begin, end_);
      if ((slot.layer_begin > 0 || end_ < layers) && slot.hidden.size() != kHidden)
        return base::InvalidArgument("hidden: {} values", slot.hidden.size());
      state_ = 0;
      if (slot.layer_begin > 0) std::memcpy(&state_, slot.hidden.data(), sizeof state_);
      layer_ = slot.layer_begin;
      return absl::OkStatus();
    }

    // The first token that the slot's reads.
    int64_t First(const executor::DecodeSlot& slot, int64_t position) const {
      const int64_t seen = Seen(*slot.sequence, layer_, position);
      return slot.read != nullptr ? std::max(seen, executor_->options_.read_from) : seen;
    }

    absl::StatusOr<bool> Fetch(const executor::DecodeSlot& slot) {
      if (slot.read == nullptr || slot.read->remote == nullptr) return true;
      if (!asked_) {
        asked_ = true;
        const int heads = executor_->options_.kv_heads;
        std::vector<kv::HeadRange> missing;
        for (int head = 0; head < heads; ++head) {
          for (int64_t token = First(slot, slot.position); token < slot.position; ++token) {
            if (slot.sequence->HeadLocal(layer_, head, token)) continue;
            missing.push_back({head, token, token + 1});
          }
        }
        slot.read->selected_entries += heads * slot.position;
        slot.read->remote_entries += static_cast<int64_t>(missing.size());
        if (!missing.empty()) RETURN_IF_ERROR(slot.read->remote->Fetch(layer_, missing));
      }
      return slot.read->remote->Fetched(layer_);
    }

    FakeExecutor* const executor_;
    const std::vector<executor::DecodeSlot> batch_;
    size_t at_ = 0;
    int layer_ = -1;  // of that slot; -1: not begun
    int end_ = 0;
    bool asked_ = false;
    uint64_t state_ = 0;
  };

  // The first token that the one at `position` sees.
  static int64_t Seen(const kv::KvSequence& sequence, int layer, int64_t position) {
    const int window = sequence.layout().layers[static_cast<size_t>(layer)].window;
    return window > 0 ? std::max<int64_t>(position + 1 - window, 0) : 0;
  }

  // KV of tokens [begin, end).
  static absl::Status CheckLocal(const kv::KvSequence& sequence, int layer, int64_t begin,
                                 int64_t end) {
    const int64_t first = sequence.FirstNotLocal(layer, std::min(begin, end), end);
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
  static uint64_t Absorb(uint64_t state, kv::KvSequence& sequence, int layer, int64_t begin,
                         int64_t end) {
    base::Hasher64 hasher;
    hasher.Update(std::as_bytes(std::span(&state, 1)));
    for (const std::span<std::byte> segment : sequence.Segments(layer, begin, end)) {
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
  std::atomic<bool> failed_ = false;
  model::ModelConfig config_;
};

}  // namespace smartgen::fakes
