#include "tools/profile/training.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/base/mutex.h"
#include "common/selector/dtype.h"
#include "common/selector/random.h"
#include "common/selector/skew.h"
#include "common/transfer/profile.h"

namespace smartgen::tools::profile {
namespace {

using selector::HeadMatrices;
using transfer::kDenseLayers;

constexpr int64_t kMinTokens = 32;
constexpr int64_t kQueryShare = 16;  // the last 1/16 of a prompt
constexpr size_t kKeptApart = 8;

// `count` values spread evenly over [begin, end), ascending.
std::vector<int64_t> Spread(int64_t begin, int64_t end, int64_t count) {
  count = std::min(count, end - begin);
  std::vector<int64_t> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(begin + i * (end - begin) / count);
  return out;
}

struct HeadId {
  int layer = 0;
  int head = 0;
};

// Calls make(layer, head) for every head of the layers that select, on all threads; the matrices
// have the KV head dim as rows.
absl::StatusOr<HeadMatrices> ForEachHead(
    const model::Model& model, HeadMatrices::Purpose purpose, base::ThreadPool& pool,
    const OnTrained& on_trained,
    const std::function<absl::StatusOr<std::vector<float>>(int layer, int head)>& make) {
  const model::ModelConfig& config = model.config();
  HeadMatrices out{.purpose = purpose, .model_fingerprint = model.fingerprint()};
  out.layers.resize(config.layers.size());
  std::vector<HeadId> heads;
  for (int layer = kDenseLayers; layer < config.num_layers(); ++layer) {
    for (int head = 0; head < config.layers[layer].num_kv_heads; ++head) {
      heads.push_back({layer, head});
    }
  }
  std::vector<std::vector<float>> made(heads.size());
  base::Mutex mutex;
  absl::Status status;
  size_t done = 0;
  pool.ParallelFor(static_cast<int64_t>(heads.size()), [&](int64_t i, int) {
    const auto [layer, head] = heads[static_cast<size_t>(i)];
    auto matrix = make(layer, head);
    const base::MutexLock lock(mutex);
    if (matrix.ok()) {
      made[static_cast<size_t>(i)] = std::move(*matrix);
    } else {
      status.Update(
          base::Annotate(matrix.status(), fmt::format("layer {} KV head {}", layer, head)));
    }
    on_trained(static_cast<double>(++done) / static_cast<double>(heads.size()));
  });
  RETURN_IF_ERROR(status);
  for (size_t i = 0; i < heads.size(); ++i) {
    HeadMatrices::Layer& layer = out.layers[heads[i].layer];
    const int dim = config.layers[heads[i].layer].head_dim;
    ++layer.heads;
    layer.rows = dim;
    layer.columns = static_cast<int>(made[i].size()) / dim;
    layer.values.insert(layer.values.end(), made[i].begin(), made[i].end());
  }
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<AttentionSampler>> AttentionSampler::Create(
    const model::Model& model, const Options& options) {
  auto sampler = std::unique_ptr<AttentionSampler>(new AttentionSampler(options));
  ASSIGN_OR_RETURN(sampler->executor_, executor::CreateCpuExecutor(model, options.executor));
  const kv::KvLayout layout = sampler->executor_->Layout(options.max_tokens);
  kv::KvPool::Options pool;
  pool.bytes = kv::KvPool::PagesFor(options.max_tokens) * layout.PageBytesTotal();
  ASSIGN_OR_RETURN(sampler->pool_, kv::KvPool::Create(layout, pool));
  return sampler;
}

absl::StatusOr<AttentionSample> AttentionSampler::Sample(
    std::span<const executor::TokenId> prompt) {
  const auto total = static_cast<int64_t>(prompt.size());
  if (total < kMinTokens || total > options_.max_tokens) {
    return base::InvalidArgument("want a prompt of {} to {} tokens, got {}", kMinTokens,
                                 options_.max_tokens, total);
  }
  const std::vector<int64_t> tokens =
      Spread(total - total / kQueryShare, total, options_.query_tokens);
  AttentionSample sample;
  for (const model::LayerConfig& layer : config().layers) {
    sample.layers.emplace_back(static_cast<size_t>(layer.num_kv_heads));
  }
  kv::KvSequence sequence(pool_.get());
  RETURN_IF_ERROR(sequence.Reserve(total));
  const int64_t most = options_.executor.max_prefill_tokens;
  for (int64_t start = 0; start < total; start += most) {
    executor::PrefillChunk chunk;
    chunk.sequence = &sequence;
    chunk.start = start;
    const int64_t end = std::min(total, start + most);
    chunk.tokens = prompt.subspan(static_cast<size_t>(start), static_cast<size_t>(end - start));
    chunk.on_queries = [&](int layer, std::span<const float> queries, int64_t ld) {
      if (layer < kDenseLayers) return;
      const model::LayerConfig& l = config().layers[layer];
      const auto width = static_cast<size_t>(l.num_heads / l.num_kv_heads * l.head_dim);
      for (const int64_t token : tokens) {
        if (token < start || token >= end) continue;
        for (size_t head = 0; head < sample.layers[layer].size(); ++head) {
          const auto row =
              queries.subspan(static_cast<size_t>((token - start) * ld) + head * width, width);
          auto& taken = sample.layers[layer][head].queries;
          taken.insert(taken.end(), row.begin(), row.end());
        }
      }
    };
    RETURN_IF_ERROR(executor_->Prefill(chunk));
  }
  TakeKeys(sequence, tokens.front(), sample);
  return sample;
}

void AttentionSampler::TakeKeys(kv::KvSequence& sequence, int64_t end,
                                AttentionSample& sample) const {
  const kv::KvLayout& layout = sequence.layout();
  const std::vector<int64_t> tokens = Spread(0, end, options_.key_tokens);
  for (int layer = kDenseLayers; layer < layout.num_layers(); ++layer) {
    const int dim = layout.layers[layer].head_dim;
    for (int head = 0; head < layout.layers[layer].kv_heads; ++head) {
      std::vector<float>& keys = sample.layers[layer][head].keys;
      keys.resize(tokens.size() * static_cast<size_t>(dim));
      for (size_t i = 0; i < tokens.size(); ++i) {
        const std::byte* page = sequence.Page(layer, tokens[i] / kv::kPageTokens);
        const int slot = static_cast<int>(tokens[i] % kv::kPageTokens);
        selector::LoadRow(page + layout.KOffset(layer, head, slot), dim, layout.dtype,
                          keys.data() + i * static_cast<size_t>(dim));
      }
    }
  }
}

absl::StatusOr<HeadMatrices> MakeSkew(std::span<const AttentionSample> samples,
                                      const model::Model& model, base::ThreadPool& pool,
                                      const OnTrained& on_trained) {
  return ForEachHead(
      model, HeadMatrices::Purpose::kSkew, pool, on_trained, [&](int layer, int head) {
        std::vector<float> queries, keys;
        for (const AttentionSample& sample : samples) {
          const AttentionSample::Head& from = sample.layers[layer][head];
          queries.insert(queries.end(), from.queries.begin(), from.queries.end());
          keys.insert(keys.end(), from.keys.begin(), from.keys.end());
        }
        return selector::ComputeSkew(queries, keys, model.config().layers[layer].head_dim);
      });
}

absl::StatusOr<TrainedHash> TrainHashWeights(std::span<const AttentionSample> samples,
                                             const model::Model& model,
                                             const selector::HashTrainingOptions& options,
                                             base::ThreadPool& pool, const OnTrained& on_trained) {
  std::vector<const AttentionSample*> train, apart;
  for (size_t i = 0; i < samples.size(); ++i) {
    const bool last_of_few = samples.size() < kKeptApart && i + 1 == samples.size() && i > 0;
    (i % kKeptApart == kKeptApart - 1 || last_of_few ? apart : train).push_back(&samples[i]);
  }
  TrainedHash out;
  base::Mutex mutex;
  double random = 0, trained = 0;
  int64_t measured = 0;
  auto weights = ForEachHead(
      model, HeadMatrices::Purpose::kHash, pool, on_trained,
      [&](int layer, int head) -> absl::StatusOr<std::vector<float>> {
        const int dim = model.config().layers[layer].head_dim;
        std::vector<selector::HashTrainingText> texts;
        for (const AttentionSample* sample : train) {
          const AttentionSample::Head& from = sample->layers[layer][head];
          texts.push_back({.queries = from.queries, .keys = from.keys});
        }
        ASSIGN_OR_RETURN(auto matrix, selector::TrainHash(texts, dim, options));
        const auto plain = selector::RandomHashWeights(dim, options.bits, options.seed);
        for (const AttentionSample* sample : apart) {
          const AttentionSample::Head& from = sample->layers[layer][head];
          const int top = std::max(1, static_cast<int>(from.keys.size()) / dim / 10);
          const auto recall = [&](const std::vector<float>& w) {
            return selector::HashRecall(from.queries, from.keys, dim, w, options.bits, top);
          };
          const double before = recall(plain);
          const double after = recall(matrix);
          const base::MutexLock lock(mutex);
          random += before;
          trained += after;
          ++measured;
        }
        return matrix;
      });
  if (!weights.ok()) return weights.status();
  out.weights = std::move(*weights);
  if (measured > 0) {
    out.recall_random = random / static_cast<double>(measured);
    out.recall_trained = trained / static_cast<double>(measured);
  }
  return out;
}

}  // namespace smartgen::tools::profile
