// Attention of single queries over given tokens, as they arrive.
//
// A job's tokens are cut into units; each unit is attended to when all of its entries are here, and
// the units' states are merged in ascending order when all are done. So the result depends on which
// tokens were given, and not on when any of them came.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/thread_pool.h"
#include "common/executor/cpu/attention_tile.h"
#include "common/executor/slot_reader.h"

namespace smartgen::executor::cpu {

// One call at a time.
class SelectedAttention {
 public:
  // Tokens [begin, end) in units of kKeySpan absolute positions: bit for bit what Attention::Run
  // gives for a query that sees exactly these. A selection in units of kKeyTile entries.
  using Job = ReadJob;

  // `scratch`: one a worker of the pool, shared with others between calls. Both must outlive it.
  SelectedAttention(base::ThreadPool* pool, std::span<TileScratch> scratch)
      : pool_(*pool), scratch_(scratch) {}

  // Forgets what was before. What the jobs point at must stay until all are done.
  void Start(std::span<const Job> jobs);
  // Attends to all units that are here and were not yet; true when every job is done.
  bool Run();

 private:
  struct Task {  // of one KV head
    Job job;
    AttentionGeometry g;
    int kv_head = 0;
    int first_unit = 0;
    int end_unit = 0;
    std::span<const int32_t> Row() const {
      return job.index.subspan(static_cast<size_t>(kv_head * job.k), static_cast<size_t>(job.k));
    }
  };
  struct Unit {
    int task = 0;
    int64_t begin = 0;  // tokens, or entries of the row
    int64_t end = 0;
    int64_t state = 0;  // offset in states_
    int64_t seen = 0;   // entries before this one are known to be here
    bool done = false;
  };

  void AddUnits(int task, int64_t step);
  bool Here(Unit& unit) const;
  void Attend(const Unit& unit, TileScratch& scratch);
  void Store(const Task& task, TileScratch& scratch);

  base::ThreadPool& pool_;
  std::span<TileScratch> scratch_;
  std::vector<Task> tasks_;
  std::vector<Unit> units_;
  std::vector<std::atomic<int>> pending_;  // units of each task
  std::vector<int> ready_;
  int64_t state_floats_ = 0;
  FloatBuffer states_;
  int64_t left_ = 0;  // units
};

}  // namespace smartgen::executor::cpu
