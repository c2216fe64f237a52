// The executor's contract on a tiny model: what it refuses, what it calls when, what it leaves
// behind.
#include "common/executor/executor.h"

#include "common/executor/bench.h"
#include "tests/common/executor/model/fixture.h"

namespace smartgen::executor {
namespace {

using testing::HasSubstr;

class TinyModel : public testing::Test {
 protected:
  void SetUp() override {
    auto model = model::Model::Open(std::string(SMARTGEN_TEST_DATA) + "/arch_llama");
    ASSERT_TRUE(model.ok()) << model.status();
    bench_ = Bench::Make(**model,
                         {.compute = ComputeType::kF32,
                          .threads = 2,
                          .max_prefill_tokens = 64,
                          .max_decode_batch = 2},
                         256);
    ASSERT_NE(bench_.executor, nullptr);
    sequence_ = std::make_unique<kv::KvSequence>(bench_.pool.get());
    ASSERT_TRUE(sequence_->Reserve(128).ok());
    logits_.resize(bench_.vocab());
  }
  Executor& executor() { return *bench_.executor; }
  PrefillChunk Chunk(std::span<const TokenId> tokens, int64_t start = 0) {
    return {.sequence = sequence_.get(), .start = start, .tokens = tokens};
  }

  Bench bench_;
  std::unique_ptr<kv::KvSequence> sequence_;
  std::vector<float> logits_;
};

TEST_F(TinyModel, RefusesTokensOutsideTheVocabulary) {
  for (TokenId bad : {-1, 256, 1 << 30}) {
    const std::vector<TokenId> ids = {1, bad};
    EXPECT_EQ(executor().Prefill(Chunk(ids)).code(), absl::StatusCode::kInvalidArgument) << bad;
    const DecodeSlot slot{sequence_.get(), 0, bad, logits_};
    EXPECT_EQ(executor().Decode({&slot, 1}).code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST_F(TinyModel, RefusesChunksOfTheWrongSizeOrPlace) {
  const std::vector<TokenId> ids(65, 1);
  EXPECT_EQ(executor().Prefill(Chunk(ids)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(executor().Prefill(Chunk({})).code(), absl::StatusCode::kInvalidArgument);
  const std::span<const TokenId> ten(ids.data(), 10);
  EXPECT_EQ(executor().Prefill(Chunk(ten, -1)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(executor().Prefill(Chunk(ten, 119)).code(), absl::StatusCode::kInvalidArgument);
  PrefillChunk chunk = Chunk(ten);
  chunk.last_logits = std::span(logits_).subspan(1);
  EXPECT_EQ(executor().Prefill(chunk).code(), absl::StatusCode::kInvalidArgument);
  chunk = Chunk(ten);
  chunk.sequence = nullptr;
  EXPECT_EQ(executor().Prefill(chunk).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(TinyModel, RefusesToWorkOnKvThatIsNotThere) {
  const std::vector<TokenId> ids(10, 1);
  const absl::Status status = executor().Prefill(Chunk(ids, 32));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(base::MessageOf(status)), HasSubstr("token 0"));
  const DecodeSlot slot{sequence_.get(), 5, 1, logits_};
  EXPECT_EQ(executor().Decode({&slot, 1}).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(TinyModel, RefusesABatchThatIsTooLargeOrHoldsASequenceTwice) {
  const DecodeSlot slot{sequence_.get(), 0, 1, logits_};
  const std::vector<DecodeSlot> twice(2, slot), three(3, slot);
  EXPECT_EQ(executor().Decode({}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(executor().Decode(twice).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(executor().Decode(three).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(TinyModel, RefusesASequenceOfAnotherLayout) {
  kv::KvLayout other = executor().Layout(256);
  other.dtype = kv::DType::kBF16;
  auto pool = kv::KvPool::Create(other, {.bytes = 1 << 20});
  ASSERT_TRUE(pool.ok()) << pool.status();
  kv::KvSequence sequence(pool->get());
  ASSERT_TRUE(sequence.Reserve(16).ok());
  const std::vector<TokenId> ids(4, 1);
  EXPECT_FALSE(executor().Prefill({.sequence = &sequence, .tokens = ids}).ok());
}

TEST_F(TinyModel, ReportsEachLayerOnceInOrderWithItsKvLocal) {
  const std::vector<TokenId> ids(20, 3);
  PrefillChunk chunk = Chunk(ids);
  std::vector<int> layers;
  chunk.on_layer = [&](int layer, int64_t begin, int64_t end) {
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 20);
    EXPECT_TRUE(sequence_->AllLocal(layer, 0, 20));
    if (layer + 1 < executor().config().num_layers()) {
      EXPECT_FALSE(sequence_->AllLocal(layer + 1, 0, 1));
    }
    layers.push_back(layer);
  };
  ASSERT_TRUE(executor().Prefill(chunk).ok());
  EXPECT_EQ(layers, (std::vector<int>{0, 1}));
}

TEST_F(TinyModel, StopsBetweenLayersWhenCancelled) {
  const std::vector<TokenId> ids(20, 3);
  PrefillChunk chunk = Chunk(ids);
  int layers = 0;
  chunk.on_layer = [&](int, int64_t, int64_t) { ++layers; };
  chunk.cancelled = [&] { return layers == 1; };
  EXPECT_EQ(executor().Prefill(chunk).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(layers, 1);
  // The same chunk again goes through and gives what it would have given at once.
  chunk.cancelled = nullptr;
  chunk.last_logits = logits_;
  ASSERT_TRUE(executor().Prefill(chunk).ok());
  kv::KvSequence fresh(bench_.pool.get());
  EXPECT_EQ(PrefillAll(bench_, fresh, ids, 64), logits_);
}

TEST_F(TinyModel, LastLogitsAreThoseOfTheLastPosition) {
  const std::vector<TokenId> ids = {5, 9, 200, 31, 77};
  PrefillChunk chunk = Chunk(ids);
  std::vector<float> reported;
  int calls = 0;
  chunk.on_logits = [&](int64_t position, std::span<const float> values) {
    EXPECT_EQ(position, calls++);
    reported.assign(values.begin(), values.end());
  };
  ASSERT_TRUE(executor().Prefill(chunk).ok());
  EXPECT_EQ(calls, 5);
  kv::KvSequence fresh(bench_.pool.get());
  EXPECT_EQ(PrefillAll(bench_, fresh, ids, 64), reported);
}

TEST_F(TinyModel, BenchmarkCountsTokensPerSecond) {
  const std::vector<TokenId> text = {1, 2, 3};
  const auto result = BenchModel(
      executor(), *bench_.pool, text,
      {.prompt_lengths = {7, 100}, .decode_tokens = 2, .runs = 3, .max_prefill_tokens = 64});
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->rows.size(), 2u);
  EXPECT_EQ(result->rows[1].prompt_tokens, 100);
  EXPECT_EQ(result->rows[1].prefill_all.size(), 3u);
  EXPECT_GT(result->rows[1].prefill_tokens_per_second, 0);
  EXPECT_GT(result->rows[1].decode_tokens_per_second, 0);
  EXPECT_FALSE(BenchModel(executor(), *bench_.pool, {}, {}).ok());
}

TEST(Create, RefusesOptionsOutOfRange) {
  auto model = model::Model::Open(std::string(SMARTGEN_TEST_DATA) + "/arch_llama");
  ASSERT_TRUE(model.ok()) << model.status();
  for (const ExecutorOptions& bad :
       {ExecutorOptions{.threads = -1}, ExecutorOptions{.max_prefill_tokens = 0},
        ExecutorOptions{.max_decode_batch = 0}}) {
    EXPECT_EQ(CreateCpuExecutor(**model, bad).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(Create, AutoSettlesOnAType) {
  auto model = model::Model::Open(std::string(SMARTGEN_TEST_DATA) + "/arch_llama");
  ASSERT_TRUE(model.ok()) << model.status();
  const auto executor = CreateCpuExecutor(**model, {.compute = ComputeType::kAuto});
  ASSERT_TRUE(executor.ok()) << executor.status();
  EXPECT_NE((*executor)->compute(), ComputeType::kAuto);
}

TEST(ComputeTypes, NamesReadBackAndOthersAreRefused) {
  for (ComputeType type : {ComputeType::kAuto, ComputeType::kF32, ComputeType::kBF16}) {
    EXPECT_EQ(*ParseComputeType(ComputeTypeName(type)), type);
  }
  EXPECT_THAT(std::string(base::MessageOf(ParseComputeType("int4").status())), HasSubstr("int4"));
}

}  // namespace
}  // namespace smartgen::executor
