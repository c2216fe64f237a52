// A selector's parameters made from what a model computes on texts: InfiniGen's skew and HATA's
// hash weights.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/executor/executor.h"
#include "common/kv/pool.h"
#include "common/model/model.h"
#include "common/selector/hash_training.h"
#include "common/selector/matrix_file.h"

namespace smartgen::tools::profile {

// Queries and keys of one prompt, by layer and KV head; rows of head_dim values. Layers that are
// always dense have none.
struct AttentionSample {
  struct Head {
    std::vector<float> queries;  // all query heads of the group, after RoPE
    std::vector<float> keys;     // as stored
  };
  std::vector<std::vector<Head>> layers;
};

// One thread.
class AttentionSampler {
 public:
  struct Options {
    executor::ExecutorOptions executor;
    int64_t max_tokens = 0;
    // Queries come from the last sixteenth of a prompt, where they see most of it, as decode steps
    // do; keys from all before, evenly. Of shorter prompts what there is.
    int64_t query_tokens = 16;
    int64_t key_tokens = 512;
  };
  static absl::StatusOr<std::unique_ptr<AttentionSampler>> Create(const model::Model& model,
                                                                  const Options& options);
  // InvalidArgument for fewer than 32 tokens or more than max_tokens.
  absl::StatusOr<AttentionSample> Sample(std::span<const executor::TokenId> prompt);

  const model::ModelConfig& config() const { return executor_->config(); }

 private:
  explicit AttentionSampler(const Options& options) : options_(options) {}
  void TakeKeys(kv::KvSequence& sequence, int64_t end, AttentionSample& sample) const;

  const Options options_;
  std::unique_ptr<executor::Executor> executor_;
  std::unique_ptr<kv::KvPool> pool_;
};

// Called with the share of the work that is done, by one thread at a time.
using OnTrained = std::function<void(double share)>;

absl::StatusOr<selector::HeadMatrices> MakeSkew(std::span<const AttentionSample> samples,
                                                const model::Model& model, base::ThreadPool& pool,
                                                const OnTrained& on_trained);

struct TrainedHash {
  selector::HeadMatrices weights;
  // Of samples that were kept apart: the mean share of a query's top tenth of the keys that is also
  // among the tenth of smallest distance, with random weights and with these. 0 where none was.
  double recall_random = 0;
  double recall_trained = 0;
};
// Every eighth sample is kept apart (of fewer: the last; of one: none).
absl::StatusOr<TrainedHash> TrainHashWeights(std::span<const AttentionSample> samples,
                                             const model::Model& model,
                                             const selector::HashTrainingOptions& options,
                                             base::ThreadPool& pool, const OnTrained& on_trained);

}  // namespace smartgen::tools::profile
