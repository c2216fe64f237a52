// How much of what decode steps select would have to be fetched, had only some blocks been pushed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/transfer/plan.h"
#include "common/transfer/profile.h"
#include "tools/profile/selection_counts.h"

namespace smartgen::tools::profile {

// On-demand ratios: of the prompt's selected entries in the layers that are not always sent, the
// share that lies outside of the pushed blocks. What a fetch has brought stays here in a running
// system; this counts it each time that it is read, so it compares what was pushed alone.
struct MissRatios {
  double profile = 0;
  double sequential = 0;  // by position, the layers alike (transfer::PositionOrder)
  double random = 0;      // mean over kRandomOrders orders

  // 1 - profile / other; 0 where the other misses nothing.
  double BelowSequential() const { return sequential > 0 ? 1 - profile / sequential : 0; }
  double BelowRandom() const { return random > 0 ? 1 - profile / random : 0; }
};

// All three push the same number of blocks, K_r = `share` of all that hold tokens, the dense layers
// always among them.
class MissCounter {
 public:
  static constexpr int kRandomOrders = 5;

  // `windows`: of the layers, as in transfer::PlanInput.
  MissCounter(const transfer::Profile* profile, std::vector<int> windows,
              std::vector<double> shares);

  void Add(const SelectionCounts& counts);

  struct Row {
    int64_t length = 0;  // 0: all prompts
    double share = 0;
    int64_t prompts = 0;
    MissRatios ratios;
  };
  // By length, then share; all lengths together (their entries, pooled) at the end.
  std::vector<Row> Rows() const;

 private:
  struct Sum {
    int64_t prompts = 0;
    double selected = 0;
    double profile = 0;  // missed
    double sequential = 0;
    double random = 0;
  };
  Row RowOf(int64_t length, double share, const Sum& sum) const;

  const transfer::Profile* profile_;
  const std::vector<int> windows_;
  const std::vector<double> shares_;
  std::map<int64_t, std::vector<Sum>> sums_;  // by length, then share
};

// The selected entries outside of the first `pushed` blocks of `order`, in the layers that are not
// always sent.
int64_t MissedEntries(const SelectionCounts& counts, const std::vector<transfer::BlockId>& order,
                      int64_t pushed);

// Markdown.
std::string MissTable(const std::vector<MissCounter::Row>& rows);

}  // namespace smartgen::tools::profile
