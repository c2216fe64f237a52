// The CUDA executor against the CPU's, in f32 on the default model.
#include <array>
#include <random>

#include "common/executor/backend/backend.h"
#include "tests/common/executor/model/fixture.h"

namespace smartgen::executor {
namespace {

constexpr int64_t kCapacity = 1024;
// Of logits of about 20: sums in another order, through thirty layers.
constexpr float kLogitTolerance = 2e-3f;

std::vector<TokenId> Prompt(int64_t length) {
  std::vector<TokenId> ids;
  const nlohmann::json golden = ReadGolden("logits_smol.json");
  for (const auto& c : golden["cases"]) {
    for (const auto& id : c["ids"]) ids.push_back(id.get<TokenId>());
  }
  EXPECT_GE(static_cast<int64_t>(ids.size()), length);
  ids.resize(length);
  return ids;
}

float LargestDifference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  float largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const float difference = std::abs(a[i] - b[i]);
    // Not std::max, which a NaN would pass by.
    if (!(difference <= largest)) largest = difference;
  }
  return largest;
}

class AgainstCpu : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (DefaultModel() == nullptr) return;
    cpu_ = new Bench(
        Bench::Of(CreateCpuExecutor(*DefaultModel(), {.compute = ComputeType::kF32}), kCapacity));
    gpu_ = new Bench(Gpu("auto"));
  }
  static void TearDownTestSuite() {
    delete cpu_;
    delete gpu_;
    cpu_ = gpu_ = nullptr;
  }
  static Bench Gpu(const std::string& kv_location) {
    return Bench::Of(
        CreateExecutor(*DefaultModel(), {.compute = ComputeType::kF32},
                       {.executor = "cuda", .kv_location = kv_location},
                       KvBytesAtMost(DefaultModel()->config(), kCapacity * Bench::kSequences)),
        kCapacity);
  }
  void SetUp() override {
    ASSERT_NE(cpu_, nullptr);
    ASSERT_NE(cpu_->executor, nullptr);
    ASSERT_NE(gpu_->executor, nullptr);
  }
  static Bench* cpu_;
  static Bench* gpu_;
};
Bench* AgainstCpu::cpu_ = nullptr;
Bench* AgainstCpu::gpu_ = nullptr;

TEST_F(AgainstCpu, PromptsAndStepsGiveTheSameLogits) {
  constexpr int kSteps = 8;
  for (const int64_t length : {1, 17, 600}) {
    SCOPED_TRACE(length);
    const std::vector<TokenId> ids = Prompt(length + kSteps);
    const auto prompt = std::span(ids).first(static_cast<size_t>(length));
    kv::KvSequence on_cpu(cpu_->pool.get()), on_gpu(gpu_->pool.get());
    EXPECT_LE(LargestDifference(PrefillAll(*gpu_, on_gpu, prompt, 256),
                                PrefillAll(*cpu_, on_cpu, prompt, 256)),
              kLogitTolerance);
    for (int64_t at = length; at < length + kSteps; ++at) {
      EXPECT_LE(LargestDifference(DecodeOne(*gpu_, on_gpu, at, ids[at]),
                                  DecodeOne(*cpu_, on_cpu, at, ids[at])),
                kLogitTolerance)
          << "step at " << at;
    }
  }
}

TEST_F(AgainstCpu, ABatchGivesEachSequenceItsOwnLogits) {
  const std::vector<int64_t> lengths = {3, 64, 65, 400};
  const std::vector<TokenId> ids = Prompt(500);
  std::vector<std::unique_ptr<kv::KvSequence>> sequences;
  std::vector<std::vector<float>> logits;
  std::vector<DecodeSlot> slots;
  logits.reserve(lengths.size());
  for (const int64_t length : lengths) {
    sequences.push_back(std::make_unique<kv::KvSequence>(gpu_->pool.get()));
    PrefillAll(*gpu_, *sequences.back(), std::span(ids).first(static_cast<size_t>(length)), 512);
    ASSERT_TRUE(sequences.back()->Reserve(length + 1).ok());
    logits.emplace_back(gpu_->vocab());
    slots.push_back({.sequence = sequences.back().get(),
                     .position = length,
                     .token = ids[length],
                     .logits = logits.back()});
  }
  const absl::Status status = gpu_->executor->Decode(slots);
  ASSERT_TRUE(status.ok()) << status;
  for (size_t i = 0; i < lengths.size(); ++i) {
    kv::KvSequence alone(cpu_->pool.get());
    PrefillAll(*cpu_, alone, std::span(ids).first(static_cast<size_t>(lengths[i])), 512);
    EXPECT_LE(LargestDifference(logits[i], DecodeOne(*cpu_, alone, lengths[i], ids[lengths[i]])),
              kLogitTolerance)
        << lengths[i] << " tokens";
  }
}

TEST_F(AgainstCpu, AStepInTwoPiecesOfLayersIsTheStep) {
  constexpr int64_t kTokens = 130;
  const std::vector<TokenId> ids = Prompt(kTokens + 1);
  const auto prompt = std::span(ids).first(kTokens);
  kv::KvSequence on_cpu(cpu_->pool.get()), on_gpu(gpu_->pool.get());
  PrefillAll(*cpu_, on_cpu, prompt, kTokens);
  PrefillAll(*gpu_, on_gpu, prompt, kTokens);
  const std::vector<float> want = DecodeOne(*cpu_, on_cpu, kTokens, ids[kTokens]);
  ASSERT_TRUE(on_gpu.Reserve(kTokens + 1).ok());
  std::vector<float> hidden(gpu_->executor->config().hidden_dim);
  std::vector<float> logits(gpu_->vocab());
  DecodeSlot slot{.sequence = &on_gpu, .position = kTokens, .token = ids[kTokens]};
  slot.layer_end = 11;
  slot.hidden = hidden;
  absl::Status status = gpu_->executor->Decode({&slot, 1});
  ASSERT_TRUE(status.ok()) << status;
  slot.layer_begin = 11;
  slot.layer_end = -1;
  slot.logits = logits;
  status = gpu_->executor->Decode({&slot, 1});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_LE(LargestDifference(logits, want), kLogitTolerance);
}

TEST_F(AgainstCpu, PartialAttentionOfAShippedQuery) {
  constexpr int64_t kTokens = 300;
  constexpr int kLayer = 4;
  const std::vector<TokenId> ids = Prompt(kTokens);
  kv::KvSequence on_cpu(cpu_->pool.get()), on_gpu(gpu_->pool.get());
  PrefillAll(*cpu_, on_cpu, ids, kTokens);
  PrefillAll(*gpu_, on_gpu, ids, kTokens);
  const model::LayerConfig& layer = cpu_->executor->config().layers[kLayer];
  const auto values = static_cast<size_t>(layer.num_heads) * layer.head_dim;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> queries(values);
  for (float& q : queries) q = normal(random);
  struct Partial {
    std::vector<float> out, lse;
  };
  const auto attend = [&](Bench& bench, kv::KvSequence& sequence, int64_t begin, int64_t end) {
    Partial partial{std::vector<float>(values), std::vector<float>(layer.num_heads)};
    const AttendJob job{.sequence = &sequence,
                        .layer = kLayer,
                        .begin = begin,
                        .end = end,
                        .queries = queries,
                        .out = partial.out,
                        .lse = partial.lse};
    const absl::Status status = bench.executor->Attend({&job, 1});
    EXPECT_TRUE(status.ok()) << status;
    return partial;
  };
  const std::array<std::pair<int64_t, int64_t>, 3> ranges = {{{0, kTokens}, {7, 8}, {33, 290}}};
  for (const auto& [begin, end] : ranges) {
    const Partial want = attend(*cpu_, on_cpu, begin, end);
    const Partial got = attend(*gpu_, on_gpu, begin, end);
    EXPECT_LE(LargestDifference(got.out, want.out), 1e-3f) << begin << " to " << end;
    EXPECT_LE(LargestDifference(got.lse, want.lse), 1e-3f) << begin << " to " << end;
  }
}

TEST_F(AgainstCpu, KvOnTheHostAndOnTheDeviceReadTheSame) {
  const std::vector<TokenId> ids = Prompt(301);
  std::vector<std::vector<float>> logits;
  for (const char* location : {"device", "host"}) {
    Bench bench = Gpu(location);
    ASSERT_NE(bench.executor, nullptr) << location;
    kv::KvSequence sequence(bench.pool.get());
    PrefillAll(bench, sequence, std::span(ids).first(300), 300);
    logits.push_back(DecodeOne(bench, sequence, 300, ids[300]));
  }
  EXPECT_LE(LargestDifference(logits[0], logits[1]), 1e-4f);
}

}  // namespace
}  // namespace smartgen::executor
