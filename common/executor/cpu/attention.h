// Attention of query rows over a sequence's pages: scheduling of the tiles in kernels.h over the
// pool.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/thread_pool.h"
#include "common/executor/cpu/attention_tile.h"
#include "common/executor/cpu/kernels.h"
#include "common/executor/cpu/memory.h"
#include "common/kv/sequence.h"

namespace smartgen::executor::cpu {

// One call at a time.
class Attention {
 public:
  // Queries of consecutive positions of one sequence.
  struct Job {
    kv::KvSequence* sequence = nullptr;
    int64_t position = 0;      // of the first query
    int64_t rows = 0;          // queries
    const float* q = nullptr;  // rows x heads x dim, leading dimension ldq
    int64_t ldq = 0;
    float* out = nullptr;  // rows x heads x dim
    int64_t ldo = 0;
  };

  explicit Attention(base::ThreadPool* pool);
  // Each query attends to the layer's keys up to its own position, which must all be there. The
  // result of a query depends on its position, its q and the keys only, bit for bit.
  void Run(int layer, int num_heads, std::span<const Job> jobs);
  // One a worker; for others between two calls of Run.
  std::span<TileScratch> scratch() { return scratch_; }

 private:
  using Geometry = AttentionGeometry;
  using Scratch = TileScratch;
  struct Task;

  void RunWhole(const Geometry& g, std::span<const Job> jobs);
  void RunSplit(const Geometry& g, std::span<const Job> jobs);
  void SpanOf(const Geometry& g, const Task& task, int64_t span, const SoftmaxState& state,
              Scratch& scratch);
  void LoadQueries(const Geometry& g, const Task& task, Scratch& scratch);
  void StoreRows(const Geometry& g, const Task& task, const SoftmaxState& state);

  base::ThreadPool* pool_;
  std::vector<Scratch> scratch_;  // one a worker
  FloatBuffer partial_;           // RunSplit: states of all (task, span)
  std::vector<std::atomic<int>> pending_;
};

}  // namespace smartgen::executor::cpu
