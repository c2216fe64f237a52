#include "common/model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace smartgen::model {
namespace {

using ::testing::HasSubstr;

ModelConfig Valid() {
  ModelConfig config;
  config.architecture = "llama";
  config.hidden_dim = 64;
  config.vocab_size = 256;
  config.context_length = 1024;
  config.layers.assign(
      2, {.num_heads = 4, .num_kv_heads = 2, .head_dim = 16, .ffn_dim = 64, .window = 0});
  return config;
}

std::string CheckMessage(const ModelConfig& config) {
  const absl::Status status = config.Check();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(base::MessageOf(status));
}

TEST(RopeInverseFrequencies, ArePowersOfTheta) {
  ModelConfig config = Valid();
  config.rope.theta = 10000.0f;
  const auto f = config.RopeInverseFrequencies();
  ASSERT_EQ(f.size(), 8u);
  EXPECT_FLOAT_EQ(f[0], 1.0f);
  EXPECT_FLOAT_EQ(f[2], 0.1f);  // 10000^(-4/16)
  EXPECT_FLOAT_EQ(f[4], 0.01f);
  EXPECT_FLOAT_EQ(f[6], 0.001f);
}

TEST(RopeInverseFrequencies, AreDividedByALinearFactor) {
  ModelConfig config = Valid();
  config.rope.scaling = RopeScaling::kLinear;
  config.rope.factor = 4.0f;
  EXPECT_FLOAT_EQ(config.RopeInverseFrequencies()[2], 0.025f);
}

// By hand, with factor 8, low 1, high 4, original 64: wavelengths below 16 stay, above 64 are
// divided by 8. i = 1: wavelength 19.869, smooth (64 / 19.869 - 1) / 3 = 0.74036; i = 2: 62.832,
// smooth 0.0061972.
TEST(RopeInverseFrequencies, FollowLlama3sScaling) {
  ModelConfig config = Valid();
  config.rope = {.theta = 10000.0f,
                 .scaling = RopeScaling::kLlama3,
                 .factor = 8.0f,
                 .low_freq_factor = 1.0f,
                 .high_freq_factor = 4.0f,
                 .original_context = 64};
  const auto f = config.RopeInverseFrequencies();
  EXPECT_FLOAT_EQ(f[0], 1.0f);
  EXPECT_NEAR(f[1], 0.244384f, 2e-6);
  EXPECT_NEAR(f[2], 0.0130423f, 2e-7);
  EXPECT_FLOAT_EQ(f[4], 0.01f / 8);
  EXPECT_FLOAT_EQ(f[6], 0.001f / 8);
}

TEST(RopeInverseFrequencies, TakeTheFilesDivisorsInsteadOfAScaling) {
  ModelConfig config = Valid();
  config.rope.scaling = RopeScaling::kLinear;
  config.rope.factor = 4.0f;
  config.rope.frequency_divisors = {1, 1, 2, 2, 4, 4, 8, 8};
  const auto f = config.RopeInverseFrequencies();
  EXPECT_FLOAT_EQ(f[0], 1.0f);
  EXPECT_FLOAT_EQ(f[2], 0.05f);
  EXPECT_FLOAT_EQ(f[6], 0.000125f);
}

TEST(ModelConfigCheck, AcceptsASoundConfiguration) { EXPECT_TRUE(Valid().Check().ok()); }

TEST(ModelConfigCheck, NamesTheFieldThatIsWrong) {
  const auto with = [](auto change) {
    ModelConfig config = Valid();
    change(config);
    return CheckMessage(config);
  };
  EXPECT_THAT(with([](auto& c) { c.hidden_dim = 0; }), HasSubstr("hidden_dim: want 1 to 1048576"));
  EXPECT_THAT(with([](auto& c) { c.vocab_size = kMaxVocab + 1; }), HasSubstr("vocab_size"));
  EXPECT_THAT(with([](auto& c) { c.context_length = -1; }), HasSubstr("context_length"));
  EXPECT_THAT(with([](auto& c) { c.layers.clear(); }), HasSubstr("layers: want 1 to 1024"));
  EXPECT_THAT(with([](auto& c) { c.norm_eps = std::numeric_limits<float>::infinity(); }),
              HasSubstr("norm_eps"));
  EXPECT_THAT(with([](auto& c) { c.layers[1].num_heads = 0; }), HasSubstr("layers[1].num_heads"));
  EXPECT_THAT(with([](auto& c) { c.layers[1].num_kv_heads = 3; }),
              HasSubstr("layers[1].num_kv_heads: want a divisor of num_heads 4, have 3"));
  EXPECT_THAT(with([](auto& c) { c.layers[0].head_dim = 15; }), HasSubstr("even number"));
  EXPECT_THAT(with([](auto& c) { c.layers[1].head_dim = 32; }),
              HasSubstr("layers[1].head_dim: want layer 0's 16, have 32"));
  EXPECT_THAT(with([](auto& c) { c.layers[1].ffn_dim = -5; }), HasSubstr("layers[1].ffn_dim"));
  EXPECT_THAT(with([](auto& c) { c.layers[0].window = -1; }), HasSubstr("layers[0].window"));
  EXPECT_THAT(with([](auto& c) { c.rope.theta = std::nanf(""); }), HasSubstr("rope.theta"));
  EXPECT_THAT(with([](auto& c) { c.rope.frequency_divisors = {1.0f}; }),
              HasSubstr("rope.frequency_divisors: want 8 values"));
  EXPECT_THAT(with([](auto& c) { c.rope.frequency_divisors.assign(8, 0.0f); }),
              HasSubstr("rope.frequency_divisors[0]"));
  EXPECT_THAT(with([](auto& c) {
                c.rope.scaling = RopeScaling::kLlama3;
                c.rope.high_freq_factor = c.rope.low_freq_factor;
              }),
              HasSubstr("rope.high_freq_factor"));
}

}  // namespace
}  // namespace smartgen::model
