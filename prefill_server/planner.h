// Decides how a prompt's KV is delivered: mode, order of blocks, what is pushed while the prompt is
// computed (smartgen.md, section 2). Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/kv/layout.h"
#include "common/transfer/cost_model.h"
#include "common/transfer/profile.h"
#include "prefill_server/job.h"

namespace smartgen::prefill_server {

// Seconds a prompt takes, learnt from prompts that were computed: an exponentially weighted mean of
// seconds a token, for each power of two of the length. Thread-safe.
class PrefillSpeed {
 public:
  // Zero while nothing is known.
  double Predict(int64_t tokens) const;
  void Learn(int64_t tokens, double seconds);

 private:
  static constexpr int kClasses = 32;
  mutable base::Mutex mutex_;
  std::array<double, kClasses> seconds_per_token_ ABSL_GUARDED_BY(mutex_){};
};

class TransferPlanner {
 public:
  struct Options {
    // Blocks pushed where neither the prompt's time nor the link's bandwidth is known yet, as a
    // share of all.
    double unknown_share = 0.2;
  };
  // What a selector chooses is told best by a profile that was made with it: a request's is the
  // first of that selector, or else the first of all. At least one; each for the layout's number of
  // layers. `costs`: of a calibration; null: none.
  TransferPlanner(Options options, const kv::KvLayout& layout,
                  std::vector<transfer::Profile> profiles,
                  std::unique_ptr<transfer::CostModel> costs = nullptr)
      : options_(options),
        layout_(layout),
        profiles_(std::move(profiles)),
        costs_(std::move(costs)) {}

  struct Input {
    int64_t tokens = 0;
    int64_t decode_cached = 0;
    int64_t prefill_cached = 0;
    int64_t chunk_tokens = 0;
    // Transfers of the link that are under way, this one included.
    int64_t sharing = 1;
    transfer::Mode mode = transfer::Mode::kFull;
    transfer::RequestOptions transfer;
    int64_t metadata_bytes = 0;
    transfer::LinkEstimate link;
    uint64_t seed = 0;  // of mode random
  };
  DeliveryPlan Plan(const Input& input) const;

  // T_p of `tokens` tokens after `cached`: by the calibration, else from prompts that were computed
  // (PrefillSpeed). 0: not known.
  double PrefillSeconds(int64_t tokens, int64_t cached) const;
  // A prompt took so long.
  void Learn(int64_t tokens, int64_t cached, double seconds) const;
  const transfer::CostModel* costs() const { return costs_.get(); }
  const transfer::Profile& ProfileFor(std::string_view selector) const;

 private:
  const Options options_;
  const kv::KvLayout layout_;
  const std::vector<transfer::Profile> profiles_;
  const std::unique_ptr<transfer::CostModel> costs_;
  mutable PrefillSpeed speed_;
};

}  // namespace smartgen::prefill_server
