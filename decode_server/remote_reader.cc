#include "decode_server/remote_reader.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace smartgen::decode_server {

RemoteReader::RemoteReader(Options options, std::shared_ptr<PrefillAttempt> attempt,
                           std::shared_ptr<kv::KvSequence> sequence, const base::Clock* clock)
    : options_(std::move(options)),
      attempt_(std::move(attempt)),
      sequence_(std::move(sequence)),
      clock_(clock),
      asked_bytes_(options_.asked_bytes != nullptr ? options_.asked_bytes
                                                   : std::make_shared<int64_t>(0)) {}

RemoteReader::~RemoteReader() { Forget(); }

void RemoteReader::BeginStep(int64_t position) {
  position_ = position;
  Forget();
  shipped_.clear();
}

void RemoteReader::Forget() {
  for (auto& [layer, wait] : waits_) Count(wait, 0);
  waits_.clear();
}

bool RemoteReader::Here(int layer, const kv::HeadRange& range) const {
  for (int64_t token = range.begin; token < range.end; ++token) {
    if (!sequence_->HeadLocal(layer, range.head, token)) return false;
  }
  return true;
}

absl::Status RemoteReader::Fetch(int layer, std::span<const kv::HeadRange> ranges) {
  Wait& wait = waits_[layer];
  for (size_t i = 0; i < ranges.size();) {
    const int head = ranges[i].head;
    // What was asked for ahead of need already. Both ascend.
    std::vector<kv::HeadRange>& known = wait.known[head];
    const auto before = static_cast<std::ptrdiff_t>(known.size());
    auto it = known.begin();
    std::vector<kv::HeadRange> fresh;
    for (; i < ranges.size() && ranges[i].head == head; ++i) {
      while (it != known.end() && it->end < ranges[i].end) ++it;
      if (it == known.end() || it->begin > ranges[i].begin) fresh.push_back(ranges[i]);
    }
    wait.ranges.insert(wait.ranges.end(), fresh.begin(), fresh.end());
    known.insert(known.end(), fresh.begin(), fresh.end());
    std::inplace_merge(known.begin(), known.begin() + before, known.end(),
                       [](const auto& a, const auto& b) { return a.begin < b.begin; });
  }
  AskNext(layer, wait);
  return absl::OkStatus();
}

void RemoteReader::Ask(int layer, std::span<const kv::HeadRange> ranges, bool again) {
  for (size_t begin = 0; begin < ranges.size(); begin += kRangesPerMessage) {
    const size_t count = std::min(kRangesPerMessage, ranges.size() - begin);
    attempt_->FetchHeads(layer, ranges.subspan(begin, count), again);
  }
}

int64_t RemoteReader::Bytes(int layer, std::span<const kv::HeadRange> ranges) const {
  const kv::KvLayout& layout = sequence_->layout();
  const int64_t head_bytes =
      layout.TokenBytes(layer) / layout.layers[static_cast<size_t>(layer)].kv_heads;
  int64_t bytes = 0;
  for (const kv::HeadRange& range : ranges) bytes += (range.end - range.begin) * head_bytes;
  return bytes;
}

void RemoteReader::Count(Wait& wait, int64_t bytes) {
  *asked_bytes_ += bytes - std::exchange(wait.asked_bytes, bytes);
}

void RemoteReader::AskNext(int layer, Wait& wait) {
  if (wait.asked == wait.ranges.size()) return;
  size_t until = wait.ranges.size();
  if (!options_.parallel) {
    if (wait.asked > 0) return;  // the head before has not come yet
    const int head = wait.ranges[wait.asked].head;
    until = wait.asked;
    while (until < wait.ranges.size() && wait.ranges[until].head == head) ++until;
  }
  const auto next = std::span<const kv::HeadRange>(wait.ranges).first(until).subspan(wait.asked);
  Ask(layer, next, false);
  Count(wait, wait.asked_bytes + Bytes(layer, next));
  if (options_.trace != nullptr) {
    for (size_t i = wait.asked; i < until; ++i) {
      ++wait.asked_ranges;
      wait.asked_entries += wait.ranges[i].end - wait.ranges[i].begin;
    }
  }
  wait.asked = until;
  wait.asked_at = clock_->Now();
  if (wait.first_asked_at == base::TimePoint{}) wait.first_asked_at = wait.asked_at;
}

absl::StatusOr<bool> RemoteReader::Fetched(int layer) {
  const auto it = waits_.find(layer);
  if (it == waits_.end()) return true;
  Wait& wait = it->second;
  // In the order asked for, which is about the order in which they come.
  while (wait.asked > 0 && Here(layer, wait.ranges[wait.asked - 1])) {
    Count(wait, wait.asked_bytes - Bytes(layer, {&wait.ranges[wait.asked - 1], 1}));
    wait.ranges.erase(wait.ranges.begin() + static_cast<int64_t>(--wait.asked));
  }
  if (wait.asked == 0 && !wait.ranges.empty()) AskNext(layer, wait);
  if (wait.ranges.empty()) {
    if (options_.trace != nullptr && wait.asked_ranges > 0) {
      options_.trace->Add(trace::Kind::kFetch, wait.first_asked_at,
                          {layer, wait.asked_ranges, wait.asked_entries, wait.retries});
    }
    waits_.erase(it);
    return true;
  }
  const PrefillAttempt::Progress progress = attempt_->progress();
  if (progress.bytes != wait.bytes) {
    wait.bytes = progress.bytes;
    wait.asked_at = clock_->Now();
  }
  ASSIGN_OR_RETURN(const bool again, AskAgain(layer, wait.asked_at,
                                              Way(progress.link.bytes_per_second), wait.retries));
  if (again) {
    wait.asked_at = clock_->Now();
    std::vector<kv::HeadRange> missing;
    for (size_t i = 0; i < wait.asked; ++i) {
      if (!Here(layer, wait.ranges[i])) missing.push_back(wait.ranges[i]);
    }
    Ask(layer, missing, true);
  }
  return false;
}

base::Duration RemoteReader::Way(double bytes_per_second) const {
  if (bytes_per_second <= 0) return base::Duration(0);
  return base::FromSeconds(static_cast<double>(*asked_bytes_) / bytes_per_second);
}

absl::StatusOr<bool> RemoteReader::AskAgain(int layer, base::TimePoint asked_at, base::Duration way,
                                            int& retries) {
  if (clock_->Now() - asked_at <= options_.stall + way) return false;
  if (retries >= options_.max_retries) {
    failure_ = base::DeadlineExceeded(
        "layer {}: KV of the prefill side did not come within {:g} s though asked for {} times",
        layer, base::ToSeconds(options_.stall + way), retries + 1);
    return failure_;
  }
  ++retries;
  ++retries_;
  return true;
}

absl::Status RemoteReader::Attend(int layer, int64_t begin, int64_t end,
                                  std::span<const float> queries) {
  const base::TimePoint now = clock_->Now();
  shipped_[layer] = {.begin = begin,
                     .end = end,
                     .queries = {queries.begin(), queries.end()},
                     .answer = {},
                     .asked_at = now,
                     .first_asked_at = now};
  attempt_->Attend(position_, layer, begin, end, queries);
  return absl::OkStatus();
}

void RemoteReader::OnReply(uint64_t step, int layer, std::span<const std::byte> bytes) {
  const auto it = shipped_.find(layer);
  if (it == shipped_.end() || step != static_cast<uint64_t>(position_)) return;  // of an old step
  if (bytes.size() % sizeof(float) != 0) return;
  it->second.answer.resize(bytes.size() / sizeof(float));
  std::memcpy(it->second.answer.data(), bytes.data(), bytes.size());
  if (options_.trace != nullptr) {
    const Shipped& shipped = it->second;
    options_.trace->Add(
        trace::Kind::kAttendAway, shipped.first_asked_at,
        {position_, layer, shipped.end - shipped.begin, static_cast<int64_t>(bytes.size())});
  }
}

void RemoteReader::OnDeferred() {
  for (auto& [layer, shipped] : shipped_) {
    shipped.asked_at = clock_->Now();
    shipped.retries = 0;
  }
}

absl::StatusOr<bool> RemoteReader::Attended(int layer, std::span<float> out, std::span<float> lse) {
  const auto it = shipped_.find(layer);
  if (it == shipped_.end()) return base::Internal("layer {}: no query was shipped", layer);
  Shipped& shipped = it->second;
  if (!shipped.answer.empty()) {
    if (shipped.answer.size() != out.size() + lse.size()) {
      failure_ =
          base::InvalidArgument("layer {}: the answer to a shipped query has {} values, want {}",
                                layer, shipped.answer.size(), out.size() + lse.size());
      return failure_;
    }
    for (size_t h = 0; h < lse.size(); ++h) {
      // They have tokens, so there is a sum; one number that is none would spoil the whole stream.
      const float sum = shipped.answer[out.size() + h];
      if (std::isfinite(sum)) continue;
      failure_ = base::DataLoss(
          "layer {}: answer to a shipped query: want finite log-sum-exps, got {} for query head {}",
          layer, sum, h);
      return failure_;
    }
    std::copy_n(shipped.answer.begin(), out.size(), out.begin());
    std::copy_n(shipped.answer.begin() + static_cast<int64_t>(out.size()), lse.size(), lse.begin());
    shipped_.erase(it);
    return true;
  }
  ASSIGN_OR_RETURN(const bool again,
                   AskAgain(layer, shipped.asked_at, base::Duration(0), shipped.retries));
  if (again) {
    shipped.asked_at = clock_->Now();
    attempt_->Attend(position_, layer, shipped.begin, shipped.end, shipped.queries);
  }
  return false;
}

}  // namespace smartgen::decode_server
