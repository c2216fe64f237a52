#include "common/executor/cpu/attention.h"

#include <algorithm>

namespace smartgen::executor::cpu {
namespace {

constexpr int kQueryTile = 64;  // positions a task of RunWhole
constexpr int kSplitRows = 16;  // positions up to which a job is split by spans as well

}  // namespace

// Queries [begin, end) of a job against one KV head.
struct Attention::Task {
  const Job* job;
  int kv_head;
  int64_t begin;
  int64_t end;

  int Positions() const { return static_cast<int>(end - begin); }
  int64_t FirstPosition() const { return job->position + begin; }
  int64_t LastPosition() const { return job->position + end - 1; }
  // First key that any of the queries sees.
  int64_t FirstKey(int window) const {
    return window > 0 ? std::max<int64_t>(0, FirstPosition() - window + 1) : 0;
  }
  int64_t FirstSpan(int window) const { return FirstKey(window) / kKeySpan; }
  int64_t EndSpan() const { return LastPosition() / kKeySpan + 1; }
};

Attention::Attention(base::ThreadPool* pool) : pool_(pool), scratch_(pool->size()) {}

void Attention::Run(int layer, int num_heads, std::span<const Job> jobs) {
  const Geometry g = AttentionGeometry::Of(layer, jobs.front().sequence->layout(), num_heads);
  for (Scratch& s : scratch_) s.Reserve(g, kQueryTile * g.group);
  const bool few =
      std::all_of(jobs.begin(), jobs.end(), [](const Job& job) { return job.rows <= kSplitRows; });
  if (few) {
    RunSplit(g, jobs);
  } else {
    RunWhole(g, jobs);
  }
}

// A task takes its queries through all their spans.
void Attention::RunWhole(const Geometry& g, std::span<const Job> jobs) {
  std::vector<Task> tasks;
  for (const Job& job : jobs) {
    for (int64_t begin = 0; begin < job.rows; begin += kQueryTile) {
      for (int head = 0; head < g.kv_heads; ++head) {
        tasks.push_back({&job, head, begin, std::min<int64_t>(job.rows, begin + kQueryTile)});
      }
    }
  }
  // Longest first: later queries see more keys.
  std::stable_sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) {
    return a.LastPosition() > b.LastPosition();
  });
  pool_->ParallelFor(static_cast<int64_t>(tasks.size()), [&](int64_t i, int worker) {
    const Task& task = tasks[i];
    Scratch& s = scratch_[worker];
    const int rows = task.Positions() * g.group;
    const SoftmaxState total = StateAt(s.total.data(), rows, g.padded_dim);
    const SoftmaxState span = StateAt(s.span.data(), rows, g.padded_dim);
    ResetState(rows, g.padded_dim, total);
    ResetState(rows, g.padded_dim, span);
    LoadQueries(g, task, s);
    for (int64_t at = task.FirstSpan(g.window); at < task.EndSpan(); ++at) {
      SpanOf(g, task, at, span, s);
      MergeSpan(rows, g.padded_dim, total, span);
    }
    StoreRows(g, task, total);
  });
}

// A unit of work is one span of one task; whoever finishes a task's last span merges them all.
void Attention::RunSplit(const Geometry& g, std::span<const Job> jobs) {
  struct Unit {
    int task;
    int64_t span;
    int64_t state;  // offset of its state in partial_
  };
  std::vector<Task> tasks;
  std::vector<Unit> units;
  std::vector<int> first_unit;
  int64_t floats = 0;
  for (const Job& job : jobs) {
    for (int head = 0; head < g.kv_heads; ++head) {
      const Task task{&job, head, 0, job.rows};
      const int index = static_cast<int>(tasks.size());
      tasks.push_back(task);
      first_unit.push_back(static_cast<int>(units.size()));
      for (int64_t at = task.FirstSpan(g.window); at < task.EndSpan(); ++at) {
        units.push_back({index, at, floats});
        floats += StateFloats(task.Positions() * g.group, g.padded_dim);
      }
    }
  }
  first_unit.push_back(static_cast<int>(units.size()));
  partial_.Resize(floats);
  if (pending_.size() < tasks.size()) pending_ = std::vector<std::atomic<int>>(tasks.size());
  for (size_t t = 0; t < tasks.size(); ++t) {
    pending_[t].store(first_unit[t + 1] - first_unit[t], std::memory_order_relaxed);
  }
  pool_->ParallelFor(static_cast<int64_t>(units.size()), [&](int64_t i, int worker) {
    const Unit& unit = units[i];
    const Task& task = tasks[unit.task];
    Scratch& s = scratch_[worker];
    const int rows = task.Positions() * g.group;
    const SoftmaxState state = StateAt(partial_.data() + unit.state, rows, g.padded_dim);
    ResetState(rows, g.padded_dim, state);
    LoadQueries(g, task, s);
    SpanOf(g, task, unit.span, state, s);
    if (pending_[unit.task].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    const SoftmaxState total = StateAt(s.total.data(), rows, g.padded_dim);
    ResetState(rows, g.padded_dim, total);
    for (int u = first_unit[unit.task]; u < first_unit[unit.task + 1]; ++u) {
      MergeSpan(rows, g.padded_dim, total,
                StateAt(partial_.data() + units[u].state, rows, g.padded_dim));
    }
    StoreRows(g, task, total);
  });
}

void Attention::LoadQueries(const Geometry& g, const Task& task, Scratch& scratch) {
  float* to = scratch.q.data();
  for (int64_t row = task.begin; row < task.end; ++row) {
    const float* from =
        task.job->q + row * task.job->ldq + static_cast<int64_t>(task.kv_head) * g.group * g.dim;
    for (int i = 0; i < g.group * g.dim; ++i) to[i] = from[i] * g.scale;
    to += g.group * g.dim;
  }
}

void Attention::SpanOf(const Geometry& g, const Task& task, int64_t span, const SoftmaxState& state,
                       Scratch& scratch) {
  const int64_t first_key = std::max(span * kKeySpan, task.FirstKey(g.window));
  const int64_t end_key = std::min((span + 1) * kKeySpan, task.LastPosition() + 1);
  const int positions = task.Positions();
  for (int64_t tile = first_key / kKeyTile * kKeyTile; tile < end_key; tile += kKeyTile) {
    LoadTile(g, *task.job->sequence, task.kv_head, std::max(tile, first_key),
             std::min(tile + kKeyTile, end_key), scratch);
    for (int p = 0; p < positions; ++p) {
      const int64_t position = task.FirstPosition() + p;
      const int64_t from = g.window > 0 ? std::max<int64_t>(0, position - g.window + 1 - tile) : 0;
      const int64_t to = std::clamp<int64_t>(position + 1 - tile, 0, kKeyTile);
      for (int h = 0; h < g.group; ++h) {
        scratch.begin[p * g.group + h] = static_cast<int32_t>(std::min<int64_t>(from, kKeyTile));
        scratch.end[p * g.group + h] = static_cast<int32_t>(to);
      }
    }
    AttendTile({.q = scratch.q.data(),
                .rows = positions * g.group,
                .dim = g.dim,
                .padded_dim = g.padded_dim,
                .keys = scratch.keys.data(),
                .values = scratch.values.data(),
                .begin = scratch.begin.data(),
                .end = scratch.end.data()},
               state);
  }
}

void Attention::StoreRows(const Geometry& g, const Task& task, const SoftmaxState& state) {
  int row = 0;
  for (int64_t position = task.begin; position < task.end; ++position) {
    float* out = task.job->out + position * task.job->ldo +
                 static_cast<int64_t>(task.kv_head) * g.group * g.dim;
    for (int h = 0; h < g.group; ++h, ++row) {
      FinishRow(state, row, g.dim, g.padded_dim, out + h * g.dim);
    }
  }
}

}  // namespace smartgen::executor::cpu
