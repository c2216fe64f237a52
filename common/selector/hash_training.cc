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

// What brings rows to a mean square norm of 1: signs do not change by it, and x W starts at unit
// variance, where tanh has a slope.
absl::StatusOr<float> UnitScale(std::span<const HashTrainingText> texts,
                                std::span<const float> HashTrainingText::*rows, int dim,
                                const char* what) {
  double sum = 0;
  size_t count = 0;
  for (const HashTrainingText& text : texts) {
    for (const float x : text.*rows) sum += static_cast<double>(x) * x;
    count += (text.*rows).size();
  }
  if (!std::isfinite(sum) || sum == 0) {
    return base::InvalidArgument("hash training: want finite {} that are not all zero", what);
  }
  return static_cast<float>(std::sqrt(static_cast<double>(count) / dim / sum));
}

class Trainer {
 public:
  Trainer(std::span<const HashTrainingText> texts, float query_scale, float key_scale, int dim,
          const HashTrainingOptions& options)
      : options_(options),
        dim_(dim),
        bits_(options.bits),
        random_(options.seed + 1),
        weights_(RandomHashWeights(dim, options.bits, options.seed)) {
    for (const HashTrainingText& text : texts) {
      Keys keys{.begin = static_cast<int>(keys_.size()) / dim,
                .count = static_cast<int>(text.keys.size()) / dim};
      keys.top = std::clamp(static_cast<int>(options.top_share * keys.count), 1, keys.count - 1);
      keys_of_.resize(keys_of_.size() + text.queries.size() / dim, keys);
      for (const float x : text.queries) queries_.push_back(x * query_scale);
      for (const float x : text.keys) keys_.push_back(x * key_scale);
    }
  }

  std::vector<float> Train() {
    const int num_queries = static_cast<int>(keys_of_.size());
    std::vector<int> order(num_queries);
    std::iota(order.begin(), order.end(), 0);
    for (int epoch = 0; epoch < options_.epochs; ++epoch) {
      const float progress = static_cast<float>(epoch) / static_cast<float>(options_.epochs);
      rate_ = options_.learning_rate * (1.0f - 0.9f * progress);
      for (int i = num_queries - 1; i > 0; --i) {
        std::swap(order[i], order[random_.Below(static_cast<uint32_t>(i + 1))]);
      }
      for (const int q : order) Step(queries_.data() + static_cast<size_t>(q) * dim_, keys_of_[q]);
    }
    return std::move(weights_);
  }

 private:
  // The keys of one text, in rows of keys_; so many are a query's top keys.
  struct Keys {
    int begin = 0;
    int count = 0;
    int top = 0;
  };

  void Step(const float* query, const Keys& keys) {
    const float* first = keys_.data() + static_cast<size_t>(keys.begin) * dim_;
    std::vector<float> scores(keys.count);
    for (int k = 0; k < keys.count; ++k) {
      scores[k] = DotRow(query, first + static_cast<size_t>(k) * dim_, dim_);
    }
    std::vector<int32_t> best(keys.top);
    LargestK(scores, 0, best);
    std::vector<float> query_code(bits_);
    std::vector<float> query_gradient(bits_);
    Relax(query, weights_, dim_, bits_, query_code.data());
    for (int pair = 0; pair < 2 * options_.pairs; ++pair) {
      const bool positive = pair % 2 == 0;
      int k;
      if (positive) {
        k = best[random_.Below(static_cast<uint32_t>(keys.top))];
      } else {
        do {
          k = static_cast<int>(random_.Below(static_cast<uint32_t>(keys.count)));
        } while (std::binary_search(best.begin(), best.end(), k));
      }
      Pair(first + static_cast<size_t>(k) * dim_, positive, query_code, query_gradient);
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
  std::vector<float> queries_;
  std::vector<Keys> keys_of_;  // by query
  std::vector<float> keys_;
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

absl::StatusOr<std::vector<float>> TrainHash(std::span<const HashTrainingText> texts, int head_dim,
                                             const HashTrainingOptions& options) {
  if (texts.empty()) return base::InvalidArgument("hash training: want at least one text");
  for (const HashTrainingText& text : texts) {
    if (head_dim < 1 || text.queries.empty() || text.queries.size() % head_dim != 0 ||
        text.keys.size() % head_dim != 0 || text.keys.size() / head_dim < 2) {
      return base::InvalidArgument(
          "hash training: want rows of {} values, a query and 2 keys at least, got {} and {} "
          "values",
          head_dim, text.queries.size(), text.keys.size());
    }
  }
  if (options.bits < 1 || options.pairs < 1 || options.epochs < 0 || !(options.top_share > 0) ||
      !(options.top_share < 1)) {
    return base::InvalidArgument(
        "hash training: want bits, pairs >= 1, epochs >= 0, top_share in (0, 1), got {}, {}, {}, "
        "{}",
        options.bits, options.pairs, options.epochs, options.top_share);
  }
  ASSIGN_OR_RETURN(const float query_scale,
                   UnitScale(texts, &HashTrainingText::queries, head_dim, "queries"));
  ASSIGN_OR_RETURN(const float key_scale,
                   UnitScale(texts, &HashTrainingText::keys, head_dim, "keys"));
  return Trainer(texts, query_scale, key_scale, head_dim, options).Train();
}

absl::StatusOr<std::vector<float>> TrainHash(std::span<const float> queries,
                                             std::span<const float> keys, int head_dim,
                                             const HashTrainingOptions& options) {
  const HashTrainingText text{.queries = queries, .keys = keys};
  return TrainHash(std::span(&text, 1), head_dim, options);
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
