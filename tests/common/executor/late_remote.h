// A RemoteKv whose other side is a sequence with everything, and which takes its time.
#pragma once

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/executor/executor.h"
#include "common/kv/remote_kv.h"
#include "common/kv/sequence.h"

namespace smartgen::executor {

class LateRemote final : public kv::RemoteKv {
 public:
  using Entry = std::pair<int, int64_t>;  // KV head, token

  // Copies from `source` to `target`. Each question finds a few more entries here, in random order.
  LateRemote(Executor* executor, kv::KvSequence* source, kv::KvSequence* target, uint32_t seed)
      : executor_(*executor), source_(*source), target_(*target), random_(seed) {}

  absl::Status Fetch(int layer, std::span<const kv::HeadRange> ranges) override {
    calls.push_back("fetch " + std::to_string(layer));
    if (!fail.ok()) return fail;
    for (const kv::HeadRange& range : ranges) {
      for (int64_t token = range.begin; token < range.end; ++token) {
        const Entry entry{range.head, token};
        if (target_.HeadLocal(layer, range.head, token)) ++needless;
        if (!asked[layer].insert(entry).second) continue;
        on_the_way_[layer].push_back(entry);
      }
    }
    std::shuffle(on_the_way_[layer].begin(), on_the_way_[layer].end(), random_);
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Fetched(int layer) override {
    calls.push_back("fetched? " + std::to_string(layer));
    if (!fail_later.ok()) return fail_later;
    std::vector<Entry>& way = on_the_way_[layer];
    for (size_t some = 1 + way.size() / 2; some > 0 && !way.empty(); --some) {
      Deliver(layer, way.back());
      way.pop_back();
    }
    return way.empty();
  }

  absl::Status Attend(int layer, int64_t begin, int64_t end,
                      std::span<const float> queries) override {
    calls.push_back("attend " + std::to_string(layer) + " " + std::to_string(begin) + " " +
                    std::to_string(end));
    if (!fail.ok()) return fail;
    question_ = {.sequence = &source_, .layer = layer, .begin = begin, .end = end};
    queries_.assign(queries.begin(), queries.end());
    waits_ = 2;
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Attended(int layer, std::span<float> out, std::span<float> lse) override {
    if (!fail_later.ok()) return fail_later;
    if (layer != question_.layer) return base::Internal("asked of layer {}", layer);
    if (waits_-- > 0) return false;
    AttendJob job = question_;
    job.queries = queries_;
    job.out = out;
    job.lse = lse;
    RETURN_IF_ERROR(executor_.Attend({&job, 1}));
    if (spoil) lse[0] = std::nanf("");
    return true;
  }

  std::vector<std::string> calls;
  std::map<int, std::set<Entry>> asked;  // by layer
  int needless = 0;                      // entries asked for that were here
  absl::Status fail, fail_later;
  bool spoil = false;

 private:
  void Deliver(int layer, const Entry& entry) {
    const auto [head, token] = entry;
    const auto from = source_.Segments(layer, head, token, token + 1);
    const auto to = target_.Segments(layer, head, token, token + 1);
    for (size_t i = 0; i < from.size(); ++i) {
      std::copy(from[i].begin(), from[i].end(), to[i].data());
    }
    target_.MarkHeadLocal(layer, head, token, token + 1);
  }

  Executor& executor_;
  kv::KvSequence& source_;
  kv::KvSequence& target_;
  std::mt19937 random_;
  std::map<int, std::vector<Entry>> on_the_way_;
  AttendJob question_;
  std::vector<float> queries_;
  int waits_ = 0;
};

// Copies entries of tokens [0, end) for which local(layer, head, token) and marks them; the others
// are remote and hold bytes that spoil whatever reads them.
template <class Local>
void CopyPart(kv::KvSequence& source, kv::KvSequence& target, int64_t end, Local local) {
  const kv::KvLayout& layout = source.layout();
  for (int layer = 0; layer < layout.num_layers(); ++layer) {
    target.MarkRemote(layer, 0, end);
    for (int64_t token = 0; token < end; ++token) {
      for (int head = 0; head < layout.layers[layer].kv_heads; ++head) {
        const auto from = source.Segments(layer, head, token, token + 1);
        const auto to = target.Segments(layer, head, token, token + 1);
        const bool here = local(layer, head, token);
        for (size_t i = 0; i < from.size(); ++i) {
          if (here) {
            std::copy(from[i].begin(), from[i].end(), to[i].data());
          } else {
            std::fill(to[i].begin(), to[i].end(), std::byte{0xff});  // NaN in every type
          }
        }
        if (here) target.MarkHeadLocal(layer, head, token, token + 1);
      }
    }
  }
}

}  // namespace smartgen::executor
