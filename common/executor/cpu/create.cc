#include <algorithm>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/executor/cpu/cpu_executor.h"

namespace smartgen::executor {
namespace {

absl::Status CheckOptions(const ExecutorOptions& options) {
  if (options.threads < 0 || options.threads > 1024) {
    return base::InvalidArgument("threads: want 0 to 1024, got {}", options.threads);
  }
  if (options.max_prefill_tokens < 1 || options.max_prefill_tokens > (1 << 20)) {
    return base::InvalidArgument("max_prefill_tokens: want 1 to {}, got {}", 1 << 20,
                                 options.max_prefill_tokens);
  }
  if (options.max_decode_batch < 1 || options.max_decode_batch > 4096) {
    return base::InvalidArgument("max_decode_batch: want 1 to 4096, got {}",
                                 options.max_decode_batch);
  }
  return absl::OkStatus();
}

// GFLOP/s of a product of the size that a small model's prefill has.
double MeasureGemm(const cpu::Matrix& matrix, bool fast, base::ThreadPool& pool) {
  constexpr int64_t kRows = 256;
  const std::vector<float> x(kRows * matrix.k(), 0.5f);
  std::vector<float> y(kRows * matrix.columns());
  cpu::MatMul matmul(&pool);
  const cpu::MatMul::Args args{
      .x = x.data(), .ldx = matrix.k(), .rows = kRows, .y = y.data(), .ldy = matrix.columns()};
  double best = 0;
  for (int run = 0; run < 4; ++run) {  // the first warms up
    const base::TimePoint start = base::Clock::Real()->Now();
    if (fast) {
      matmul.RunFast(matrix, args);
    } else {
      matmul.Run(matrix, args);
    }
    const double seconds = base::ToSeconds(base::Clock::Real()->Now() - start);
    const double operations = 2.0 * kRows * static_cast<double>(matrix.k() * matrix.columns());
    if (run > 0) best = std::max(best, operations / seconds * 1e-9);
  }
  return best;
}

struct Choice {
  ComputeType compute;
  bool bf16_products;  // by oneDNN
};

Choice Choose(ComputeType wanted, base::ThreadPool& pool) {
  if (wanted == ComputeType::kF32) return {ComputeType::kF32, false};
  cpu::Arena arena;
  constexpr int64_t kSize = 1024;
  std::vector<float> values(kSize * kSize, 0.25f);
  const cpu::Matrix::Part part{{.name = "measured",
                                .type = model::TensorType::kF32,
                                .rows = kSize,
                                .cols = kSize,
                                .data = std::as_bytes(std::span<const float>(values))},
                               {}};
  cpu::Matrix matrix = cpu::Matrix::Pack({&part, 1}, pool, arena);
  const double f32 = MeasureGemm(matrix, false, pool);
  absl::Status status = matrix.AddFast(cpu::GemmType::kBF16, pool);
  if (status.ok()) status = cpu::VerifyRows(cpu::GemmType::kBF16, pool);
  if (!status.ok()) {
    // Not a failure: such machines compute in float, which is the faster there.
    SMARTGEN_LOG(info, "executor", "f32 {:.0f} GFLOP/s; no bf16 products: {}", f32,
                 base::MessageOf(status));
    return {wanted == ComputeType::kAuto ? ComputeType::kF32 : ComputeType::kBF16, false};
  }
  const double bf16 = MeasureGemm(matrix, true, pool);
  SMARTGEN_LOG(info, "executor", "f32 {:.0f} GFLOP/s, bf16 {:.0f} GFLOP/s", f32, bf16);
  const bool faster = bf16 > f32;
  if (wanted == ComputeType::kAuto && !faster) return {ComputeType::kF32, false};
  return {ComputeType::kBF16, faster};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> CreateCpuExecutor(const model::Model& model,
                                                            const ExecutorOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  RETURN_IF_ERROR(model.config().Check());
  auto pool = std::make_unique<base::ThreadPool>(options.threads);
  const Choice choice = Choose(options.compute, *pool);
  ASSIGN_OR_RETURN(std::unique_ptr<cpu::Weights> weights, cpu::Weights::Load(model, *pool));
  if (choice.bf16_products) RETURN_IF_ERROR(weights->AddFast(cpu::GemmType::kBF16, *pool));
  SMARTGEN_LOG(info, "executor", "cpu set={} threads={} compute={} products={} weights={} MiB",
               cpu::InstructionSet(), pool->size(), ComputeTypeName(choice.compute),
               choice.bf16_products ? "bf16" : "f32", weights->arena.allocated() >> 20);
  return std::make_unique<cpu::CpuExecutor>(model.config(), options, choice.compute,
                                            std::move(pool), std::move(weights));
}

}  // namespace smartgen::executor
