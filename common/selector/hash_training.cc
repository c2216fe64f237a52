#include "common/selector/hash_training.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include "common/selector/random.h"
#include "common/selector/top_k.h"

namespace smartgen::selector {
namespace {

float DotRow(const float* a, const float* b, int dim) {
  float sum = 0;
  for (int c = 0; c < dim; ++c) sum += a[c] * b[c];
  return sum;
}

// out[bit] = tanh(x W).
void Relax(const float* x, const std::vector<float>& weights, int dim, int bits, float* out) {
  std::fill(out, out + bits, 0.0f);
  for (int c = 0; c < dim; ++c) {
    const float* row = weights.data() + static_cast<size_t>(c) * bits;
    for (int b = 0; b < bits; ++b) out[b] += x[c] * row[b];
  }
  for (int b = 0; b < bits; ++b) out[b] = std::tanh(out[b]);
}

// Rows scaled by one factor, so that their mean square norm is 1: signs do not change by it, and
// x W starts at unit variance, where tanh has a slope.
absl::StatusOr<std::vector<float>> Normalised(std::span<const float> rows, int dim,
                                              const char* what) {
  double sum = 0;
  for (const float x : rows) sum += static_cast<double>(x) * x;
  if (!std::isfinite(sum) || sum == 0) {
    return base::InvalidArgument("hash training: want finite {} that are not all zero", what);
  }
  const auto scale = static_cast<float>(std::sqrt(static_cast<double>(rows.size()) / dim / sum));
  std::vector<float> out(rows.begin(), rows.end());
  for (float& x : out) x *= scale;
  return out;
}

class Trainer {
 public:
  Trainer(std::vector<float> queries, std::vector<float> keys, int dim,
          const HashTrainingOptions& options)
      : options_(options),
        dim_(dim),
        bits_(options.bits),
        queries_(std::move(queries)),
        keys_(std::move(keys)),
        num_keys_(static_cast<int>(keys_.size()) / dim),
        top_(std::clamp(static_cast<int>(options.top_share * num_keys_), 1, num_keys_ - 1)),
        random_(options.seed + 1),
        weights_(RandomHashWeights(dim, options.bits, options.seed)) {}

  std::vector<float> Train() {
    const int num_queries = static_cast<int>(queries_.size()) / dim_;
    std::vector<int> order(num_queries);
    std::iota(order.begin(), order.end(), 0);
    for (int epoch = 0; epoch < options_.epochs; ++epoch) {
      const float progress = static_cast<float>(epoch) / static_cast<float>(options_.epochs);
      rate_ = options_.learning_rate * (1.0f - 0.9f * progress);
      for (int i = num_queries - 1; i > 0; --i) {
        std::swap(order[i], order[random_.Below(static_cast<uint32_t>(i + 1))]);
      }
      for (const int q : order) Step(queries_.data() + static_cast<size_t>(q) * dim_);
    }
    return std::move(weights_);
  }

 private:
  void Step(const float* query) {
    std::vector<float> scores(num_keys_);
    for (int k = 0; k < num_keys_; ++k) {
      scores[k] = DotRow(query, keys_.data() + static_cast<size_t>(k) * dim_, dim_);
    }
    std::vector<int32_t> best(top_);
    LargestK(scores, 0, best);
    std::vector<float> query_code(bits_);
    std::vector<float> query_gradient(bits_);
    Relax(query, weights_, dim_, bits_, query_code.data());
    for (int pair = 0; pair < 2 * options_.pairs; ++pair) {
      const bool positive = pair % 2 == 0;
      int k;
      if (positive) {
        k = best[random_.Below(static_cast<uint32_t>(top_))];
      } else {
        do {
          k = static_cast<int>(random_.Below(static_cast<uint32_t>(num_keys_)));
        } while (std::binary_search(best.begin(), best.end(), k));
      }
      Pair(keys_.data() + static_cast<size_t>(k) * dim_, positive, query_code, query_gradient);
    }
    for (int b = 0; b < bits_; ++b) query_gradient[b] *= 1 - query_code[b] * query_code[b];
    Descend(query, query_gradient);
  }

  void Pair(const float* key, bool positive, const std::vector<float>& query_code,
            std::vector<float>& query_gradient) {
    std::vector<float> code(bits_);
    Relax(key, weights_, dim_, bits_, code.data());
    const float similarity = DotRow(query_code.data(), code.data(), bits_) / bits_;
    const float p = 1 / (1 + std::exp(-(options_.sharpness * similarity + bias_)));
    const float error = p - (positive ? 1.0f : 0.0f);
    bias_ -= rate_ * error;
    // The mean over pairs and bits belongs to the loss; the factor 1 / bits is left to the rate.
    const float slope = error * options_.sharpness / static_cast<float>(2 * options_.pairs);
    std::vector<float> gradient(bits_);
    for (int b = 0; b < bits_; ++b) {
      gradient[b] = slope * query_code[b] * (1 - code[b] * code[b]);
      query_gradient[b] += slope * code[b];
    }
    Descend(key, gradient);
  }

  void Descend(const float* x, const std::vector<float>& gradient) {
    for (int c = 0; c < dim_; ++c) {
      const float step = rate_ * x[c];
      float* row = weights_.data() + static_cast<size_t>(c) * bits_;
      for (int b = 0; b < bits_; ++b) row[b] -= step * gradient[b];
    }
  }

  const HashTrainingOptions options_;
  const int dim_;
  const int bits_;
  const std::vector<float> queries_;
  const std::vector<float> keys_;
  const int num_keys_;
  const int top_;
  Random random_;
  std::vector<float> weights_;
  float bias_ = 0;
  float rate_ = 0;
};

// 64 signs a word.
std::vector<uint64_t> Codes(std::span<const float> rows, int dim, std::span<const float> weights,
                            int bits) {
  const size_t words = (bits + 63) / 64;
  const size_t count = rows.size() / dim;
  std::vector<uint64_t> codes(count * words);
  std::vector<float> sums(bits);
  for (size_t r = 0; r < count; ++r) {
    std::fill(sums.begin(), sums.end(), 0.0f);
    for (int c = 0; c < dim; ++c) {
      for (int b = 0; b < bits; ++b) {
        sums[b] += rows[r * dim + c] * weights[static_cast<size_t>(c) * bits + b];
      }
    }
    for (int b = 0; b < bits; ++b) {
      if (sums[b] > 0) codes[r * words + b / 64] |= uint64_t{1} << (b % 64);
    }
  }
  return codes;
}

}  // namespace

absl::StatusOr<std::vector<float>> TrainHash(std::span<const float> queries,
                                             std::span<const float> keys, int head_dim,
                                             const HashTrainingOptions& options) {
  if (head_dim < 1 || queries.empty() || queries.size() % head_dim != 0 ||
      keys.size() % head_dim != 0 || keys.size() / head_dim < 2) {
    return base::InvalidArgument(
        "hash training: want rows of {} values, a query and 2 keys at least, got {} and {} values",
        head_dim, queries.size(), keys.size());
  }
  if (options.bits < 1 || options.pairs < 1 || options.epochs < 0 || !(options.top_share > 0) ||
      !(options.top_share < 1)) {
    return base::InvalidArgument(
        "hash training: want bits, pairs >= 1, epochs >= 0, top_share in (0, 1), got {}, {}, {}, "
        "{}",
        options.bits, options.pairs, options.epochs, options.top_share);
  }
  ASSIGN_OR_RETURN(auto unit_queries, Normalised(queries, head_dim, "queries"));
  ASSIGN_OR_RETURN(auto unit_keys, Normalised(keys, head_dim, "keys"));
  return Trainer(std::move(unit_queries), std::move(unit_keys), head_dim, options).Train();
}

double HashRecall(std::span<const float> queries, std::span<const float> keys, int head_dim,
                  std::span<const float> weights, int bits, int top) {
  const size_t words = (bits + 63) / 64;
  const size_t num_keys = keys.size() / head_dim;
  const size_t num_queries = queries.size() / head_dim;
  const std::vector<uint64_t> query_codes = Codes(queries, head_dim, weights, bits);
  const std::vector<uint64_t> key_codes = Codes(keys, head_dim, weights, bits);
  std::vector<float> scores(num_keys);
  std::vector<uint16_t> distances(num_keys);
  std::vector<int32_t> best(top), found(top), both;
  double recall = 0;
  for (size_t q = 0; q < num_queries; ++q) {
    for (size_t k = 0; k < num_keys; ++k) {
      scores[k] = DotRow(queries.data() + q * head_dim, keys.data() + k * head_dim, head_dim);
      int distance = 0;
      for (size_t w = 0; w < words; ++w) {
        distance += std::popcount(query_codes[q * words + w] ^ key_codes[k * words + w]);
      }
      distances[k] = static_cast<uint16_t>(distance);
    }
    LargestK(scores, 0, best);
    SmallestK(distances, 0, found);
    both.clear();
    std::set_intersection(best.begin(), best.end(), found.begin(), found.end(),
                          std::back_inserter(both));
    recall += static_cast<double>(both.size()) / top;
  }
  return recall / static_cast<double>(num_queries);
}

}  // namespace smartgen::selector
