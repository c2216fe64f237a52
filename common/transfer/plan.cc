#include "common/transfer/plan.h"

#include <algorithm>
#include <span>

#include "common/base/hash.h"

namespace smartgen::transfer {

TokenRange SentTokens(const BlockId& id, const PlanInput& input) {
  TokenRange range = BlockTokens(id.block, input.tokens);
  int64_t first = input.decode_cached;
  if (!input.windows.empty() && input.windows[id.layer] > 0) {
    // The next token, at position T, still sees [T - window + 1, T].
    first = std::max(first, input.tokens - input.windows[id.layer] + 1);
  }
  range.begin = std::max(range.begin, first);
  return range;
}

TransferPlan MakePlan(const Profile& profile, const PlanInput& input) {
  TransferPlan plan;
  for (int layer = 0; layer < profile.layers(); ++layer) {
    for (int block = 0; block < kBlocks; ++block) {
      const BlockId id{layer, block};
      if (!SentTokens(id, input).empty()) plan.order.push_back(id);
    }
  }
  // Stable: layer-major order is the tie-break.
  std::stable_sort(plan.order.begin(), plan.order.end(), [&](const BlockId& a, const BlockId& b) {
    return profile.Importance(a.layer, a.block) > profile.Importance(b.layer, b.block);
  });
  // The dense layers go whatever the budget says.
  const auto dense = std::count_if(plan.order.begin(), plan.order.end(),
                                   [](const BlockId& id) { return id.layer < kDenseLayers; });
  plan.pushed =
      std::clamp<int64_t>(input.push_blocks, dense, static_cast<int64_t>(plan.order.size()));
  base::Hasher64 hasher(static_cast<uint64_t>(plan.pushed));
  hasher.Update(std::as_bytes(std::span(plan.order)));
  plan.hash = hasher.Digest();
  return plan;
}

}  // namespace smartgen::transfer
