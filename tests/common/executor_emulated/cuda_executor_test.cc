// The CUDA executor on doubles beside the CPU's: same prompts, same steps, wherever KV lies and
// however the device takes its time.
#include "common/executor/cuda/cuda_executor.h"

#include <random>

#include "tests/common/executor/late_remote.h"
#include "tests/common/executor/model/fixture.h"

namespace smartgen::executor {
namespace {

using fakes::FakeDevice;
using testing::HasSubstr;

constexpr int64_t kCapacity = 128;
constexpr int64_t kPrompt = 75;

std::vector<TokenId> Tokens(int64_t count, int seed) {
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<TokenId>((i * 37 + i * i % 11 + seed * 101 + 5) % 256));
  }
  return tokens;
}

std::vector<float> KvOf(kv::KvSequence& sequence, int layer, int64_t end) {
  std::vector<float> values;
  const kv::DType dtype = sequence.layout().dtype;
  for (const auto& segment : sequence.Segments(layer, 0, end)) {
    for (size_t at = 0; at < segment.size(); at += static_cast<size_t>(kv::DTypeBytes(dtype))) {
      values.push_back(selector::LoadElement(segment.data() + at, dtype));
    }
  }
  return values;
}

struct Param {
  const char* architecture;
  ComputeType compute;
  KvLocation location;
  FakeDevice::Temper temper;
};

class CudaExecutorTest : public testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    auto model =
        model::Model::Open(std::string(SMARTGEN_TEST_DATA) + "/arch_" + GetParam().architecture);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    options_ = {.compute = GetParam().compute,
                .threads = 1,
                .max_prefill_tokens = 64,
                .max_decode_batch = 4};
    cpu_ = Bench::Of(CreateCpuExecutor(*model_, options_), kCapacity);
    cuda_ = Cuda({.kv_location = GetParam().location});
    ASSERT_NE(cuda_.executor, nullptr);
  }
  Bench Cuda(CudaOptions cuda_options) {
    return Bench::Of(
        EmulatedExecutor::Make(
            *model_, options_, cuda_options,
            {.temper = GetParam().temper, .max_pause = std::chrono::microseconds(50)}, &device_),
        kCapacity);
  }
  // bf16: the CPU multiplies bf16 weights and f32 rows, the GPU bf16 rows, and both round KV.
  double tolerance() const { return GetParam().compute == ComputeType::kF32 ? 2e-5 : 3e-2; }
  std::unique_ptr<kv::KvSequence> Prefilled(Bench& b, std::span<const TokenId> tokens,
                                            int64_t step) {
    auto sequence = std::make_unique<kv::KvSequence>(b.pool.get());
    last_ = PrefillAll(b, *sequence, tokens, step);
    EXPECT_TRUE(sequence->Reserve(kCapacity).ok());
    return sequence;
  }

  std::unique_ptr<model::Model> model_;
  ExecutorOptions options_;
  FakeDevice* device_ = nullptr;
  Bench cpu_, cuda_;
  std::vector<float> last_;  // logits of the last Prefilled
};

TEST_P(CudaExecutorTest, PromptsInChunksGiveTheCpusLogitsAndKv) {
  const std::vector<TokenId> tokens = Tokens(kPrompt, 1);
  const auto want = Prefilled(cpu_, tokens, 64);
  const std::vector<float> logits = last_;
  for (const int64_t step : {64, 13}) {
    const auto got = Prefilled(cuda_, tokens, step);
    ExpectClose(last_, logits, tolerance());
    for (int layer = 0; layer < cuda_.executor->config().num_layers(); ++layer) {
      EXPECT_TRUE(got->AllLocal(layer, 0, kPrompt));
      ExpectClose(KvOf(*got, layer, kPrompt), KvOf(*want, layer, kPrompt), tolerance());
    }
  }
}

TEST_P(CudaExecutorTest, BatchesOfSeveralLengthsGiveTheCpusLogits) {
  std::vector<std::vector<float>> want, got;
  for (Bench* b : {&cpu_, &cuda_}) {
    auto& out = b == &cpu_ ? want : got;
    std::vector<std::unique_ptr<kv::KvSequence>> sequences;
    for (const int64_t length : {1, 16, 33, 75}) {
      sequences.push_back(Prefilled(*b, Tokens(length, static_cast<int>(length)), 64));
    }
    for (int step = 0; step < 4; ++step) {
      std::vector<DecodeSlot> batch;
      const size_t first = out.size();
      for (size_t i = 0; i < sequences.size(); ++i) {
        out.emplace_back(static_cast<size_t>(b->vocab()));
      }
      const std::vector<int64_t> lengths = {1, 16, 33, 75};
      for (size_t i = 0; i < sequences.size(); ++i) {
        batch.push_back({.sequence = sequences[i].get(),
                         .position = lengths[i] + step,
                         .token = static_cast<TokenId>(7 * step + static_cast<int>(i)),
                         .logits = out[first + i]});
      }
      ASSERT_EQ(b->executor->Decode(batch), absl::OkStatus());
      for (const DecodeSlot& slot : batch) {
        for (int layer = 0; layer < b->executor->config().num_layers(); ++layer) {
          EXPECT_TRUE(slot.sequence->AllLocal(layer, slot.position, slot.position + 1));
        }
      }
    }
  }
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) ExpectClose(got[i], want[i], tolerance());
}

TEST_P(CudaExecutorTest, LayersInPiecesHereAndThereAreAWholeStep) {
  const std::vector<TokenId> tokens = Tokens(40, 3);
  const int layers = cpu_.executor->config().num_layers();
  auto whole = Prefilled(cpu_, tokens, 64);
  const std::vector<float> want = DecodeOne(cpu_, *whole, 40, 9);
  for (int k = 0; k <= layers; ++k) {
    // Front on the GPU, the rest on the CPU, and the other way round.
    for (const bool cuda_first : {true, false}) {
      Bench& front = cuda_first ? cuda_ : cpu_;
      Bench& back = cuda_first ? cpu_ : cuda_;
      auto here = Prefilled(front, tokens, 64);
      auto there = Prefilled(back, tokens, 64);
      std::vector<float> hidden(static_cast<size_t>(cpu_.executor->config().hidden_dim));
      std::vector<float> got(want.size());
      if (k > 0) {
        const DecodeSlot slot{
            .sequence = here.get(), .position = 40, .token = 9, .layer_end = k, .hidden = hidden};
        ASSERT_EQ(front.executor->Decode({&slot, 1}), absl::OkStatus());
      }
      const DecodeSlot slot{.sequence = there.get(),
                            .position = 40,
                            .token = 9,
                            .logits = got,
                            .layer_begin = k,
                            .hidden = k > 0 ? std::span<float>(hidden) : std::span<float>()};
      ASSERT_EQ(back.executor->Decode({&slot, 1}), absl::OkStatus());
      ExpectClose(got, want, tolerance());
    }
  }
}

TEST_P(CudaExecutorTest, KvThatCameFromElsewhereIsReadAndFetchedAndShipped) {
  const std::vector<TokenId> tokens = Tokens(kPrompt, 4);
  const auto full = Prefilled(cuda_, tokens, 64);
  const auto reference = Prefilled(cpu_, tokens, 64);
  const std::vector<float> want = DecodeOne(cpu_, *reference, kPrompt, 11);
  std::mt19937 random(5);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (const double share : {0.0, 0.5, 1.0}) {
    for (const bool ship : {false, true}) {
      kv::KvSequence part(cuda_.pool.get());
      ASSERT_TRUE(part.Reserve(kCapacity).ok());
      CopyPart(*full, part, kPrompt, [&](int, int, int64_t) { return uniform(random) < share; });
      LateRemote remote(cpu_.executor.get(), reference.get(), &part, 6);
      SlotRead read{.remote = &remote, .ship_end = ship ? kPrompt : 0, .prefetch = !ship};
      std::vector<float> got(want.size());
      const DecodeSlot slot{
          .sequence = &part, .position = kPrompt, .token = 11, .logits = got, .read = &read};
      auto run = cuda_.executor->StartStep({&slot, 1});
      ASSERT_TRUE(run.ok()) << run.status();
      auto state = (*run)->Advance();
      for (int i = 0; i < 200 && state.ok() && *state == StepRun::State::kWaiting; ++i) {
        state = (*run)->Advance();
      }
      ASSERT_TRUE(state.ok()) << state.status();
      ASSERT_EQ(*state, StepRun::State::kDone);
      ExpectClose(got, want, tolerance());
      if (share == 1.0) {
        EXPECT_EQ(read.remote_entries, 0);
      } else {
        EXPECT_GT(read.remote_entries, 0);
      }
    }
  }
}

TEST_P(CudaExecutorTest, SelectedTokensGiveTheCpusLogits) {
  const std::vector<TokenId> tokens = Tokens(kPrompt, 8);
  std::vector<int> heads;
  for (const auto& l : cpu_.executor->config().layers) heads.push_back(l.num_heads);
  for (const selector::Kind kind :
       {selector::Kind::kQuest, selector::Kind::kHata, selector::Kind::kInfiniGen}) {
    std::vector<std::vector<float>> results;
    std::vector<std::vector<int32_t>> chosen;
    for (Bench* b : {&cpu_, &cuda_}) {
      auto made = selector::KvSelector::Create({.kind = kind,
                                                .budget_share = 0.3,
                                                .dense_tokens = 8,
                                                .dense_layers = 1,
                                                .recent_tokens = 4},
                                               b->executor->Layout(kCapacity), heads);
      ASSERT_TRUE(made.ok()) << made.status();
      selector::MetadataStore metadata(&(*made)->metadata(), kCapacity);
      kv::KvSequence sequence(b->pool.get());
      ASSERT_TRUE(sequence.Reserve(kCapacity).ok());
      // All in one chunk less the last tokens, so that channels are chosen from its queries.
      PrefillChunk chunk{.sequence = &sequence, .tokens = {tokens.data(), 64}};
      chunk.on_queries = [&](int layer, std::span<const float> queries, int64_t ld) {
        const model::LayerConfig& l = b->executor->config().layers[layer];
        std::vector<float> rows;
        for (int64_t i = 0; i < 64; ++i) {
          const auto row = queries.subspan(i * ld, l.num_heads * l.head_dim);
          rows.insert(rows.end(), row.begin(), row.end());
        }
        EXPECT_TRUE((*made)->ChooseChannels(layer, rows, metadata).ok());
      };
      chunk.on_layer = [&](int layer, int64_t begin, int64_t end) {
        EXPECT_TRUE(sequence.AllLocal(layer, begin, end));
        EXPECT_TRUE((*made)->Extend(layer, sequence, begin, end, metadata).ok());
      };
      ASSERT_EQ(b->executor->Prefill(chunk), absl::OkStatus());
      for (int64_t position = 64; position < 68; ++position) {
        std::vector<float> logits(static_cast<size_t>(b->vocab()));
        std::vector<int32_t> indices;
        SlotRead read{.selector = made->get(), .metadata = &metadata};
        read.on_selection = [&](int, const selector::Selection& selection) {
          indices.insert(indices.end(), selection.index.begin(), selection.index.end());
        };
        const DecodeSlot slot{.sequence = &sequence,
                              .position = position,
                              .token = tokens[static_cast<size_t>(position)],
                              .logits = logits,
                              .read = &read};
        auto run = b->executor->StartStep({&slot, 1});
        ASSERT_TRUE(run.ok()) << run.status();
        const auto state = (*run)->Advance();
        ASSERT_TRUE(state.ok()) << state.status();
        ASSERT_EQ(*state, StepRun::State::kDone);
        results.push_back(std::move(logits));
        chosen.push_back(std::move(indices));
      }
    }
    const size_t half = results.size() / 2;
    // The layers that are not dense may all have windows that show less than is worth choosing
    // from.
    EXPECT_EQ(chosen[0].empty(),
              GetParam().architecture == std::string("mistral") && kind == selector::Kind::kQuest);
    for (size_t i = 0; i < half; ++i) {
      // In bf16 keys may differ by a rounding, and scores that are near by their order.
      if (GetParam().compute == ComputeType::kF32) {
        EXPECT_EQ(chosen[half + i], chosen[i]) << i;
        ExpectClose(results[half + i], results[i], tolerance());
      }
    }
  }
}

TEST_P(CudaExecutorTest, PartialAttentionIsTheCpus) {
  const std::vector<TokenId> tokens = Tokens(kPrompt, 9);
  const auto there = Prefilled(cpu_, tokens, 64);
  kv::KvSequence here(cuda_.pool.get());
  ASSERT_TRUE(here.Reserve(kCapacity).ok());
  CopyPart(*there, here, kPrompt, [](int, int, int64_t) { return true; });
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (int layer = 0; layer < cpu_.executor->config().num_layers(); ++layer) {
    const model::LayerConfig& l = cpu_.executor->config().layers[layer];
    const auto columns = static_cast<size_t>(l.num_heads * l.head_dim);
    std::vector<float> queries(columns);
    for (float& q : queries) q = normal(random);
    // Parts of pages first, then the pages as a whole.
    for (const auto& [begin, end] :
         {std::pair<int64_t, int64_t>{5, 6}, {17, 60}, {0, kPrompt}, {20, 25}, {30, 30}}) {
      std::vector<float> want(columns), got(columns);
      std::vector<float> want_lse(static_cast<size_t>(l.num_heads)), got_lse(want_lse);
      for (const bool cuda : {false, true}) {
        const AttendJob job{.sequence = cuda ? &here : there.get(),
                            .layer = layer,
                            .begin = begin,
                            .end = end,
                            .queries = queries,
                            .out = cuda ? got : want,
                            .lse = cuda ? got_lse : want_lse};
        ASSERT_EQ((cuda ? cuda_ : cpu_).executor->Attend({&job, 1}), absl::OkStatus());
      }
      if (begin == end) {
        EXPECT_EQ(got, want);
        EXPECT_EQ(got_lse, want_lse);
        continue;
      }
      ExpectClose(got, want, 1e-5);
      ExpectClose(got_lse, want_lse, 1e-5);
    }
  }
}

TEST_P(CudaExecutorTest, ADecodeStepBetweenAPromptsLayersChangesNeither) {
  const std::vector<TokenId> tokens = Tokens(64, 10);
  auto stream = Prefilled(cuda_, Tokens(30, 11), 64);
  auto other = Prefilled(cpu_, Tokens(30, 11), 64);
  const std::vector<float> want_step = DecodeOne(cpu_, *other, 30, 5);
  const auto whole = Prefilled(cpu_, tokens, 64);
  const std::vector<float> want = last_;
  kv::KvSequence sequence(cuda_.pool.get());
  ASSERT_TRUE(sequence.Reserve(64).ok());
  std::vector<float> got(want.size());
  PrefillChunk chunk{.sequence = &sequence, .tokens = tokens, .last_logits = got};
  int steps = 0;
  chunk.cancelled = [&] {
    ExpectClose(DecodeOne(cuda_, *stream, 30, 5), want_step, tolerance());
    ++steps;
    return false;
  };
  ASSERT_EQ(cuda_.executor->Prefill(chunk), absl::OkStatus());
  EXPECT_EQ(steps, cuda_.executor->config().num_layers());
  ExpectClose(got, want, tolerance());
}

TEST_P(CudaExecutorTest, ACancelledChunkIsComputedAnew) {
  const std::vector<TokenId> tokens = Tokens(50, 12);
  const auto whole = Prefilled(cpu_, tokens, 64);
  const std::vector<float> want = last_;
  kv::KvSequence sequence(cuda_.pool.get());
  ASSERT_TRUE(sequence.Reserve(64).ok());
  std::vector<float> got(want.size());
  int layers = 0;
  PrefillChunk chunk{.sequence = &sequence, .tokens = Tokens(50, 13), .last_logits = got};
  const std::vector<TokenId> others = Tokens(50, 13);
  chunk.tokens = others;
  chunk.cancelled = [&] { return ++layers > 1; };
  EXPECT_TRUE(absl::IsCancelled(cuda_.executor->Prefill(chunk)));
  chunk.cancelled = nullptr;
  chunk.tokens = tokens;
  ASSERT_EQ(cuda_.executor->Prefill(chunk), absl::OkStatus());
  ExpectClose(got, want, tolerance());
}

TEST_P(CudaExecutorTest, AStepThatIsLeftIsMadeAnew) {
  const std::vector<TokenId> tokens = Tokens(kPrompt, 14);
  const auto full = Prefilled(cuda_, tokens, 64);
  const auto reference = Prefilled(cpu_, tokens, 64);
  const std::vector<float> want = DecodeOne(cpu_, *reference, kPrompt, 3);
  kv::KvSequence part(cuda_.pool.get());
  ASSERT_TRUE(part.Reserve(kCapacity).ok());
  CopyPart(*full, part, kPrompt, [](int layer, int, int64_t) { return layer == 0; });
  LateRemote remote(cpu_.executor.get(), full.get(), &part, 6);
  SlotRead read{.remote = &remote};
  std::vector<float> got(want.size());
  // Another token, up to where it waits.
  DecodeSlot slot{
      .sequence = &part, .position = kPrompt, .token = 200, .logits = got, .read = &read};
  {
    auto run = cuda_.executor->StartStep({&slot, 1});
    ASSERT_TRUE(run.ok());
    ASSERT_EQ(*(*run)->Advance(), StepRun::State::kWaiting);
  }
  slot.token = 3;
  auto run = cuda_.executor->StartStep({&slot, 1});
  ASSERT_TRUE(run.ok()) << run.status();
  auto state = (*run)->Advance();
  for (int i = 0; i < 200 && state.ok() && *state == StepRun::State::kWaiting; ++i) {
    state = (*run)->Advance();
  }
  ASSERT_TRUE(state.ok()) << state.status();
  ExpectClose(got, want, tolerance());
}

INSTANTIATE_TEST_SUITE_P(
    All, CudaExecutorTest,
    testing::Values(
        Param{"llama", ComputeType::kF32, KvLocation::kDevice, FakeDevice::Temper::kSerial},
        Param{"llama", ComputeType::kF32, KvLocation::kDevice, FakeDevice::Temper::kLoose},
        Param{"llama", ComputeType::kF32, KvLocation::kHost, FakeDevice::Temper::kLoose},
        Param{"llama", ComputeType::kBF16, KvLocation::kDevice, FakeDevice::Temper::kLoose},
        Param{"mistral", ComputeType::kF32, KvLocation::kDevice, FakeDevice::Temper::kLoose}),
    [](const auto& info) {
      const Param& p = info.param;
      return std::string(p.architecture) + "_" + std::string(ComputeTypeName(p.compute)) + "_" +
             std::string(KvLocationName(p.location)) +
             (p.temper == FakeDevice::Temper::kSerial ? "_serial" : "_loose");
    });

class CudaExecutorLimits : public testing::Test {
 protected:
  void SetUp() override {
    auto model = model::Model::Open(std::string(SMARTGEN_TEST_DATA) + "/arch_llama");
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
  }
  static ExecutorOptions Options() {
    return {.compute = ComputeType::kF32, .threads = 1, .max_prefill_tokens = 64};
  }
  std::unique_ptr<model::Model> model_;
};

TEST_F(CudaExecutorLimits, ADeviceThatIsTooSmallSaysWhatWouldDo) {
  FakeDevice::Options small{.total_bytes = 1 << 20};
  const auto made = EmulatedExecutor::Make(*model_, Options(), {}, small);
  EXPECT_TRUE(absl::IsResourceExhausted(made.status())) << made.status();
  EXPECT_THAT(std::string(made.status().message()), HasSubstr("weights take"));
  EXPECT_THAT(std::string(made.status().message()), HasSubstr("max_prefill_tokens"));
  const auto greedy =
      EmulatedExecutor::Make(*model_, Options(), {.memory_bytes = uint64_t{1} << 40});
  EXPECT_TRUE(absl::IsResourceExhausted(greedy.status())) << greedy.status();
}

TEST_F(CudaExecutorLimits, AutoTakesTheHostForAPoolThatDoesNotFit) {
  const std::vector<TokenId> tokens = Tokens(20, 1);
  constexpr uint64_t kPool = 64 << 20;  // far more than activations take
  for (const bool fits : {true, false}) {
    FakeDevice* device = nullptr;
    Bench b = Bench::Of(
        EmulatedExecutor::Make(*model_, Options(), {.kv_bytes = fits ? kPool : uint64_t{1} << 40},
                               {}, &device),
        kCapacity);
    ASSERT_NE(b.executor, nullptr);
    kv::KvSequence sequence(b.pool.get());
    PrefillAll(b, sequence, tokens, 64);
    EXPECT_EQ(device->used() >= kPool - (1 << 20), fits) << device->used();
  }
}

TEST_F(CudaExecutorLimits, InTheHostItWantsAPoolThatTheDeviceReaches) {
  auto executor = EmulatedExecutor::Make(*model_, Options(), {.kv_location = KvLocation::kHost});
  ASSERT_TRUE(executor.ok());
  auto pool = kv::KvPool::Create((*executor)->Layout(kCapacity), {.bytes = 1 << 20});
  ASSERT_TRUE(pool.ok());
  kv::KvSequence sequence(pool->get());
  ASSERT_TRUE(sequence.Reserve(16).ok());
  const std::vector<TokenId> tokens = Tokens(4, 1);
  const absl::Status status = (*executor)->Prefill({.sequence = &sequence, .tokens = tokens});
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("page memory"));
}

// Room for less than all sequences: what is unused longest makes room, and pages that were handed
// out anew are not taken for what they were.
TEST_F(CudaExecutorLimits, AMirrorSmallerThanThePoolGivesTheSameLogits) {
  Bench cpu = Bench::Of(CreateCpuExecutor(*model_, Options()), kCapacity);
  const auto page = static_cast<uint64_t>(cpu.executor->Layout(kCapacity).PageBytesTotal());
  // Five pages: one sequence of 75 tokens and no more.
  Bench cuda = Bench::Of(
      EmulatedExecutor::Make(*model_, Options(),
                             {.kv_location = KvLocation::kDevice, .kv_bytes = 5 * page + 1},
                             {.temper = FakeDevice::Temper::kLoose}),
      kCapacity);
  ASSERT_NE(cuda.executor, nullptr);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::unique_ptr<kv::KvSequence>> here, there;
    for (int i = 0; i < 3; ++i) {
      const std::vector<TokenId> tokens = Tokens(70, 3 * round + i);
      for (Bench* b : {&cpu, &cuda}) {
        auto& list = b == &cpu ? there : here;
        list.push_back(std::make_unique<kv::KvSequence>(b->pool.get()));
        PrefillAll(*b, *list.back(), tokens, 64);
      }
    }
    for (int64_t position = 70; position < 73; ++position) {
      for (size_t i = 0; i < here.size(); ++i) {
        ExpectClose(DecodeOne(cuda, *here[i], position, 7), DecodeOne(cpu, *there[i], position, 7),
                    2e-5);
      }
    }
  }
  // A call that needs more than there is.
  kv::KvSequence longer(cuda.pool.get());
  ASSERT_TRUE(longer.Reserve(kCapacity).ok());
  const std::vector<TokenId> tokens = Tokens(64, 99);
  ASSERT_EQ(cuda.executor->Prefill({.sequence = &longer, .tokens = tokens}), absl::OkStatus());
  const absl::Status status =
      cuda.executor->Prefill({.sequence = &longer, .start = 64, .tokens = tokens});
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("kv_location host"));
}

TEST_F(CudaExecutorLimits, ALostDeviceIsAnErrorForEver) {
  FakeDevice* device = nullptr;
  Bench b = Bench::Of(EmulatedExecutor::Make(*model_, Options(), {}, {}, &device), kCapacity);
  ASSERT_NE(b.executor, nullptr);
  kv::KvSequence sequence(b.pool.get());
  const std::vector<TokenId> tokens = Tokens(20, 1);
  PrefillAll(b, sequence, tokens, 64);
  ASSERT_TRUE(sequence.Reserve(32).ok());
  std::vector<float> logits(static_cast<size_t>(b.vocab()));
  const DecodeSlot slot{.sequence = &sequence, .position = 20, .token = 1, .logits = logits};
  ASSERT_EQ(b.executor->Decode({&slot, 1}), absl::OkStatus());
  EXPECT_EQ(b.executor->health(), absl::OkStatus());
  device->Lose();
  const DecodeSlot next{.sequence = &sequence, .position = 21, .token = 1, .logits = logits};
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(absl::IsInternal(b.executor->Decode({&next, 1})));
    EXPECT_TRUE(absl::IsInternal(b.executor->Prefill({.sequence = &sequence, .tokens = tokens})));
  }
  EXPECT_FALSE(sequence.AllLocal(0, 21, 22));
  EXPECT_TRUE(absl::IsInternal(b.executor->health()));
}

}  // namespace
}  // namespace smartgen::executor
