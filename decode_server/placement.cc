#include "decode_server/placement.h"

#include <algorithm>

namespace smartgen::decode_server {
namespace {

// What a peer says of its queue is not believed beyond this: it would be shunned for that long.
constexpr double kMaxQueueSeconds = 60;

}  // namespace

transfer::TtstInput Placement::Predict(int64_t tokens, int64_t cached, const std::string& peer,
                                       const Load& load, base::TimePoint now) const {
  transfer::TtstInput input;
  if (costs_ == nullptr) return input;
  const transfer::LinkPoint link = costs_->Link(peer);
  input.step_seconds = costs_->StepSeconds(load.streams + 1, cached + tokens);
  input.local_prefill_seconds = costs_->PrefillSeconds(tokens, cached);
  for (const Work& work : load.local) {
    input.local_queue_seconds += costs_->PrefillSeconds(work.tokens, work.cached);
  }
  // A step of the streams between chunks.
  if (load.streams > 0) {
    const int64_t chunk =
        std::max<int64_t>(std::min(options_.local_chunk_tokens, options_.max_prefill_tokens), 1);
    const int64_t chunks = (tokens + chunk - 1) / chunk;
    input.local_prefill_seconds += static_cast<double>(chunks) * input.step_seconds;
  }
  // It is commonly the same prefix that both sides have.
  input.prefill_seconds = costs_->RemotePrefillSeconds(peer, tokens, cached);
  input.queue_seconds = QueueSeconds(peer, load, now);
  if (link.bytes_per_second > 0) {
    input.transfer_seconds =
        static_cast<double>(tokens * options_.kv_bytes_per_token) / link.bytes_per_second;
  }
  input.round_trip_seconds = link.round_trip_seconds;
  input.piece_share = transfer::PieceShare(options_.layers, tokens, options_.max_prefill_tokens);
  return input;
}

bool Placement::KeepHere(int64_t tokens, int64_t cached, const std::string& peer, const Load& load,
                         base::TimePoint now) const {
  return transfer::LocalWins(Predict(tokens, cached, peer, load, now), load.streams);
}

double Placement::QueueSeconds(const std::string& peer, const Load& load,
                               base::TimePoint now) const {
  double ours = 0;
  for (const Work& work : load.remote) {
    const double whole = costs_->RemotePrefillSeconds(peer, work.tokens, work.cached);
    ours += std::max(0.0, whole - work.passed_seconds);
  }
  const auto found = queues_.find(peer);
  if (found == queues_.end()) return ours;
  // A queue of so many seconds is gone after so many seconds, as far as we know; otherwise one that
  // was long once would keep us from ever looking again.
  const double passed = base::ToSeconds(now - found->second.at);
  return std::max({ours, found->second.seconds - passed, 0.0});
}

void Placement::Computed(int64_t tokens, int64_t cached, double seconds) {
  if (costs_ != nullptr) costs_->LearnPrefill(tokens, cached, seconds);
}

void Placement::Stepped(int64_t batch, int64_t context, double seconds) {
  if (costs_ != nullptr) costs_->LearnStep(batch, context, seconds);
}

void Placement::Queued(const std::string& peer, double seconds, base::TimePoint now) {
  // Not NaN either.
  if (costs_ != nullptr && seconds >= 0) queues_[peer] = {std::min(seconds, kMaxQueueSeconds), now};
}

void Placement::ComputedRemotely(const std::string& peer, int64_t tokens, int64_t cached,
                                 double seconds) {
  if (costs_ != nullptr) costs_->LearnRemotePrefill(peer, tokens, cached, seconds);
}

}  // namespace smartgen::decode_server
