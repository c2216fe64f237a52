// Model::Open on folders, and on what is no model at all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include "common/model/model.h"
#include "tests/common/model/gguf_builder.h"
#include "tests/common/model/safetensors_builder.h"

namespace smartgen::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kGolden = SMARTGEN_TEST_DATA;

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void WriteTiny(const fakes::TempFolder& folder) {
  folder.Write("config.json", kTinyConfig);
  folder.Write("model.safetensors", SafetensorsBuilder::TinyLlama().Build());
}

std::string OpenMessage(const std::string& path, absl::StatusCode code) {
  const auto model = Model::Open(path);
  EXPECT_EQ(model.status().code(), code) << model.status();
  return std::string(base::MessageOf(model.status()));
}
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

TEST(ModelOpen, SaysThatAPathDoesNotExist) {
  EXPECT_THAT(OpenMessage("/no/such/model.gguf", absl::StatusCode::kNotFound),
              HasSubstr("/no/such/model.gguf: no such file or folder"));
}

TEST(ModelOpen, RefusesFilesThatAreNoModel) {
  const fakes::TempFolder folder;
  EXPECT_THAT(OpenMessage(folder.Write("empty", ""), kInvalid), HasSubstr("the file is empty"));
  EXPECT_THAT(OpenMessage(folder.Write("text", "hello world"), kInvalid),
              HasSubstr("not a GGUF file: it starts with \"hell\""));
  const std::string pipe = folder.path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(OpenMessage(pipe, kInvalid), HasSubstr("not a regular file"));
  EXPECT_THAT(OpenMessage(folder.path(), kInvalid), HasSubstr("the folder has no config.json"));
}

TEST(ModelOpen, OpensAGgufFile) {
  const fakes::TempFolder folder;
  const auto model = Model::Open(folder.Write("tiny.gguf", GgufBuilder::TinyLlama().Build()));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->config().architecture, "llama");
}

TEST(ModelFolder, OpensTheReferenceLlamaInBothStylesOfConfiguration) {
  const fakes::TempFolder folder;
  folder.Write("model.safetensors", ReadFile(kGolden + "/arch_llama/model.safetensors"));
  std::vector<std::string> fingerprints;
  for (const char* name : {"config.json", "config_v5.json"}) {
    folder.Write("config.json", ReadFile(kGolden + "/arch_llama/" + name));
    const auto model = Model::Open(folder.path());
    ASSERT_TRUE(model.ok()) << model.status();
    const ModelConfig& config = (*model)->config();
    EXPECT_EQ(config.architecture, "llama");
    EXPECT_EQ(config.hidden_dim, 64);
    EXPECT_EQ(config.vocab_size, 256);
    EXPECT_EQ(config.context_length, 1024);
    EXPECT_TRUE(config.tied_output);
    ASSERT_EQ(config.num_layers(), 2);
    EXPECT_EQ(config.layers[1].num_heads, 4);
    EXPECT_EQ(config.layers[1].num_kv_heads, 2);
    EXPECT_EQ(config.layers[1].head_dim, 16);
    EXPECT_EQ(config.layers[1].ffn_dim, 64);
    EXPECT_EQ(config.layers[1].window, 0);
    EXPECT_EQ(config.rope.scaling, RopeScaling::kLlama3);
    EXPECT_FLOAT_EQ(config.rope.factor, 8.0f);
    EXPECT_FLOAT_EQ(config.rope.low_freq_factor, 1.0f);
    EXPECT_FLOAT_EQ(config.rope.high_freq_factor, 4.0f);
    EXPECT_EQ(config.rope.original_context, 64);
    EXPECT_FALSE(config.rope.interleaved);
    EXPECT_EQ((*model)->tokenizer_data().bos_id, 1);
    EXPECT_THAT((*model)->tokenizer_data().eos_ids, ElementsAre(2));
    EXPECT_EQ((*model)->Find(Weight::kK, 1)->rows, 32);
    fingerprints.push_back((*model)->fingerprint());
  }
  EXPECT_EQ(fingerprints[0], fingerprints[1]);
}

TEST(ModelFolder, OpensTheReferenceMistralWithItsWindow) {
  const fakes::TempFolder folder;
  folder.Write("model.safetensors", ReadFile(kGolden + "/arch_mistral/model.safetensors"));
  for (const char* name : {"config.json", "config_v5.json"}) {
    folder.Write("config.json", ReadFile(kGolden + "/arch_mistral/" + name));
    const auto model = Model::Open(folder.path());
    ASSERT_TRUE(model.ok()) << model.status();
    const ModelConfig& config = (*model)->config();
    EXPECT_EQ(config.layers[0].window, 32);
    EXPECT_EQ(config.layers[0].head_dim, 32);
    EXPECT_FALSE(config.tied_output);
    EXPECT_EQ((*model)->Find(Weight::kOutput)->name, "lm_head.weight");
    EXPECT_EQ((*model)->Find(Weight::kOutput)->type, TensorType::kF16);
    EXPECT_EQ((*model)->Find(Weight::kO, 0)->cols, 128);
  }
}

TEST(ModelFolder, ReadsTokensAndTemplatesFromTheFilesThatHaveThem) {
  const fakes::TempFolder folder;
  WriteTiny(folder);
  folder.Write("generation_config.json", R"({"eos_token_id": [3, 1]})");
  folder.Write("tokenizer.json", R"({"model": {"vocab": {}}, "post_processor": {"type": "Sequence",
    "processors": [{"type": "ByteLevel"}, {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}}]}})");
  folder.Write("tokenizer_config.json", R"({"chat_template":
    [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]})");
  auto model = Model::Open(folder.path());
  ASSERT_TRUE(model.ok()) << model.status();
  const TokenizerData& data = (*model)->tokenizer_data();
  EXPECT_THAT(data.eos_ids, ElementsAre(3, 1));
  EXPECT_EQ(data.bos_id, 0);
  EXPECT_TRUE(data.add_bos);
  EXPECT_EQ(data.chat_template, "D");
  EXPECT_TRUE(data.tokenizer_json.starts_with(R"({"model")"));
  EXPECT_TRUE(data.tokens.empty());
  // A template file outranks the entry; add_bos_token outranks the post-processor.
  folder.Write("chat_template.jinja", "J");
  folder.Write("tokenizer_config.json", R"({"chat_template": "S", "add_bos_token": false})");
  model = Model::Open(folder.path());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->tokenizer_data().chat_template, "J");
  EXPECT_FALSE((*model)->tokenizer_data().add_bos);
}

class ShardedFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_.Write("config.json", kTinyConfig);
    first_ = SafetensorsBuilder::TinyLlama();
    second_.tensors.assign(first_.tensors.begin() + 5, first_.tensors.end());
    first_.tensors.resize(5);
    folder_.Write("a.safetensors", first_.Build());
    folder_.Write("b.safetensors", second_.Build());
    WriteIndex("");
  }
  void WriteIndex(const std::string& more) {
    std::string map;
    for (const auto& tensor : first_.tensors) map += "\"" + tensor.name + "\":\"a.safetensors\",";
    for (const auto& tensor : second_.tensors) map += "\"" + tensor.name + "\":\"b.safetensors\",";
    map.pop_back();
    folder_.Write("model.safetensors.index.json", "{\"weight_map\":{" + map + more + "}}");
  }
  fakes::TempFolder folder_;
  SafetensorsBuilder first_;
  SafetensorsBuilder second_;
};

TEST_F(ShardedFolder, IsOneModel) {
  const auto model = Model::Open(folder_.path());
  ASSERT_TRUE(model.ok()) << model.status();
  // Identity does not depend on how the tensors are spread over files.
  const fakes::TempFolder whole;
  WriteTiny(whole);
  EXPECT_EQ((*model)->fingerprint(), (*Model::Open(whole.path()))->fingerprint());
}

TEST_F(ShardedFolder, RefusesAnIndexThatNamesAMissingShard) {
  WriteIndex(R"(,"x":"c.safetensors")");
  EXPECT_THAT(OpenMessage(folder_.path(), kInvalid),
              HasSubstr("shard c.safetensors does not exist"));
}

TEST_F(ShardedFolder, RefusesAnIndexThatNamesATensorThatIsNotThere) {
  WriteIndex(R"(,"x":"b.safetensors")");
  EXPECT_THAT(OpenMessage(folder_.path(), kInvalid),
              HasSubstr("tensor x: weight_map says shard b.safetensors, which does not have it"));
}

TEST_F(ShardedFolder, RefusesATensorThatIsInTwoShards) {
  second_.tensors.push_back(first_.tensors[0]);
  folder_.Write("b.safetensors", second_.Build());
  EXPECT_THAT(OpenMessage(folder_.path(), kInvalid),
              HasSubstr("it is in shard b.safetensors, weight_map says a.safetensors"));
}

TEST_F(ShardedFolder, RefusesAPathInPlaceOfAShardsName) {
  WriteIndex(R"(,"x":"../b.safetensors")");
  EXPECT_THAT(OpenMessage(folder_.path(), kInvalid), HasSubstr("want the plain name"));
}

struct ConfigCase {
  std::string name;
  std::string from;  // replaced in kTinyConfig ...
  std::string to;    // ... by this
  absl::StatusCode code;
  std::string message;
};

class HostileConfig : public ::testing::TestWithParam<ConfigCase> {};

TEST_P(HostileConfig, IsRefusedWithTheReason) {
  const fakes::TempFolder folder;
  WriteTiny(folder);
  std::string config = kTinyConfig;
  const size_t at = config.find(GetParam().from);
  ASSERT_NE(at, std::string::npos);
  config.replace(at, GetParam().from.size(), GetParam().to);
  folder.Write("config.json", config);
  EXPECT_THAT(OpenMessage(folder.path(), GetParam().code), HasSubstr(GetParam().message));
}

// Put before the first key.
std::string Plus(const std::string& member) { return "{" + member + ","; }

const ConfigCase kConfigCases[] = {
    {"NotJson", "{", "", kInvalid, "config.json: not valid JSON"},
    {"Nan", "1e-5", "NaN", kInvalid, "config.json: not valid JSON"},
    {"BeyondDouble", "1e-5", "1e999", kInvalid, "config.json: not valid JSON"},
    {"HugeFloat", "1e-5", "1e300", kInvalid, "rms_norm_eps: want a finite number"},
    {"ZeroEpsilon", "1e-5", "0", kInvalid, "norm_eps: want a positive finite number"},
    {"EpsilonIsText", "1e-5", "\"x\"", kInvalid,
     "rms_norm_eps: want a finite number, file has \"x\""},
    {"HugeInteger", "\"hidden_size\": 8", "\"hidden_size\": 18446744073709551615", kInvalid,
     "hidden_size: want an integer from 1 to 1048576, file has 18446744073709551615"},
    {"FractionalInteger", "\"hidden_size\": 8", "\"hidden_size\": 8.0", kInvalid,
     "hidden_size: want an integer from 1 to 1048576, file has 8.0"},
    {"NegativeLayers", "\"num_hidden_layers\": 1", "\"num_hidden_layers\": -1", kInvalid,
     "num_hidden_layers: want an integer from 1 to 1024, file has -1"},
    {"MoreLayersThanTensors", "\"num_hidden_layers\": 1", "\"num_hidden_layers\": 1024", kInvalid,
     "tensor model.layers.1.input_layernorm.weight is missing"},
    {"MissingKey", "\"vocab_size\"", "\"vocab_sizes\"", kInvalid, "key vocab_size is missing"},
    {"HugeVocabulary", "\"vocab_size\": 4", "\"vocab_size\": 4194305", kInvalid, "vocab_size"},
    {"WrongShape", "\"intermediate_size\": 16", "\"intermediate_size\": 32", kInvalid,
     "tensor model.layers.0.mlp.gate_proj.weight: want [32 8], file has [16 8]"},
    {"HeadsDoNotDivide", "\"num_attention_heads\": 2", "\"num_attention_heads\": 3", kInvalid,
     "want a divisor of hidden_size 8"},
    {"DuplicateKey", "{", Plus("\"vocab_size\": 5"), kInvalid, "key vocab_size appears twice"},
    {"OtherModelType", "\"llama\"", "\"bert\"", kUnimplemented,
     "model_type: \"bert\" is not supported; this version has llama and mistral"},
    {"OtherActivation", "\"silu\"", "\"gelu\"", kUnimplemented,
     "hidden_act: want silu, file has gelu"},
    {"Quantised", "{", Plus("\"quantization_config\": {\"bits\": 4}"), kUnimplemented,
     "quantised safetensors are not supported"},
    {"Yarn", "{", Plus("\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4}"), kUnimplemented,
     "rope_type yarn is not supported; this version has default, linear, llama3"},
    {"ScalingWithoutFactor", "{", Plus("\"rope_scaling\": {\"type\": \"linear\"}"), kInvalid,
     "rope_scaling: key factor is missing"},
    {"ScalingIsText", "{", Plus("\"rope_scaling\": \"linear\""), kInvalid,
     "rope_scaling: want an object"},
    {"PartialRotation", "{", Plus("\"rope_parameters\": {\"partial_rotary_factor\": 0.5}"),
     kUnimplemented, "partial_rotary_factor: want 1, file has 0.5"},
    {"UntiedWithoutOutput", "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false",
     kInvalid, "tensor lm_head.weight is missing"},
    {"TiedIsANumber", "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": 1", kInvalid,
     "tie_word_embeddings: want true or false, file has 1"},
    {"EosOutOfRange", "\"eos_token_id\": 1", "\"eos_token_id\": 4", kInvalid,
     "eos_token_id: want token ids below 4, file has 4"},
    {"EosIsText", "\"eos_token_id\": 1", "\"eos_token_id\": [\"x\"]", kInvalid,
     "eos_token_id: want token ids below 4"},
};

INSTANTIATE_TEST_SUITE_P(Table, HostileConfig, ::testing::ValuesIn(kConfigCases),
                         [](const auto& info) { return info.param.name; });

TEST(ModelFolder, RefusesTensorsOfTypesThatItCannotRead) {
  const fakes::TempFolder folder;
  WriteTiny(folder);
  SafetensorsBuilder builder = SafetensorsBuilder::TinyLlama();
  builder.tensors[2].dtype = "F8_E4M3";
  builder.tensors[2].element_bytes = 1;
  folder.Write("model.safetensors", builder.Build());
  EXPECT_THAT(OpenMessage(folder.path(), kUnimplemented),
              HasSubstr("q_proj.weight: type F8_E4M3 is not supported"));
}

TEST(ModelFolder, RefusesTensorsThatTheArchitectureDoesNotUse) {
  const fakes::TempFolder folder;
  WriteTiny(folder);
  SafetensorsBuilder builder = SafetensorsBuilder::TinyLlama();
  builder.tensors.push_back({"model.layers.0.rotary", {8}});
  folder.Write("model.safetensors", builder.Build());
  EXPECT_THAT(OpenMessage(folder.path(), kUnimplemented),
              HasSubstr("tensor model.layers.0.rotary [8]: architecture llama"));
  builder.tensors.back().name = "model.layers.0.self_attn.rotary_emb.inv_freq";
  folder.Write("model.safetensors", builder.Build());
  EXPECT_TRUE(Model::Open(folder.path()).ok());
}

TEST(ModelFolder, WithSeveralUnnamedFilesAsksForAnIndex) {
  const fakes::TempFolder folder;
  folder.Write("config.json", kTinyConfig);
  const std::string file = SafetensorsBuilder::TinyLlama().Build();
  folder.Write("weights.safetensors", file);
  EXPECT_TRUE(Model::Open(folder.path()).ok());
  folder.Write("more.safetensors", file);
  EXPECT_THAT(OpenMessage(folder.path(), kInvalid), HasSubstr("folder has 2 of the last"));
}

}  // namespace
}  // namespace smartgen::model
