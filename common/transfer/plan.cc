#include "common/transfer/plan.h"

#include <algorithm>
#include <random>
#include <span>
#include <utility>

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

std::vector<BlockId> PositionOrder(int layers, const PlanInput& input) {
  std::vector<BlockId> order;
  const auto add = [&](int layer, int block) {
    const BlockId id{layer, block};
    if (!SentTokens(id, input).empty()) order.push_back(id);
  };
  for (int layer = 0; layer < std::min(kDenseLayers, layers); ++layer) {
    for (int block = 0; block < kBlocks; ++block) add(layer, block);
  }
  for (int block = 0; block < kBlocks; ++block) {
    for (int layer = kDenseLayers; layer < layers; ++layer) add(layer, block);
  }
  return order;
}

std::vector<BlockId> RandomOrder(int layers, const PlanInput& input, uint64_t seed) {
  std::vector<BlockId> order = PositionOrder(layers, input);
  const auto first = std::find_if(order.begin(), order.end(),
                                  [](const BlockId& id) { return id.layer >= kDenseLayers; });
  const auto offset = static_cast<size_t>(first - order.begin());
  std::mt19937_64 random(seed);
  // Not std::shuffle: what it draws is the library's own business. The bias of % is below 2^-44.
  for (size_t i = order.size(); i > offset + 1; --i) {
    std::swap(order[i - 1], order[offset + random() % (i - offset)]);
  }
  return order;
}

}  // namespace smartgen::transfer
