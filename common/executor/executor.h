// Runs the model. Knows KvSequences and weights, nothing of the network.
//
// One thread calls everything (the daemon's engine); the work goes to the executor's own thread
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
#include "common/kv/pool.h"
#include "common/kv/remote_kv.h"
#include "common/kv/sequence.h"
#include "common/model/model.h"
#include "common/selector/selector.h"

namespace smartgen::executor {

using TokenId = int32_t;

// What products are computed in. kBF16 stores KV in bf16 and allows bf16 products, which are used
// for prompts where the machine has instructions for them that are faster than float; a token's KV
// is then within bf16's rounding of what a decode step makes of it, not equal to it. kAuto measures
// a small GEMM of each at start and takes the faster.
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
// layers (of a layer with a sliding window: what the window shows of it).
struct PrefillChunk {
  kv::KvSequence* sequence = nullptr;
  int64_t start = 0;                // absolute position of tokens[0]
  std::span<const TokenId> tokens;  // 1 to max_prefill_tokens
  // The layer's queries after RoPE, not scaled: row i is token start + i, query heads x head dim
  // values of it from queries[i * ld] on. Called before on_layer; the span is valid during the
  // call.
  std::function<void(int layer, std::span<const float> queries, int64_t ld)> on_queries;
  // KV of tokens [begin, end) of `layer` is in host memory and marked local. Called on the calling
  // thread, layer by layer.
  std::function<void(int layer, int64_t begin, int64_t end)> on_layer;
  // Asked between layers; true ends the run with Cancelled. Within it Decode, StartStep, Advance
  // and Attend may be called, of other sequences (a decode step needs not wait for a long chunk's
  // end); neither result changes by that.
  std::function<bool()> cancelled;
  // vocab_size values: logits after the chunk's last token. Empty: not computed.
  std::span<float> last_logits;
  // Logits of every position, in order (for NLL). Empty: not computed. The span is valid during the
  // call.
  std::function<void(int64_t position, std::span<const float> logits)> on_logits;
};

// How a slot reads KV that is selected, or not all here.
struct SlotRead {
  // Which entries the step attends to; null: all (full attention).
  const selector::KvSelector* selector = nullptr;
  // With a selector: this sequence's, made for the selector's layout. In each layer that is run the
  // step adds the token's key to it. What Select needs must be in it.
  selector::MetadataStore* metadata = nullptr;
  // Brings what is needed and not local; null: all that is visible is local.
  kv::RemoteKv* remote = nullptr;
  // Full attention with `remote`, > 0: query shipping. Tokens [0, ship_end) may be remote. Per
  // layer w is the first of them that is not local; tokens [w, ship_end) are attended to by the
  // other side, whatever of them is here. 0: what is missing is fetched.
  int64_t ship_end = 0;
  // Asks for the remote part of layer l + 1 while layer l runs, where it can be told before: by
  // selectors that predict and where all tokens are read. Changes no result.
  bool prefetch = false;
  // With a selector, after each layer's selection: for profiles. May be empty.
  std::function<void(int layer, const selector::Selection&)> on_selection;

  // Out, added up over layers: entries (token x KV head) attended to; of these not here when their
  // layer began.
  int64_t selected_entries = 0;
  int64_t remote_entries = 0;
};

// One sequence's next step: `token` stands at `position`. By default it runs all layers: the
// token's KV is written and marked local in each, and [0, position) is local in all of them (of a
// layer with a sliding window: what the window shows of it).
//
// A slot may run a range of layers, and another slot, call or executor the rest: the numbers are
// those of a whole run, bit for bit.
struct DecodeSlot {
  kv::KvSequence* sequence = nullptr;
  int64_t position = 0;
  TokenId token = 0;
  // vocab_size values out, where the last layer is among those that are run; may be empty elsewhere
  // and where `hidden` takes the result.
  std::span<float> logits;
  // Layers [layer_begin, layer_end); -1: to the last. KV is written, and must be local before, in
  // these layers only. layer_begin == layers: none is run, logits are made from `hidden`.
  int layer_begin = 0;
  int layer_end = -1;
  // hidden_dim values. In where layer_begin > 0: the output of layer layer_begin - 1. Out (if not
  // empty): the output of layer layer_end - 1, before the output norm. Needed where layer_begin > 0
  // or layer_end is not the last.
  std::span<float> hidden;
  SlotRead* read = nullptr;  // null: full attention, all local. Only for StartStep
};

// A step that may have to wait for remote KV. What its slots point at must stay until it is done or
// destroyed; it must not outlive its executor. Called by the executor's one thread, several runs in
// any order. Destroying it early leaves the sequences as after a failed step: the token's KV is
// there in some layers, and the same token may be run again.
class StepRun {
 public:
  enum class State { kWaiting, kDone };
  virtual ~StepRun() = default;
  // Runs until done or until it must wait for remote KV; never blocks on the network. An error ends
  // the step; it is returned again by later calls.
  virtual absl::StatusOr<State> Advance() = 0;
};

// Partial attention of one query over tokens [begin, end) of a layer, all local: what the side that
// holds the KV does for query shipping. No window is applied.
struct AttendJob {
  kv::KvSequence* sequence = nullptr;
  int layer = 0;
  int64_t begin = 0;
  int64_t end = 0;
  std::span<const float> queries;  // [query heads][head dim], after RoPE, not scaled
  std::span<float> out;            // the same shape: softmax-weighted means of V; 0 without tokens
  std::span<float> lse;            // [query heads]: natural log of the sum of e^score; or -infinity
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
  // What the pool of the sequences should be made of; null: nothing in particular. May outlive the
  // executor.
  virtual std::shared_ptr<kv::PageMemory> page_memory() const { return nullptr; }
  // Not OK when nothing can be computed any more, whatever is asked: the process must be started
  // anew. Thread-safe.
  virtual absl::Status health() const { return absl::OkStatus(); }

  // InvalidArgument for ids outside the vocabulary or sizes outside the options; FailedPrecondition
  // if KV is missing that should be local. An error leaves the sequence as it was before the chunk,
  // but for bytes beyond `start`.
  virtual absl::Status Prefill(const PrefillChunk& chunk) = 0;
  // All sequences in one step. A sequence's result does not depend on its neighbours.
  // InvalidArgument for what does not fit (the message names slot and field), FailedPrecondition if
  // KV is missing that should be local.
  virtual absl::Status Decode(std::span<const DecodeSlot> batch) = 0;
  // The same in steps, also for slots with `read`; nothing is computed before the first Advance.
  // Several runs may be open at once, of different sequences.
  virtual absl::StatusOr<std::unique_ptr<StepRun>> StartStep(std::span<const DecodeSlot> batch) = 0;
  // All jobs together. InvalidArgument for sizes that do not fit, FailedPrecondition if KV is
  // missing.
  virtual absl::Status Attend(std::span<const AttendJob> jobs) = 0;
};

// `model` is only read during the call (weights are converted).
absl::StatusOr<std::unique_ptr<Executor>> CreateCpuExecutor(const model::Model& model,
                                                            const ExecutorOptions& options);

}  // namespace smartgen::executor
