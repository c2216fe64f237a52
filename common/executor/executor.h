// Runs the model. Knows KvSequences and weights, nothing of the network.
//
// One thread calls Prefill and Decode (the daemon's engine); they use the executor's own thread
// pool. Attention reads K and V as stored (rounded to the KV dtype), also inside the chunk that
// makes them, so chunked, prefix-hit and whole runs agree.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "common/base/status.h"
#include "common/kv/layout.h"
#include "common/kv/sequence.h"
#include "common/model/model.h"

namespace smartgen::executor {

using TokenId = int32_t;

// What products are computed in. kBF16 stores KV in bf16 and allows bf16 products, which are used
// where the machine has instructions for them that are faster than float. kAuto measures a small
// GEMM of each at start and takes the faster.
enum class ComputeType { kAuto, kF32, kBF16 };
std::string_view ComputeTypeName(ComputeType type);
absl::StatusOr<ComputeType> ParseComputeType(std::string_view name);

struct ExecutorOptions {
  ComputeType compute = ComputeType::kAuto;
  int threads = 0;  // 0: one a core
  // Chunk of a prefill that the executor works on at once; bounds the activations' memory.
  int max_prefill_tokens = 2048;
  int max_decode_batch = 64;
};

// A piece of a prompt. The sequence has room for start + tokens.size(); [0, start) is local in all
// layers.
struct PrefillChunk {
  kv::KvSequence* sequence = nullptr;
  int64_t start = 0;                // absolute position of tokens[0]
  std::span<const TokenId> tokens;  // 1 to max_prefill_tokens
  // KV of tokens [begin, end) of `layer` is in host memory and marked local. Called on the calling
  // thread, layer by layer, before the next layer is computed.
  std::function<void(int layer, int64_t begin, int64_t end)> on_layer;
  // Asked between layers; true ends the run with Cancelled.
  std::function<bool()> cancelled;
  // vocab_size values: logits after the chunk's last token. Empty: not computed.
  std::span<float> last_logits;
  // Logits of every position, in order (for NLL). Empty: not computed. The span is valid during the
  // call.
  std::function<void(int64_t position, std::span<const float> logits)> on_logits;
};

// One sequence's next step: `token` stands at `position`; its KV is written there and marked local;
// [0, position) is local in all layers.
struct DecodeSlot {
  kv::KvSequence* sequence = nullptr;
  int64_t position = 0;
  TokenId token = 0;
  std::span<float> logits;  // vocab_size values out
};

class Executor {
 public:
  virtual ~Executor() = default;
  virtual const model::ModelConfig& config() const = 0;
  virtual ComputeType compute() const = 0;  // never kAuto
  virtual kv::DType kv_dtype() const = 0;   // f32 for f32, bf16 for bf16
  // Of sequences up to token_capacity tokens.
  virtual kv::KvLayout Layout(int64_t token_capacity) const = 0;
  virtual int threads() const = 0;

  // InvalidArgument for ids outside the vocabulary or sizes outside the options; FailedPrecondition
  // if KV is missing that should be local. An error leaves the sequence as it was before the chunk,
  // but for bytes beyond `start`.
  virtual absl::Status Prefill(const PrefillChunk& chunk) = 0;
  // All sequences in one step. A sequence's result does not depend on its neighbours.
  virtual absl::Status Decode(std::span<const DecodeSlot> batch) = 0;
};

// `model` is only read during the call (weights are converted).
absl::StatusOr<std::unique_ptr<Executor>> CreateCpuExecutor(const model::Model& model,
                                                            const ExecutorOptions& options);

}  // namespace smartgen::executor
