#include "common/executor/cuda/cuda_executor.h"

#include <utility>

#include "common/base/log.h"
#include "common/executor/cuda/device_step.h"
#include "common/executor/input_checks.h"

namespace smartgen::executor {

namespace cuda {
namespace {

constexpr int64_t kLogitRows = 64;  // rows of logits at a time where a caller wants all
constexpr uint64_t kMiB = 1 << 20;
// Of what is free, for the libraries and for allocations' grain.
constexpr uint64_t kReserveShare = 20;
// What a step's small arrays may take beside its activations.
constexpr uint64_t kStepBytes = 16 * kMiB;
// A step whose longest sequence is longer than this finds memory for attention's parts when it
// comes, or does not.
constexpr int64_t kBudgetTokens = 32 * 1024;
// Steps that may be open at once are few; more find their memory when they come, or do not.
constexpr uint64_t kOpenSteps = 2;

Element ElementOf(ComputeType compute) {
  return compute == ComputeType::kF32 ? Element::kF32 : Element::kBF16;
}

class CudaExecutor final : public Executor {
 public:
  CudaExecutor(const model::ModelConfig& config, const ExecutorOptions& options,
               std::unique_ptr<Context> context, std::unique_ptr<Gemm> gemm,
               std::unique_ptr<DeviceWeights> weights)
      : config_(config),
        options_(options),
        context_(std::move(context)),
        pages_(std::make_shared<PinnedPages>(context_->shared_device())),
        gemm_(std::move(gemm)),
        weights_(std::move(weights)),
        checks_(&config_, options, kv_dtype(), weights_->embedding.rows),
        forward_(&config_, weights_.get(), context_.get(), gemm_.get()),
        step_parts_{.config = &config_, .context = context_.get(), .forward = &forward_} {}
  // The memory that is known to be needed, before anything else takes it. kv_bytes: of the device,
  // for the copy of KV; 0: kernels read it in host memory.
  absl::Status Init(uint64_t kv_bytes) {
    RETURN_IF_ERROR(forward_.Reserve(options_.max_prefill_tokens, activations_));
    if (kv_bytes == 0) {
      kv_ = NewHostKv(pages_.get());
    } else {
      ASSIGN_OR_RETURN(kv_, NewDeviceKv(context_.get(), Layout(kPage), kv_bytes));
    }
    step_parts_.kv = kv_.get();
    return absl::OkStatus();
  }
  ~CudaExecutor() override {
    // What is queued uses memory that goes; a device that does not finish has said so before.
    (void)context_->FinishCompute();
    (void)context_->FinishCopies();
  }

  const model::ModelConfig& config() const override { return config_; }
  ComputeType compute() const override { return options_.compute; }
  kv::DType kv_dtype() const override {
    return options_.compute == ComputeType::kF32 ? kv::DType::kF32 : kv::DType::kBF16;
  }
  kv::KvLayout Layout(int64_t token_capacity) const override {
    return LayoutOf(config_, kv_dtype(), token_capacity);
  }
  int threads() const override { return 1; }
  std::shared_ptr<kv::PageMemory> page_memory() const override { return pages_; }
  absl::Status health() const override { return context_->status(); }

  absl::Status Prefill(const PrefillChunk& chunk) override {
    RETURN_IF_ERROR(context_->Enter());
    RETURN_IF_ERROR(checks_.Chunk(chunk));
    const absl::Status status = Compute(chunk);
    if (!status.ok()) {
      // What is queued uses what the caller may let go of now.
      (void)context_->FinishCopies();
      (void)context_->FinishCompute();
      for (size_t i = 0; i < chunk.tokens.size(); ++i) {
        kv_->Forget(*chunk.sequence, chunk.start + static_cast<int64_t>(i));
      }
    }
    uploads_.Reset();
    return status;
  }

  absl::Status Decode(std::span<const DecodeSlot> batch) override {
    RETURN_IF_ERROR(context_->Enter());
    RETURN_IF_ERROR(checks_.WholeBatch(batch));
    DeviceStep step(&step_parts_, batch);
    ASSIGN_OR_RETURN(const StepRun::State state, step.Advance());
    if (state == StepRun::State::kDone) return absl::OkStatus();
    return base::Internal("decode: a step without remote KV waits");
  }

  absl::StatusOr<std::unique_ptr<StepRun>> StartStep(std::span<const DecodeSlot> batch) override {
    RETURN_IF_ERROR(context_->Enter());
    RETURN_IF_ERROR(checks_.Batch(batch));
    return std::make_unique<DeviceStep>(&step_parts_, batch);
  }

  absl::Status Attend(std::span<const AttendJob> jobs) override {
    RETURN_IF_ERROR(context_->Enter());
    RETURN_IF_ERROR(checks_.Jobs(jobs));
    if (jobs.empty()) return absl::OkStatus();
    std::vector<std::vector<ReadJob>> by_layer(config_.layers.size());
    for (const AttendJob& job : jobs) {
      by_layer[static_cast<size_t>(job.layer)].push_back(
          {.sequence = job.sequence,
           .layer = job.layer,
           .num_heads = config_.layers[static_cast<size_t>(job.layer)].num_heads,
           .q = job.queries.data(),
           .out = job.out.data(),
           .lse = job.lse.data(),
           .begin = job.begin,
           .end = job.end});
    }
    for (const auto& of_layer : by_layer) {
      if (const absl::Status status = RunJobs(step_parts_, of_layer, attend_); !status.ok()) {
        // What is queued uses memory that the next call gets; a lost device is noticed here.
        (void)context_->FinishCompute();
        attend_.job_uploads.Reset();
        return status;
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Compute(const PrefillChunk& chunk) {
    const auto count = static_cast<int64_t>(chunk.tokens.size());
    const int64_t end = chunk.start + count;
    DeviceActivations& a = activations_;
    RETURN_IF_ERROR(forward_.Reserve(count, a));
    std::vector<int32_t> positions;
    for (int64_t i = 0; i < count; ++i) positions.push_back(static_cast<int32_t>(chunk.start + i));
    ASSIGN_OR_RETURN(const int32_t* const tokens, uploads_.Add(*context_, chunk.tokens));
    ASSIGN_OR_RETURN(const int32_t* const device_positions, uploads_.Add(*context_, positions));
    RETURN_IF_ERROR(forward_.Embed(tokens, count, a.hidden.data()));
    RETURN_IF_ERROR(forward_.FillRope(device_positions, count, a));
    // Of the last layer only those rows go on whose logits somebody wants.
    const int64_t wanted = chunk.on_logits ? 0 : (chunk.last_logits.empty() ? count : count - 1);
    std::vector<int32_t> mapped;
    const int32_t* table = nullptr;
    for (int layer = 0; layer < config_.num_layers(); ++layer) {
      if (chunk.cancelled && chunk.cancelled()) {
        return base::Cancelled("prefill of [{}, {}) cancelled before layer {}", chunk.start, end,
                               layer);
      }
      const model::LayerConfig& l = config_.layers[static_cast<size_t>(layer)];
      // Anew in each layer: steps that ran between may have taken pages.
      kv_->Begin();
      ASSIGN_OR_RETURN(std::vector<int32_t> pages, kv_->Map(*chunk.sequence, end));
      if (pages != mapped) {
        mapped = std::move(pages);
        ASSIGN_OR_RETURN(table, uploads_.Add(*context_, mapped));
      }
      PagedLayer place = kv_->Layer(*chunk.sequence, layer);
      place.pages = table;
      RETURN_IF_ERROR(
          kv_->Bring(*chunk.sequence, mapped, layer, VisibleBegin(l, chunk.start), chunk.start));
      RETURN_IF_ERROR(kv_->Flush());
      RETURN_IF_ERROR(forward_.ProjectQkv(layer, count, a));
      RETURN_IF_ERROR(Launched(Rope({.x = a.qkv.data(),
                                     .stride = QkvColumns(l),
                                     .rows = count,
                                     .query_heads = l.num_heads,
                                     .kv_heads = l.num_kv_heads,
                                     .head_dim = l.head_dim,
                                     .cosines = a.cosines.data(),
                                     .sines = a.sines.data(),
                                     .layer = place,
                                     .positions = device_positions},
                                    context_->stream()),
                               "RoPE"));
      kv_->Written(mapped, layer, chunk.start, end);
      RETURN_IF_ERROR(QueueCopies(chunk, layer, mapped, place));
      const int64_t begin = layer + 1 == config_.num_layers() ? wanted : 0;
      if (begin < count) {
        RETURN_IF_ERROR(Launched(PrefillAttention({.layer = place,
                                                   .position = chunk.start + begin,
                                                   .rows = count - begin,
                                                   .window = l.window,
                                                   .query_heads = l.num_heads,
                                                   .queries = a.qkv.data() + begin * QkvColumns(l),
                                                   .query_stride = QkvColumns(l),
                                                   .out = a.attended.data() + begin * QColumns(l),
                                                   .out_stride = QColumns(l)},
                                                  context_->stream()),
                                 "prefill attention"));
        RETURN_IF_ERROR(forward_.FinishLayer(layer, begin, count, a));
      }
      // While the device goes on.
      RETURN_IF_ERROR(context_->FinishCopies());
      chunk.sequence->MarkLocal(layer, chunk.start, end);
      if (chunk.on_queries) {
        chunk.on_queries(layer, {host_qkv_.data(), static_cast<size_t>(count * QkvColumns(l))},
                         QkvColumns(l));
      }
      if (chunk.on_layer) chunk.on_layer(layer, chunk.start, end);
    }
    RETURN_IF_ERROR(ReportLogits(chunk));
    return context_->FinishCompute();
  }

  // The chunk's KV of the layer, and its queries where they are wanted, to the host, as soon as
  // they are made.
  absl::Status QueueCopies(const PrefillChunk& chunk, int layer, std::span<const int32_t> pages,
                           const PagedLayer& place) {
    const auto count = static_cast<int64_t>(chunk.tokens.size());
    const int64_t end = chunk.start + count;
    RETURN_IF_ERROR(context_->CopiesFollow());
    device::Stream& copies = context_->copies();
    if (chunk.on_queries) {
      const int64_t values = count * QkvColumns(config_.layers[static_cast<size_t>(layer)]);
      RETURN_IF_ERROR(host_qkv_.Reserve(*context_, values));
      RETURN_IF_ERROR(copies.CopyOut({reinterpret_cast<std::byte*>(host_qkv_.data()),
                                      static_cast<size_t>(values) * sizeof(float)},
                                     reinterpret_cast<const std::byte*>(activations_.qkv.data())));
    }
    if (kv_->in_host_memory()) return absl::OkStatus();
    const kv::KvLayout& layout = chunk.sequence->layout();
    for (int64_t page = chunk.start / kPage; page * kPage < end; ++page) {
      const std::byte* const from =
          place.base + pages[static_cast<size_t>(page)] * place.page_bytes;
      std::byte* const to = chunk.sequence->Page(layer, page);
      const auto first = static_cast<int>(std::max<int64_t>(chunk.start - page * kPage, 0));
      const auto last = static_cast<int>(std::min<int64_t>(end - page * kPage, kPage));
      if (first == 0 && last == kPage) {
        RETURN_IF_ERROR(copies.CopyOut({to, static_cast<size_t>(place.page_bytes)}, from));
        continue;
      }
      const auto bytes = static_cast<size_t>((last - first) * layout.RowBytes(layer));
      for (int head = 0; head < place.kv_heads; ++head) {
        for (const int64_t offset :
             {layout.KOffset(layer, head, first), layout.VOffset(layer, head, first)}) {
          RETURN_IF_ERROR(copies.CopyOut({to + offset, bytes}, from + offset));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReportLogits(const PrefillChunk& chunk) {
    const auto count = static_cast<int64_t>(chunk.tokens.size());
    const int64_t vocab = config_.vocab_size;
    const int64_t first = chunk.on_logits ? 0 : count - 1;
    if (!chunk.on_logits && chunk.last_logits.empty()) return absl::OkStatus();
    const int64_t most = std::min(count - first, kLogitRows);
    RETURN_IF_ERROR(logits_.Reserve(*context_, most * vocab));
    RETURN_IF_ERROR(host_logits_.Reserve(*context_, most * vocab));
    for (int64_t begin = first; begin < count; begin += kLogitRows) {
      const int64_t end = std::min(count, begin + kLogitRows);
      RETURN_IF_ERROR(forward_.Logits(begin, end, logits_.data(), activations_));
      RETURN_IF_ERROR(
          context_->compute().CopyOut({reinterpret_cast<std::byte*>(host_logits_.data()),
                                       static_cast<size_t>((end - begin) * vocab) * sizeof(float)},
                                      reinterpret_cast<const std::byte*>(logits_.data())));
      RETURN_IF_ERROR(context_->FinishCompute());
      for (int64_t row = begin; row < end; ++row) {
        const float* const from = host_logits_.data() + (row - begin) * vocab;
        if (chunk.on_logits) {
          chunk.on_logits(chunk.start + row, {from, static_cast<size_t>(vocab)});
        }
        if (row + 1 == count && !chunk.last_logits.empty()) {
          std::copy(from, from + vocab, chunk.last_logits.begin());
        }
      }
    }
    return absl::OkStatus();
  }

  const model::ModelConfig config_;
  const ExecutorOptions options_;
  const std::unique_ptr<Context> context_;
  const std::shared_ptr<PinnedPages> pages_;
  const std::unique_ptr<Gemm> gemm_;
  const std::unique_ptr<DeviceWeights> weights_;
  const InputChecks checks_;
  DeviceForward forward_;
  std::unique_ptr<KvPlace> kv_;
  DeviceStepParts step_parts_;
  DeviceStepBuffers attend_;  // Attend's
  // Prefill's; steps have their own.
  DeviceActivations activations_;
  DeviceArray<float> logits_;
  PinnedArray<float> host_logits_;
  PinnedArray<float> host_qkv_;
  Uploads uploads_;
};

// What the device's memory goes to.
struct Budget {
  uint64_t total = 0;
  uint64_t weights = 0;
  uint64_t prefill = 0;
  uint64_t steps = 0;
  uint64_t kv() const { return total - weights - prefill - steps; }
};

// Of one step of so many sequences: its activations, and the largest of its other arrays
// (DeviceStepBuffers).
uint64_t StepBytes(const model::ModelConfig& config, const ExecutorOptions& options) {
  const int64_t batch = options.max_decode_batch;
  const int64_t tokens = std::min(config.context_length, kBudgetTokens);
  int64_t columns = 0;
  int64_t scratch = 0;
  for (const model::LayerConfig& l : config.layers) {
    columns = std::max(columns, QColumns(l));
    scratch = std::max(
        scratch, DecodeScratchFloats(static_cast<int>(batch), l.num_heads, l.head_dim, tokens));
  }
  // Hidden states, logits, predicted queries, and jobs' queries and outputs; jobs are as many as
  // sequences, but for few.
  const int64_t floats = batch * (config.hidden_dim + config.vocab_size + 3 * columns) + scratch;
  const int64_t born =
      batch * LayoutOf(config,
                       options.compute == ComputeType::kF32 ? kv::DType::kF32 : kv::DType::kBF16,
                       kPage)
                  .TokenBytes();
  return DeviceForward::ActivationBytes(config, batch) +
         static_cast<uint64_t>(floats) * sizeof(float) + static_cast<uint64_t>(born) + kStepBytes;
}

absl::StatusOr<Budget> MakeBudget(const model::Model& model, const ExecutorOptions& options,
                                  const CudaOptions& cuda_options, const device::DeviceInfo& info) {
  const model::ModelConfig& config = model.config();
  const auto logits = static_cast<uint64_t>(config.vocab_size) * sizeof(float);
  Budget budget;
  budget.total = cuda_options.memory_bytes > 0 ? cuda_options.memory_bytes
                                               : info.free_bytes - info.free_bytes / kReserveShare;
  if (budget.total > info.free_bytes) {
    return base::ResourceExhausted("cuda.memory: want {} MiB of device {} ({}), {} MiB are free",
                                   budget.total / kMiB, info.index, info.name,
                                   info.free_bytes / kMiB);
  }
  budget.weights = DeviceWeights::Bytes(model, ElementOf(options.compute));
  budget.prefill =
      DeviceForward::ActivationBytes(config, options.max_prefill_tokens) + kLogitRows * logits;
  budget.steps = kOpenSteps * StepBytes(config, options);
  const uint64_t wanted = budget.weights + budget.prefill + budget.steps;
  if (wanted >= budget.total) {
    return base::ResourceExhausted(
        "device {} ({}): {} MiB may be used, but weights take {} MiB, a chunk of {} tokens {} MiB "
        "and steps of {} sequences {} MiB: lower max_prefill_tokens or the batch, or take a device "
        "with at least {} MiB",
        info.index, info.name, budget.total / kMiB, budget.weights / kMiB,
        options.max_prefill_tokens, budget.prefill / kMiB, options.max_decode_batch,
        budget.steps / kMiB, wanted / kMiB + 1);
  }
  return budget;
}

}  // namespace
}  // namespace cuda

absl::StatusOr<std::unique_ptr<Executor>> NewCudaExecutor(const model::Model& model,
                                                          const ExecutorOptions& options,
                                                          const CudaOptions& cuda_options,
                                                          std::unique_ptr<device::Device> device,
                                                          std::unique_ptr<cuda::Gemm> gemm) {
  ExecutorOptions resolved = options;
  if (resolved.compute == ComputeType::kAuto) resolved.compute = ComputeType::kBF16;
  // Products go before the device, whatever happens below.
  const std::shared_ptr<device::Device> shared = std::move(device);
  std::unique_ptr<cuda::Gemm> products = std::move(gemm);
  const device::DeviceInfo info = shared->info();
  ASSIGN_OR_RETURN(const cuda::Budget budget,
                   cuda::MakeBudget(model, resolved, cuda_options, info));
  const bool fits = cuda_options.kv_bytes <= budget.kv();
  const bool on_device = cuda_options.kv_location == KvLocation::kDevice ||
                         (cuda_options.kv_location == KvLocation::kAuto && fits);
  // Not more than there can be of it.
  uint64_t kv_bytes = 0;
  if (on_device) {
    kv_bytes =
        cuda_options.kv_bytes > 0 ? std::min(cuda_options.kv_bytes, budget.kv()) : budget.kv();
  }
  ASSIGN_OR_RETURN(auto context, cuda::Context::Create(shared));
  ASSIGN_OR_RETURN(auto weights,
                   cuda::DeviceWeights::Load(model, cuda::ElementOf(resolved.compute), *context));
  SMARTGEN_LOG(
      info, "executor",
      "cuda device={} name=\"{}\" compute={} memory={} MiB: weights={} prefill={} steps={} "
      "kv={} MiB on the {}",
      info.index, info.name, ComputeTypeName(resolved.compute), budget.total >> 20,
      budget.weights >> 20, budget.prefill >> 20, budget.steps >> 20, kv_bytes >> 20,
      on_device ? "device" : "host");
  if (cuda_options.kv_location == KvLocation::kAuto && !on_device) {
    SMARTGEN_LOG(warn, "executor",
                 "cuda.kv_location auto: a pool of {} MiB does not fit into the {} MiB that are "
                 "left; KV is read from host memory, which is slower: lower kv_bytes to have it on "
                 "the device",
                 cuda_options.kv_bytes >> 20, budget.kv() >> 20);
  }
  auto executor = std::make_unique<cuda::CudaExecutor>(model.config(), resolved, std::move(context),
                                                       std::move(products), std::move(weights));
  RETURN_IF_ERROR(executor->Init(kv_bytes));
  return executor;
}

}  // namespace smartgen::executor
