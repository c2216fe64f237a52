// The default model as users fetch it: `smartgen fetch-model smollm2-135m`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "common/model/known_models.h"
#include "common/model/model.h"
#include "common/transfer/built_in_profiles.h"

namespace smartgen::model {
namespace {

absl::StatusOr<std::string> DefaultModelPath() {
  const char* path = std::getenv("SMARTGEN_TEST_MODEL");
  if (path != nullptr && *path != '\0') return std::string(path);
  return ResolveModelPath("smollm2-135m");
}

class DefaultModel : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto path = DefaultModelPath();
    ASSERT_TRUE(path.ok()) << path.status()
                           << "\nThis test needs the default model. Fetch it with: "
                              "smartgen fetch-model smollm2-135m";
    path_ = *path;
    auto model = Model::Open(path_);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
  }
  std::string path_;
  std::unique_ptr<Model> model_;
};

TEST_F(DefaultModel, HasThePublishedConfiguration) {
  const ModelConfig& config = model_->config();
  EXPECT_EQ(config.architecture, "llama");
  EXPECT_EQ(config.hidden_dim, 576);
  EXPECT_EQ(config.vocab_size, 49152);
  EXPECT_EQ(config.context_length, 8192);
  EXPECT_EQ(config.num_layers(), 30);
  EXPECT_FLOAT_EQ(config.norm_eps, 1e-5f);
  EXPECT_FLOAT_EQ(config.rope.theta, 100000.0f);
  EXPECT_TRUE(config.rope.interleaved);
  EXPECT_EQ(config.rope.scaling, RopeScaling::kNone);
  EXPECT_TRUE(config.tied_output);
  EXPECT_FALSE(config.qkv_bias);
  for (const LayerConfig& layer : config.layers) {
    EXPECT_EQ(layer.num_heads, 9);
    EXPECT_EQ(layer.num_kv_heads, 3);
    EXPECT_EQ(layer.head_dim, 64);
    EXPECT_EQ(layer.ffn_dim, 1536);
    EXPECT_EQ(layer.window, 0);
  }
}

TEST_F(DefaultModel, HasItsTokenizerData) {
  const TokenizerData& data = model_->tokenizer_data();
  EXPECT_EQ(data.ggml_model, "gpt2");
  EXPECT_EQ(data.ggml_pre, "smollm");
  ASSERT_EQ(data.tokens.size(), 49152u);
  EXPECT_EQ(data.tokens[1], "<|im_start|>");
  EXPECT_EQ(data.types.size(), 49152u);
  EXPECT_EQ(data.merges.size(), 48900u);
  EXPECT_EQ(data.bos_id, 1);
  EXPECT_THAT(data.eos_ids, ::testing::ElementsAre(2));
  EXPECT_FALSE(data.add_bos);
  EXPECT_TRUE(data.chat_template.starts_with("{% for message in messages %}"));
}

TEST_F(DefaultModel, EveryWeightDecodesToFiniteNumbers) {
  int64_t values = 0;
  const auto check = [&](Weight weight, int layer) {
    const auto view = model_->Find(weight, layer);
    ASSERT_TRUE(view.has_value());
    std::vector<float> out(static_cast<size_t>(view->rows * view->cols));
    Dequantize(*view, 0, view->rows, out);
    bool finite = true;
    for (const float value : out) finite &= std::isfinite(value);
    EXPECT_TRUE(finite) << view->name;
    values += view->rows * view->cols;
  };
  check(Weight::kEmbedding, 0);
  check(Weight::kOutputNorm, 0);
  for (int layer = 0; layer < model_->config().num_layers(); ++layer) {
    for (const Weight weight : {Weight::kAttnNorm, Weight::kQ, Weight::kK, Weight::kV, Weight::kO,
                                Weight::kFfnNorm, Weight::kGate, Weight::kUp, Weight::kDown}) {
      check(weight, layer);
    }
  }
  EXPECT_EQ(values, 134515008);  // what "135M" stands for
}

TEST_F(DefaultModel, TiesTheOutputToTheEmbedding) {
  const auto embedding = model_->Find(Weight::kEmbedding);
  const auto output = model_->Find(Weight::kOutput);
  ASSERT_TRUE(embedding.has_value() && output.has_value());
  EXPECT_EQ(embedding->data.data(), output->data.data());
  EXPECT_EQ(embedding->type, TensorType::kQ8_0);
  EXPECT_EQ(embedding->rows, 49152);
  EXPECT_EQ(embedding->cols, 576);
  EXPECT_EQ(model_->Find(Weight::kQ, 29)->type, TensorType::kQ4_1);
  EXPECT_FALSE(model_->Find(Weight::kQBias, 0).has_value());
}

TEST_F(DefaultModel, HasTheSameFingerprintEachTimeItIsOpened) {
  const auto again = Model::Open(path_);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(model_->fingerprint(), (*again)->fingerprint());
  EXPECT_EQ(model_->fingerprint().size(), 16u);
}

TEST_F(DefaultModel, HasABuiltInProfileForEachSelectorThatNoOtherModelGets) {
  const int layers = model_->config().num_layers();
  const auto profiles = transfer::BuiltInProfiles(model_->fingerprint(), layers);
  std::vector<std::string> selectors;
  for (const transfer::Profile& profile : profiles) {
    selectors.push_back(profile.origin().selector);
    EXPECT_FALSE(profile.IsPrior());
    EXPECT_GE(profile.origin().texts.size(), 5u);
  }
  // The first is the one for selectors without their own: the default selector's.
  EXPECT_THAT(selectors, ::testing::UnorderedElementsAre("quest", "hata", "infinigen"));
  EXPECT_EQ(selectors.at(0), "quest");
  std::string other = model_->fingerprint();
  other.back() = other.back() == '0' ? '1' : '0';
  EXPECT_TRUE(transfer::BuiltInProfiles(other, layers).empty());
  EXPECT_TRUE(transfer::BuiltInProfiles(model_->fingerprint(), layers - 1).empty());
}

TEST_F(DefaultModel, HasTheSizeThatTheTableOfKnownModelsSays) {
  EXPECT_EQ(std::filesystem::file_size(path_),
            static_cast<uintmax_t>(FindKnownModel("smollm2-135m")->bytes));
}

}  // namespace
}  // namespace smartgen::model
