#include "common/selector/hash_training.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/common/selector/selector_test_util.h"

namespace smartgen::selector {
namespace {

constexpr int kDim = 32;

// Keys as attention heads have them: a large common part, and channels of unlike scale, while
// queries look at the small channels as well.
struct Data {
  std::vector<float> queries, keys;
};

Data Anisotropic(Random& random, int num_queries, int num_keys) {
  Data data{Normals(random, num_queries * kDim), Normals(random, num_keys * kDim)};
  for (size_t i = 0; i < data.keys.size(); ++i) {
    const auto c = static_cast<int>(i % kDim);
    data.keys[i] =
        data.keys[i] * std::pow(0.9f, static_cast<float>(c)) + (c % 5 == 0 ? 3.0f : 0.0f);
  }
  for (size_t i = 0; i < data.queries.size(); ++i) {
    const auto c = static_cast<int>(i % kDim);
    data.queries[i] += c % 5 == 0 ? 1.5f : 0.0f;
  }
  return data;
}

TEST(HashTrainingTest, RecallOfNewQueriesAndKeysImprovesOverRandomHashing) {
  Random random(1);
  const Data train = Anisotropic(random, 256, 512);
  const Data test = Anisotropic(random, 100, 1000);
  const HashTrainingOptions options{.bits = 64};
  const auto trained = TrainHash(train.queries, train.keys, kDim, options);
  ASSERT_TRUE(trained.ok()) << trained.status();
  const auto plain = RandomHashWeights(kDim, 64, options.seed);
  const double before = HashRecall(test.queries, test.keys, kDim, plain, 64, 100);
  const double after = HashRecall(test.queries, test.keys, kDim, *trained, 64, 100);
  RecordProperty("recall_random", std::to_string(before));
  RecordProperty("recall_trained", std::to_string(after));
  EXPECT_GT(before, 0.1);  // better than chance
  EXPECT_GT(after, before + 0.1) << before << " -> " << after;
}

TEST(HashTrainingTest, NoEpochsIsPlainHashing) {
  Random random(2);
  const Data data = Anisotropic(random, 4, 10);
  const auto weights = TrainHash(data.queries, data.keys, kDim, {.bits = 64, .epochs = 0});
  ASSERT_TRUE(weights.ok());
  EXPECT_EQ(*weights, RandomHashWeights(kDim, 64, HashTrainingOptions{}.seed));
}

TEST(HashTrainingTest, AQueryLearnsFromTheKeysOfItsOwnTextOnly) {
  // Every key of text b is the same one, and better for text a's queries than nearly all of their
  // own: were the texts one, their top keys would be that one key, and nothing would be learnt.
  Random random(3);
  const Data a = Anisotropic(random, 256, 512);
  const Data test = Anisotropic(random, 100, 1000);
  Data b{Normals(random, kDim), std::vector<float>(512 * kDim)};
  for (size_t i = 0; i < b.keys.size(); i += 1) b.keys[i] = i % kDim % 5 == 0 ? 4.0f : 0.0f;
  const std::vector<HashTrainingText> texts = {{.queries = a.queries, .keys = a.keys},
                                               {.queries = b.queries, .keys = b.keys}};
  const auto apart = TrainHash(texts, kDim, {.bits = 64});
  ASSERT_TRUE(apart.ok()) << apart.status();
  Data both = a;
  both.queries.insert(both.queries.end(), b.queries.begin(), b.queries.end());
  both.keys.insert(both.keys.end(), b.keys.begin(), b.keys.end());
  const auto together = TrainHash(both.queries, both.keys, kDim, {.bits = 64});
  ASSERT_TRUE(together.ok()) << together.status();
  const auto recall = [&](const std::vector<float>& weights) {
    return HashRecall(test.queries, test.keys, kDim, weights, 64, 100);
  };
  EXPECT_GT(recall(*apart), recall(*together) + 0.05);
}

TEST(HashTrainingTest, OneTextIsTheSameEitherWay) {
  Random random(4);
  const Data data = Anisotropic(random, 8, 20);
  const HashTrainingText text{.queries = data.queries, .keys = data.keys};
  EXPECT_EQ(*TrainHash(std::span(&text, 1), kDim, {.bits = 64, .epochs = 1}),
            *TrainHash(data.queries, data.keys, kDim, {.bits = 64, .epochs = 1}));
}

TEST(HashTrainingTest, RefusesWhatCannotBeTrainedOn) {
  const std::vector<float> rows(kDim * 3, 1.0f);
  EXPECT_FALSE(TrainHash(rows, rows, kDim + 1).ok());
  EXPECT_FALSE(TrainHash({}, rows, kDim).ok());
  EXPECT_FALSE(TrainHash(std::span<const HashTrainingText>(), kDim).ok());
  EXPECT_FALSE(TrainHash(rows, std::vector<float>(kDim, 1.0f), kDim).ok());
  EXPECT_FALSE(TrainHash(rows, std::vector<float>(kDim * 3), kDim).ok());
  EXPECT_FALSE(TrainHash(rows, std::vector<float>(kDim * 3, std::nanf("")), kDim).ok());
  EXPECT_FALSE(TrainHash(rows, rows, kDim, {.top_share = 1.0}).ok());
}

TEST(RandomTest, TheFirstNumbersAreThoseOfEveryPlatform) {
  // SplitMix64's published first output for seed 0, and moments of the normal distribution.
  EXPECT_EQ(Random(0).Next(), 0xe220a8397b1dcdafu);
  Random random(5);
  double sum = 0, squares = 0;
  constexpr int kCount = 100000;
  for (int i = 0; i < kCount; ++i) {
    const double x = random.Normal();
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.02);
  EXPECT_NEAR(squares / kCount, 1, 0.02);
}

}  // namespace
}  // namespace smartgen::selector
