#include "common/model/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/common/model/gguf_builder.h"

namespace smartgen::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using B = GgufBuilder;

// A heap copy of exactly the right size, so that address sanitizer sees a read past the end.
absl::StatusOr<std::unique_ptr<Model>> OpenCopy(const std::string& text) {
  auto copy = std::make_unique<std::vector<std::byte>>(text.size());
  if (!text.empty()) std::memcpy(copy->data(), text.data(), text.size());
  auto model = OpenGguf(*copy, nullptr);
  if (model.ok()) {
    // Every weight's last row is read before the copy goes.
    for (int w = 0; w <= static_cast<int>(Weight::kDown); ++w) {
      const auto view = (*model)->Find(static_cast<Weight>(w), 0);
      if (!view.has_value()) continue;
      std::vector<float> row(static_cast<size_t>(view->cols));
      Dequantize(*view, view->rows - 1, view->rows, row);
    }
  }
  return model;
}

TEST(Gguf, OpensATinyLlamaInVersions2And3) {
  for (const uint32_t version : {2u, 3u}) {
    B builder = B::TinyLlama();
    builder.version = version;
    const auto model = OpenCopy(builder.Build());
    ASSERT_TRUE(model.ok()) << model.status();
    const ModelConfig& config = (*model)->config();
    EXPECT_EQ(config.name, "tiny");
    EXPECT_EQ(config.hidden_dim, 32);
    EXPECT_EQ(config.vocab_size, 8);
    EXPECT_EQ(config.num_layers(), 1);
    EXPECT_EQ(config.layers[0].head_dim, 16);
    EXPECT_TRUE(config.tied_output);
    EXPECT_TRUE(config.rope.interleaved);
    const TokenizerData& tokens = (*model)->tokenizer_data();
    EXPECT_EQ(tokens.tokens.size(), 8u);
    EXPECT_THAT(tokens.merges, ElementsAre("a b"));
    EXPECT_THAT(tokens.eos_ids, ElementsAre(7));
    EXPECT_EQ(tokens.bos_id, std::nullopt);
  }
}

TEST(Gguf, FindsWeightsByTheirRole) {
  const std::string file = B::TinyLlama().Build();
  const auto model = OpenGguf(std::as_bytes(std::span(file)), nullptr);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto down = (*model)->Find(Weight::kDown, 0);
  ASSERT_TRUE(down.has_value());
  EXPECT_EQ(down->name, "blk.0.ffn_down.weight");
  EXPECT_EQ(down->rows, 32);
  EXPECT_EQ(down->cols, 64);
  EXPECT_FALSE((*model)->Find(Weight::kQBias, 0).has_value());
  EXPECT_FALSE((*model)->Find(Weight::kDown, 1).has_value());
  EXPECT_FALSE((*model)->Find(Weight::kDown, -1).has_value());
  EXPECT_EQ((*model)->Find(Weight::kOutput)->name, "token_embd.weight");
}

TEST(Gguf, TakesAnOutputMatrixBiasesAndRopeDivisorsWhereTheFileHasThem) {
  B b = B::TinyLlama();
  b.tensors.push_back({"output.weight", {32, 8}, 0, 1024, -1});
  b.tensors.push_back({"blk.0.attn_q.bias", {32}, 0, 128, -1});
  b.tensors.push_back({"blk.0.attn_k.bias", {16}, 0, 64, -1});
  b.tensors.push_back({"blk.0.attn_v.bias", {16}, 0, 64, -1});
  b.Set("tokenizer.ggml.eot_token_id", B::U32(6));
  const auto model = OpenCopy(b.Build());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_FALSE((*model)->config().tied_output);
  EXPECT_TRUE((*model)->config().qkv_bias);
  EXPECT_EQ((*model)->Find(Weight::kOutput)->name, "output.weight");
  EXPECT_EQ((*model)->Find(Weight::kKBias, 0)->cols, 16);
  EXPECT_THAT((*model)->tokenizer_data().eos_ids, ElementsAre(7, 6));
  // The builder's bytes read as small positive numbers, which divisors may be.
  b.tensors.push_back({"rope_freqs.weight", {8}, 0, 32, -1});
  const auto with_divisors = OpenCopy(b.Build());
  ASSERT_TRUE(with_divisors.ok()) << with_divisors.status();
  EXPECT_EQ((*with_divisors)->config().rope.frequency_divisors.size(), 8u);
}

TEST(Gguf, ReadsOneValueForEachLayerWhereTheFileHasAnArray) {
  B b = B::TinyLlama();
  b.Set("llama.feed_forward_length", B::Ints({64}));
  ASSERT_TRUE(OpenCopy(b.Build()).ok());
  b.Set("llama.feed_forward_length", B::Ints({64, 64}));
  EXPECT_THAT(std::string(base::MessageOf(OpenCopy(b.Build()).status())),
              HasSubstr("want 1 values, one a layer, file has 2"));
}

TEST(Gguf, AFileCutOffAtAnyByteIsRefused) {
  const std::string file = B::TinyLlama().Build();
  size_t header = 0;
  (void)B::TinyLlama().Build(&header);
  for (size_t length = 0; length < header + 64; ++length) {
    const auto model = OpenCopy(file.substr(0, length));
    ASSERT_FALSE(model.ok()) << length;
    ASSERT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument) << length;
  }
  EXPECT_FALSE(OpenCopy(file.substr(0, file.size() - 1)).ok());
}

TEST(Gguf, NoByteOfTheHeaderCanBeChangedToSomethingThatDoesHarm) {
  const std::string file = B::TinyLlama().Build();
  size_t header = 0;
  (void)B::TinyLlama().Build(&header);
  for (size_t at = 0; at < header; ++at) {
    for (const int value : {0, 1, 0x7f, 0x80, 0xff, file[at] ^ 1}) {
      std::string changed = file;
      changed[at] = static_cast<char>(value);
      (void)OpenCopy(changed);  // any answer but a crash
    }
  }
}

struct HostileCase {
  std::string name;
  std::function<void(B&)> change;
  absl::StatusCode code;
  std::string message;
};

class HostileGguf : public ::testing::TestWithParam<HostileCase> {};

TEST_P(HostileGguf, IsRefusedWithTheReason) {
  B builder = B::TinyLlama();
  GetParam().change(builder);
  const auto model = OpenCopy(builder.Build());
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), GetParam().code) << model.status();
  EXPECT_THAT(std::string(base::MessageOf(model.status())), HasSubstr(GetParam().message));
}

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

const HostileCase kHostileCases[] = {
    {"Version1", [](B& b) { b.version = 1; }, kUnimplemented,
     "GGUF version 1; this version reads 2"},
    {"BigEndian", [](B& b) { b.version = 0x03000000; }, kUnimplemented, "big-endian"},
    {"NoArchitecture", [](B& b) { b.Erase("general.architecture"); }, kInvalid,
     "general.architecture is missing"},
    {"OtherArchitecture", [](B& b) { b.Set("general.architecture", B::String("mamba")); },
     kUnimplemented, "architecture mamba is not supported; this version has llama"},
    {"ArchitectureIsANumber", [](B& b) { b.Set("general.architecture", B::U32(1)); }, kInvalid,
     "general.architecture: want a string"},
    {"DuplicateKey", [](B& b) { b.keys.push_back(b.keys[3]); }, kInvalid,
     "llama.context_length appears twice"},
    {"EmptyKey", [](B& b) { b.keys.emplace_back("", B::U32(1)); }, kInvalid, "name is empty"},
    {"LongKey", [](B& b) { b.keys.emplace_back(std::string(70000, 'k'), B::U32(1)); }, kInvalid,
     "wants at most 65535 bytes, file says 70000"},
    {"UnknownValueType", [](B& b) { b.Set("x", B::Raw<uint32_t>(13) + B::Raw<uint64_t>(0)); },
     kInvalid, "unknown value type 13"},
    {"BooleanOf2", [](B& b) { b.Set("x", B::Bool(2)); }, kInvalid, "want 0 or 1, file has 2"},
    {"HugeString", [](B& b) { b.Set("x", B::Raw<uint32_t>(8) + B::Raw<uint64_t>(UINT64_MAX)); },
     kInvalid, "wants at most"},
    {"HugeArray", [](B& b) { b.Set("x", B::ArrayOf(10, UINT64_MAX / 4, "")); }, kInvalid,
     "array of 4611686018427387903 values"},
    {"HugeStringArray", [](B& b) { b.Set("x", B::ArrayOf(8, UINT64_MAX, "")); }, kInvalid, "key x"},
    {"DeepArray",
     [](B& b) {
       std::string value = B::ArrayOf(4, 0, "").substr(4);
       for (int i = 0; i < 100; ++i) value = B::Raw<uint32_t>(9) + B::Raw<uint64_t>(1) + value;
       b.Set("x", B::Raw<uint32_t>(9) + value);
     },
     kInvalid, "nested more than 4 deep"},
    {"AlignmentZero", [](B& b) { b.Set("general.alignment", B::U32(0)); }, kInvalid,
     "want a power of two from 8"},
    {"Alignment48", [](B& b) { b.Set("general.alignment", B::U32(48)); }, kInvalid,
     "want a power of two from 8 to 1048576, file has 48"},
    {"AlignmentText", [](B& b) { b.Set("general.alignment", B::String("32")); }, kInvalid,
     "no integer"},
    {"MisalignedOffset", [](B& b) { b.Get("output_norm.weight").offset = 33; }, kInvalid,
     "tensor output_norm.weight: offset 33 is not a multiple of 32"},
    {"OffsetPastTheEnd", [](B& b) { b.Get("output_norm.weight").offset = 1 << 30; }, kInvalid,
     "tensor output_norm.weight: wants 128 bytes at offset 1073741824"},
    {"OffsetThatWrapsAround", [](B& b) { b.Get("output_norm.weight").offset = INT64_MAX - 31; },
     kInvalid, "wants 128 bytes at offset 9223372036854775776"},
    {"OverlappingTensors", [](B& b) { b.Get("output_norm.weight").offset = 0; }, kInvalid,
     "overlap"},
    {"DuplicateTensor", [](B& b) { b.tensors.push_back(b.tensors[1]); }, kInvalid,
     "tensor blk.0.attn_norm.weight appears twice"},
    {"UnknownTensorType", [](B& b) { b.Get("output_norm.weight").type = 16; }, kUnimplemented,
     "type 16 is not supported; this version reads F32, F16, BF16, Q4_0"},
    {"NoDimensions", [](B& b) { b.Get("output_norm.weight").shape = {}; }, kInvalid,
     "want 1 to 4 dimensions, file has 0"},
    {"FiveDimensions",
     [](B& b) {
       b.Get("output_norm.weight").shape = {32, 1, 1, 1, 1};
     },
     kInvalid, "want 1 to 4 dimensions, file has 5"},
    {"ZeroDimension", [](B& b) { b.Get("output_norm.weight").shape = {0}; }, kInvalid,
     "dimension 0: want 1 to"},
    {"HugeDimension", [](B& b) { b.Get("output_norm.weight").shape = {UINT64_MAX}; }, kInvalid,
     "file has 18446744073709551615"},
    {"SizeOverflow",
     [](B& b) {
       const uint64_t size = uint64_t{1} << 40;
       b.Get("output_norm.weight").shape = {size, size, size};
     },
     kInvalid, "overflows 64 bits"},
    {"PartialBlock",
     [](B& b) {
       b.Get("output_norm.weight").shape = {33};
       b.Get("output_norm.weight").type = 8;
     },
     kInvalid, "[33] of type Q8_0 wants rows of whole blocks of 32 values"},
    {"LongTensorName", [](B& b) { b.tensors[2].name = std::string(300, 't'); }, kInvalid,
     "wants at most 256 bytes, file says 300"},
    {"WrongShape",
     [](B& b) {
       b.Get("blk.0.attn_k.weight").shape = {32, 32};
       b.Get("blk.0.attn_k.weight").bytes = 4096;
     },
     kInvalid, "tensor blk.0.attn_k.weight: want [32 16], file has [32 32]"},
    {"TransposedShape",
     [](B& b) {
       b.Get("blk.0.ffn_down.weight").shape = {32, 64};
     },
     kInvalid, "tensor blk.0.ffn_down.weight: want [64 32], file has [32 64]"},
    {"NormOfTwoDimensions",
     [](B& b) {
       b.Get("output_norm.weight").shape = {16, 2};
     },
     kInvalid, "tensor output_norm.weight: want [32], file has [16 2]"},
    {"MissingTensor", [](B& b) { b.EraseTensor("blk.0.ffn_up.weight"); }, kInvalid,
     "tensor blk.0.ffn_up.weight is missing (64 outputs x 32 inputs)"},
    {"NoEmbedding", [](B& b) { b.EraseTensor("token_embd.weight"); }, kInvalid,
     "token_embd.weight is missing"},
    {"TensorOfAnotherArchitecture",
     [](B& b) {
       b.tensors.push_back({"blk.0.attn_output.bias", {32}, 0, 128, -1});
     },
     kUnimplemented, "tensor blk.0.attn_output.bias [32]: architecture llama with 1 layers has no"},
    {"LayerBeyondTheCount",
     [](B& b) {
       b.tensors.push_back({"blk.1.attn_norm.weight", {32}, 0, 128, -1});
     },
     kUnimplemented, "blk.1.attn_norm.weight"},
    {"NoLayers", [](B& b) { b.Set("llama.block_count", B::U32(0)); }, kInvalid,
     "llama.block_count: want 1 to 1024, file has 0"},
    {"TooManyLayers", [](B& b) { b.Set("llama.block_count", B::U64(UINT64_MAX)); }, kInvalid,
     "llama.block_count: want an integer"},
    {"LayersWithoutTensors", [](B& b) { b.Set("llama.block_count", B::U32(1024)); }, kInvalid,
     "tensor blk.1.attn_norm.weight is missing"},
    {"HeadsDoNotDivide", [](B& b) { b.Set("llama.attention.head_count", B::U32(3)); }, kInvalid,
     "want a divisor of the embedding length 32, file has 3"},
    {"OddHeadDim", [](B& b) { b.Set("llama.attention.key_length", B::U32(15)); }, kInvalid,
     "head_dim: want an even number"},
    {"KvHeadsDoNotDivide", [](B& b) { b.Set("llama.attention.head_count_kv", B::U32(3)); },
     kInvalid, "num_kv_heads: want a divisor of num_heads 2, have 3"},
    {"PartialRotation", [](B& b) { b.Set("llama.rope.dimension_count", B::U32(8)); },
     kUnimplemented, "rotating 8 of 16 dimensions"},
    {"Yarn", [](B& b) { b.Set("llama.rope.scaling.type", B::String("yarn")); }, kUnimplemented,
     "yarn is not supported; this version has none and linear"},
    {"Experts", [](B& b) { b.Set("llama.expert_count", B::U32(8)); }, kUnimplemented,
     "mixtures of experts are not supported"},
    {"Split", [](B& b) { b.Set("split.count", B::U32(3)); }, kUnimplemented, "split over 3 files"},
    {"EpsilonIsNan",
     [](B& b) { b.Set("llama.attention.layer_norm_rms_epsilon", B::F32(__builtin_nanf(""))); },
     kInvalid, "layer_norm_rms_epsilon: want a finite number"},
    {"EpsilonIsZero", [](B& b) { b.Set("llama.attention.layer_norm_rms_epsilon", B::F32(0)); },
     kInvalid, "norm_eps: want a positive finite number"},
    {"ThetaIsNegative", [](B& b) { b.Set("llama.rope.freq_base", B::F32(-1)); }, kInvalid,
     "rope.theta: want a positive finite number, have -1"},
    {"RopeDivisorsOfWrongLength",
     [](B& b) {
       b.tensors.push_back({"rope_freqs.weight", {9}, 0, 36, -1});
     },
     kInvalid, "tensor rope_freqs.weight: want [8] of type F32, file has [9] of F32"},
    {"RopeDivisorsOfWrongType",
     [](B& b) {
       b.tensors.insert(b.tensors.begin(), {"rope_freqs.weight", {8}, 1, 16, -1});
     },
     kInvalid, "rope_freqs.weight: want [8] of type F32, file has [8] of F16"},
    {"VocabularyDisagrees", [](B& b) { b.Set("llama.vocab_size", B::U32(9)); }, kInvalid,
     "llama.vocab_size: want the embedding's 8 rows, file has 9"},
    {"MoreTokensThanRows",
     [](B& b) { b.Set("tokenizer.ggml.tokens", B::Strings(std::vector<std::string>(9, "t"))); },
     kInvalid, "tokenizer.ggml.tokens: want an array of at most 8 values, file has 9"},
    {"TokensAreNumbers",
     [](B& b) {
       b.Set("tokenizer.ggml.tokens", B::Ints({1, 2, 3, 4, 5, 6, 7, 8}));
     },
     kInvalid, "tokenizer.ggml.tokens: want strings"},
    {"FewerTypesThanTokens", [](B& b) { b.Set("tokenizer.ggml.token_type", B::Ints({1})); },
     kInvalid, "tokenizer.ggml.token_type: want 8 values, one a token, file has 1"},
    {"UnknownTokenType",
     [](B& b) {
       b.Set("tokenizer.ggml.token_type", B::Ints({1, 1, 1, 1, 1, 1, 1, 99}));
     },
     kInvalid, "want 0 to 6, file has 99"},
    {"EosOutOfRange", [](B& b) { b.Set("tokenizer.ggml.eos_token_id", B::U32(8)); }, kInvalid,
     "want a token id below 8, file has 8"},
    {"AddBosWithoutBos", [](B& b) { b.Set("tokenizer.ggml.add_bos_token", B::Bool(1)); }, kInvalid,
     "bos_token_id names none"},
};

INSTANTIATE_TEST_SUITE_P(Table, HostileGguf, ::testing::ValuesIn(kHostileCases),
                         [](const auto& info) { return info.param.name; });

TEST(Gguf, CountsThatTheFileCannotHoldAreRefusedBeforeAnythingIsAllocated) {
  const std::string file = B::TinyLlama().Build();
  for (const size_t at : {size_t{8}, size_t{16}}) {  // tensor count, key count
    std::string changed = file;
    changed.replace(at, 8, B::Raw<uint64_t>(UINT64_MAX));
    const auto model = OpenCopy(changed);
    ASSERT_FALSE(model.ok());
    EXPECT_THAT(std::string(base::MessageOf(model.status())), HasSubstr("do not fit into the"));
  }
}

TEST(Gguf, TheFuzzersSeedsAreSoundModels) {
  for (const char* name : {"f32_v3", "f16_v2_rope_freqs", "q4_1"}) {
    const auto model =
        Model::Open(std::string(SMARTGEN_TEST_DATA) + "/../fuzz/corpus/gguf/" + name);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ((*model)->config().num_layers(), 1) << name;
  }
}

TEST(Gguf, ControlBytesOfAFileDoNotReachMessages) {
  B b = B::TinyLlama();
  b.Set("general.architecture", B::String("\x1b[31mllama\n"));
  EXPECT_THAT(std::string(base::MessageOf(OpenCopy(b.Build()).status())),
              HasSubstr("architecture \\x1b[31mllama\\x0a is not"));
}

TEST(Gguf, TheFingerprintFollowsConfigurationAndWeightsButNotTheName) {
  const auto fingerprint = [](const std::string& file) {
    const auto model = OpenCopy(file);
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? (*model)->fingerprint() : "";
  };
  const std::string original = fingerprint(B::TinyLlama().Build());
  B b = B::TinyLlama();
  b.Set("general.name", B::String("other"));
  EXPECT_EQ(fingerprint(b.Build()), original);
  b.Set("llama.rope.freq_base", B::F32(20000));
  EXPECT_NE(fingerprint(b.Build()), original);
  std::string changed = B::TinyLlama().Build();
  changed.back() = static_cast<char>(changed.back() ^ 1);
  EXPECT_NE(fingerprint(changed), original);
}

}  // namespace
}  // namespace smartgen::model
