#include "common/selector/matrix_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>

#include "tests/common/selector/selector_test_util.h"
#include "tests/fakes/temp_folder.h"

namespace smartgen::selector {
namespace {

class MatrixFileTest : public testing::Test {
 protected:
  void SetUp() override {
    Random random(1);
    matrices_ = {.purpose = HeadMatrices::Purpose::kHash, .model_fingerprint = "model-1"};
    matrices_.layers.push_back({});  // a dense layer
    matrices_.layers.push_back(
        {.heads = 2, .rows = 8, .columns = 64, .values = Normals(random, 2 * 8 * 64)});
  }

  std::string Read() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void Write(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }
  absl::Status LoadStatus(HeadMatrices::Purpose purpose = HeadMatrices::Purpose::kHash) const {
    return HeadMatrices::Load(path_, purpose).status();
  }

  fakes::TempFolder folder_;
  std::string path_ = folder_.path() + "/matrices";
  HeadMatrices matrices_;
};

TEST_F(MatrixFileTest, ComesBackAsSaved) {
  ASSERT_TRUE(matrices_.Save(path_).ok());
  const auto loaded = HeadMatrices::Load(path_, HeadMatrices::Purpose::kHash);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->model_fingerprint, "model-1");
  ASSERT_EQ(loaded->layers.size(), 2u);
  EXPECT_EQ(loaded->layers[0].heads, 0);
  EXPECT_EQ(loaded->layers[1].values, matrices_.layers[1].values);
  EXPECT_EQ(loaded->layers[1].Matrix(1)[0], matrices_.layers[1].values[8 * 64]);
  EXPECT_TRUE(loaded->CheckModel("model-1").ok());
  EXPECT_EQ(loaded->CheckModel("model-2").code(), absl::StatusCode::kFailedPrecondition);
  const auto layout = LayoutOf(2, 2, 8, kv::DType::kBF16, 64);
  EXPECT_TRUE(loaded->CheckShapes(layout, 1, 64).ok());
  EXPECT_FALSE(loaded->CheckShapes(layout, 0, 64).ok());
  EXPECT_FALSE(loaded->CheckShapes(layout, 1, 128).ok());
}

TEST_F(MatrixFileTest, TrainedWeightsDecideTheCodes) {
  const auto layout = LayoutOf(2, 2, 8, kv::DType::kBF16, 64);
  TestSequence sequence(layout, 16, 1);
  const Options options{.kind = Kind::kHata, .dense_layers = 1, .hash_bits = 64};
  const auto random = MakeSelector(options, layout, 1);
  const auto trained = MakeSelector(options, layout, 1, {.hash_weights = matrices_});
  EXPECT_NE(random->fingerprint(), trained->fingerprint());
  std::vector<std::byte> bytes;
  ASSERT_TRUE(trained->Encode(1, *sequence, 5, 6, {}, bytes).ok());
  ASSERT_EQ(bytes.size(), 16u);
  for (int h = 0; h < 2; ++h) {
    const auto key = sequence.Key(1, h, 5);
    for (int b = 0; b < 64; ++b) {
      double sum = 0;
      for (int c = 0; c < 8; ++c) sum += key[c] * matrices_.layers[1].Matrix(h)[c * 64 + b];
      const bool bit = (static_cast<int>(bytes[h * 8 + b / 8]) >> (b % 8) & 1) != 0;
      EXPECT_EQ(bit, sum > 0);
    }
  }
}

TEST_F(MatrixFileTest, EveryTruncationAndEveryFlippedByteIsFound) {
  matrices_.layers[1] = {.heads = 1, .rows = 2, .columns = 3, .values = {1, 2, 3, 4, 5, 6}};
  ASSERT_TRUE(matrices_.Save(path_).ok());
  const std::string good = Read();
  for (size_t size = 0; size < good.size(); ++size) {
    Write(good.substr(0, size));
    EXPECT_FALSE(LoadStatus().ok()) << size;
  }
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x55);
    Write(bad);
    EXPECT_FALSE(LoadStatus().ok()) << i;
  }
  Write(good + "x");
  EXPECT_FALSE(LoadStatus().ok());
  Write(good);
  EXPECT_TRUE(LoadStatus().ok());
}

TEST_F(MatrixFileTest, SaysWhatTheFileIsInstead) {
  EXPECT_EQ(LoadStatus().code(), absl::StatusCode::kNotFound);
  Write("GGUF and so on, long enough for a sum");
  EXPECT_NE(base::MessageOf(LoadStatus()).find("not a SmartGen matrix file"),
            std::string_view::npos);
  ASSERT_TRUE(matrices_.Save(path_).ok());
  EXPECT_NE(base::MessageOf(LoadStatus(HeadMatrices::Purpose::kSkew)).find("want skew"),
            std::string_view::npos);
  std::string newer = Read();
  newer[4] = 2;
  Write(newer);
  EXPECT_NE(base::MessageOf(LoadStatus()).find("want version 1, the file has 2"),
            std::string_view::npos);
}

TEST_F(MatrixFileTest, CannotBeWrittenIsAnError) {
  EXPECT_EQ(matrices_.Save(folder_.path() + "/none/x").code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace smartgen::selector
