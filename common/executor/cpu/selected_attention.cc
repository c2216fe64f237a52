#include "common/executor/cpu/selected_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace smartgen::executor::cpu {

void SelectedAttention::Start(std::span<const Job> jobs) {
  tasks_.clear();
  units_.clear();
  state_floats_ = 0;
  for (const Job& job : jobs) {
    const AttentionGeometry g =
        AttentionGeometry::Of(job.layer, job.sequence->layout(), job.num_heads);
    for (TileScratch& s : scratch_) s.Reserve(g, g.group);
    if (job.k == 0 && job.begin >= job.end) {
      std::fill_n(job.out, static_cast<int64_t>(job.num_heads) * g.dim, 0.0f);
      if (job.lse != nullptr) {
        std::fill_n(job.lse, job.num_heads, -std::numeric_limits<float>::infinity());
      }
      continue;
    }
    for (int head = 0; head < g.kv_heads; ++head) {
      tasks_.push_back({.job = job, .g = g, .kv_head = head});
      AddUnits(static_cast<int>(tasks_.size()) - 1, job.k > 0 ? kKeyTile : kKeySpan);
    }
  }
  states_.Resize(state_floats_);
  if (pending_.size() < tasks_.size()) pending_ = std::vector<std::atomic<int>>(tasks_.size());
  for (size_t t = 0; t < tasks_.size(); ++t) {
    pending_[t].store(tasks_[t].end_unit - tasks_[t].first_unit, std::memory_order_relaxed);
  }
  left_ = static_cast<int64_t>(units_.size());
}

void SelectedAttention::AddUnits(int task, int64_t step) {
  Task& t = tasks_[task];
  const int64_t begin = t.job.k > 0 ? 0 : t.job.begin;
  const int64_t end = t.job.k > 0 ? t.job.k : t.job.end;
  t.first_unit = static_cast<int>(units_.size());
  for (int64_t at = begin / step * step; at < end; at += step) {
    const int64_t first = std::max(at, begin);
    units_.push_back({.task = task,
                      .begin = first,
                      .end = std::min(at + step, end),
                      .state = state_floats_,
                      .seen = t.job.remote ? first : end});
    state_floats_ += StateFloats(t.g.group, t.g.padded_dim);
  }
  t.end_unit = static_cast<int>(units_.size());
}

bool SelectedAttention::Here(Unit& unit) const {
  const Task& task = tasks_[unit.task];
  for (; unit.seen < unit.end; ++unit.seen) {
    const int64_t token = task.job.k > 0 ? task.Row()[static_cast<size_t>(unit.seen)] : unit.seen;
    if (!task.job.sequence->HeadLocal(task.g.layer, task.kv_head, token)) return false;
  }
  return true;
}

bool SelectedAttention::Run() {
  ready_.clear();
  for (size_t u = 0; u < units_.size(); ++u) {
    if (units_[u].done || !Here(units_[u])) continue;
    units_[u].done = true;
    ready_.push_back(static_cast<int>(u));
  }
  // Whoever finishes a task's last unit merges them all.
  pool_.ParallelFor(static_cast<int64_t>(ready_.size()), [&](int64_t i, int worker) {
    const Unit& unit = units_[ready_[i]];
    Attend(unit, scratch_[worker]);
    if (pending_[unit.task].fetch_sub(1, std::memory_order_acq_rel) == 1) {
      Store(tasks_[unit.task], scratch_[worker]);
    }
  });
  left_ -= static_cast<int64_t>(ready_.size());
  return left_ == 0;
}

void SelectedAttention::Attend(const Unit& unit, TileScratch& scratch) {
  const Task& task = tasks_[unit.task];
  const AttentionGeometry& g = task.g;
  const float* q = task.job.q + static_cast<int64_t>(task.kv_head) * g.group * g.dim;
  for (int i = 0; i < g.group * g.dim; ++i) scratch.q.data()[i] = q[i] * g.scale;
  const SoftmaxState state = StateAt(states_.data() + unit.state, g.group, g.padded_dim);
  ResetState(g.group, g.padded_dim, state);
  for (int64_t tile = unit.begin / kKeyTile * kKeyTile; tile < unit.end; tile += kKeyTile) {
    const int64_t first = std::max(tile, unit.begin);
    const int64_t end = std::min<int64_t>(tile + kKeyTile, unit.end);
    if (task.job.k > 0) {
      GatherTile(g, *task.job.sequence, task.kv_head,
                 task.Row().subspan(static_cast<size_t>(first), static_cast<size_t>(end - first)),
                 scratch);
    } else {
      LoadTile(g, *task.job.sequence, task.kv_head, first, end, scratch);
    }
    std::fill_n(scratch.begin.begin(), g.group, static_cast<int32_t>(first - tile));
    std::fill_n(scratch.end.begin(), g.group, static_cast<int32_t>(end - tile));
    AttendTile({.q = scratch.q.data(),
                .rows = g.group,
                .dim = g.dim,
                .padded_dim = g.padded_dim,
                .keys = scratch.keys.data(),
                .values = scratch.values.data(),
                .begin = scratch.begin.data(),
                .end = scratch.end.data()},
               state);
  }
}

void SelectedAttention::Store(const Task& task, TileScratch& scratch) {
  const AttentionGeometry& g = task.g;
  const SoftmaxState total = StateAt(scratch.total.data(), g.group, g.padded_dim);
  ResetState(g.group, g.padded_dim, total);
  for (int u = task.first_unit; u < task.end_unit; ++u) {
    MergeSpan(g.group, g.padded_dim, total,
              StateAt(states_.data() + units_[u].state, g.group, g.padded_dim));
  }
  const int64_t first_head = static_cast<int64_t>(task.kv_head) * g.group;
  for (int h = 0; h < g.group; ++h) {
    FinishRow(total, h, g.dim, g.padded_dim, task.job.out + (first_head + h) * g.dim);
    if (task.job.lse == nullptr) continue;
    // States count in powers of two.
    const double log2 = double{total.max[h]} + std::log2(double{total.sum[h]});
    task.job.lse[first_head + h] = static_cast<float>(log2 * 0.69314718055994531);
  }
}

}  // namespace smartgen::executor::cpu
