// HATA's offline step: hash weights that tell a query's best keys from the rest.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/status.h"

namespace smartgen::selector {

// Plain stochastic gradient descent on a logistic loss. Codes are relaxed to h(x) = tanh(x W), the
// similarity of two codes is their mean product, and a pair (query, key) has the label 1 if the key
// is among the query's top keys by q * k, else 0:
//   p = 1 / (1 + e^-(sharpness * similarity + bias)),  loss = -log(p or 1 - p).
// It starts at the random weights of the same seed, so that no training is plain hashing.
struct HashTrainingOptions {
  int bits = 128;
  uint64_t seed = 0x5147;
  double top_share = 0.1;  // of the keys are a query's top keys
  int pairs = 16;          // of each label, per query and epoch
  int epochs = 15;
  float learning_rate = 0.2f;  // falls linearly to a tenth
  float sharpness = 8.0f;
};

// Queries of one text (all query heads of a KV head's group) and keys of the same text: rows of
// head_dim values. A query is compared with the keys of its own text only. At least a query and 2
// keys.
struct HashTrainingText {
  std::span<const float> queries;
  std::span<const float> keys;
};

// [head_dim][bits] for one KV head. Deterministic for a given machine. InvalidArgument for no text,
// sizes that do not fit or values that are not finite.
absl::StatusOr<std::vector<float>> TrainHash(std::span<const HashTrainingText> texts, int head_dim,
                                             const HashTrainingOptions& options = {});
// The same of one text.
absl::StatusOr<std::vector<float>> TrainHash(std::span<const float> queries,
                                             std::span<const float> keys, int head_dim,
                                             const HashTrainingOptions& options = {});

// The mean share, over queries, of the `top` best keys by q * k that are also among the `top` of
// smallest Hamming distance. REQUIRES: sizes that fit, top at most the number of keys.
double HashRecall(std::span<const float> queries, std::span<const float> keys, int head_dim,
                  std::span<const float> weights, int bits, int top);

}  // namespace smartgen::selector
