#include "common/transfer/budget.h"

#include <algorithm>
#include <cmath>

#include "common/transfer/profile.h"

namespace smartgen::transfer {

Budget ComputeBudget(const BudgetInput& input) {
  Budget budget;
  const int64_t all = input.layers * input.blocks_per_layer;
  if (input.transfer_seconds <= 0) {
    budget.total_blocks = all;
  } else if (input.prefill_seconds > 0) {
    const double share =
        input.prefill_seconds / input.transfer_seconds * (1 - input.first_ready_share);
    // A hair above the product, so that 7936 computed as 7935.999... stays 7936.
    const double blocks = std::floor(static_cast<double>(all) * share * (1 + 1e-12));
    budget.total_blocks = static_cast<int64_t>(std::clamp(blocks, 0.0, static_cast<double>(all)));
  }
  budget.full = budget.total_blocks >= all;
  budget.push_blocks =
      budget.full ? all : std::max<int64_t>(0, budget.total_blocks - input.metadata_blocks);
  const int64_t dense = std::min(kDenseLayers, input.layers) * input.blocks_per_layer;
  budget.dense_overrun_blocks = std::max<int64_t>(0, dense - budget.push_blocks);
  return budget;
}

}  // namespace smartgen::transfer
