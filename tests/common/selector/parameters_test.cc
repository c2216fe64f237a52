#include "common/selector/parameters.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/common/selector/selector_test_util.h"
#include "tests/fakes/temp_folder.h"

namespace smartgen::selector {
namespace {

class ParametersTest : public testing::Test {
 protected:
  void SetUp() override {
    Random random(1);
    hash_ = {.purpose = HeadMatrices::Purpose::kHash, .model_fingerprint = "model-1"};
    hash_.layers.resize(2);
    hash_.layers.push_back(
        {.heads = 1, .rows = 8, .columns = 128, .values = Normals(random, 8 * 128)});
    skew_ = {.purpose = HeadMatrices::Purpose::kSkew, .model_fingerprint = "model-1"};
    skew_.layers.resize(2);
    skew_.layers.push_back({.heads = 1, .rows = 8, .columns = 8, .values = std::vector<float>(64)});
    for (int i = 0; i < 8; ++i) skew_.layers[2].values[i * 9] = 1;
  }

  std::string File(const std::string& name) const { return folder_.path() + "/" + name; }
  absl::StatusOr<Parameters> Load(const std::string& path,
                                  const std::string& fingerprint = "model-1") const {
    return LoadParameters(path, fingerprint, LayoutOf(3, 1, 8, kv::DType::kBF16, 64), Options{});
  }

  fakes::TempFolder folder_;
  HeadMatrices hash_, skew_;
};

TEST_F(ParametersTest, AFileIsWhatItSaysItIs) {
  ASSERT_TRUE(hash_.Save(File("a")).ok());
  ASSERT_TRUE(skew_.Save(File("b")).ok());
  const auto hash = Load(File("a"));
  ASSERT_TRUE(hash.ok()) << hash.status();
  EXPECT_EQ(hash->hash_weights.layers[2].values, hash_.layers[2].values);
  EXPECT_TRUE(hash->skew.empty());
  const auto skew = Load(File("b"));
  ASSERT_TRUE(skew.ok()) << skew.status();
  EXPECT_EQ(skew->skew.layers[2].values, skew_.layers[2].values);
  EXPECT_TRUE(skew->hash_weights.empty());
}

TEST_F(ParametersTest, AFolderMayHoldOneOrBoth) {
  EXPECT_EQ(Load(folder_.path()).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(skew_.Save(File(kSkewFile)).ok());
  auto loaded = Load(folder_.path());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_TRUE(loaded->hash_weights.empty());
  ASSERT_TRUE(hash_.Save(File(kHashFile)).ok());
  loaded = Load(folder_.path());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_FALSE(loaded->hash_weights.empty());
  EXPECT_FALSE(loaded->skew.empty());
}

TEST_F(ParametersTest, AnotherModelsAreRefusedWithTheFileNamed) {
  ASSERT_TRUE(skew_.Save(File(kSkewFile)).ok());
  const absl::Status status = Load(folder_.path(), "model-2").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(base::MessageOf(status).find(kSkewFile), std::string_view::npos);
}

TEST_F(ParametersTest, AnotherShapeIsRefused) {
  hash_.layers[2].columns = 64;
  hash_.layers[2].values.resize(8 * 64);
  ASSERT_TRUE(hash_.Save(File("a")).ok());
  EXPECT_EQ(Load(File("a")).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ParametersTest, WhatIsNoSuchFileIsRefused) {
  EXPECT_EQ(Load(File("none")).status().code(), absl::StatusCode::kNotFound);
  std::ofstream(File("text")) << "a text of some length";
  EXPECT_EQ(Load(File("text")).status().code(), absl::StatusCode::kInvalidArgument);
  std::ofstream(File("empty")) << "";
  EXPECT_EQ(Load(File("empty")).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace smartgen::selector
