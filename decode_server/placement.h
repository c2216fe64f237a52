// Where a prompt of mode auto is read, as the calibration predicts it. Pure but for what the cost
// model has learnt.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/transfer/cost_model.h"
#include "common/transfer/crossover.h"

namespace smartgen::decode_server {

// Thread-safe as far as CostModel is; the rest is for one thread.
class Placement {
 public:
  struct Options {
    int layers = 1;
    int64_t kv_bytes_per_token = 0;
    // Chunks of a local prefill: alone, and while others run.
    int64_t max_prefill_tokens = 2048;
    int64_t local_chunk_tokens = 256;
  };
  // `costs` null: nothing is known. It must outlive this.
  Placement(Options options, transfer::CostModel* costs) : options_(options), costs_(costs) {}
  bool known() const { return costs_ != nullptr; }

  // What stands before a prompt.
  struct Work {
    int64_t tokens = 0;  // to compute
    int64_t cached = 0;  // before them
    double passed_seconds = 0;
  };
  struct Load {
    std::vector<Work> local;   // prompts that are read here
    std::vector<Work> remote;  // of ours, at the prefill instance
    int64_t streams = 0;       // that decode here
  };
  // True where the second token comes sooner without the prefill instance `peer` (LocalWins).
  // False while anything needed is not known: no calibration, or none of the way to that peer.
  bool KeepHere(int64_t tokens, int64_t cached, const std::string& peer, const Load& load,
                base::TimePoint now) const;
  // What KeepHere goes by.
  transfer::TtstInput Predict(int64_t tokens, int64_t cached, const std::string& peer,
                              const Load& load, base::TimePoint now) const;

  // What happened. Without a calibration nothing is learnt.
  void Computed(int64_t tokens, int64_t cached, double seconds);
  void Stepped(int64_t batch, int64_t context, double seconds);
  // A prompt waited so long at the peer before it was its turn.
  void Queued(const std::string& peer, double seconds, base::TimePoint now);
  void ComputedRemotely(const std::string& peer, int64_t tokens, int64_t cached, double seconds);

 private:
  struct Queue {
    double seconds = 0;
    base::TimePoint at{};
  };
  double QueueSeconds(const std::string& peer, const Load& load, base::TimePoint now) const;

  const Options options_;
  transfer::CostModel* const costs_;
  std::map<std::string, Queue> queues_;  // by peer, of those that are configured
};

}  // namespace smartgen::decode_server
