// Which blocks go when. A pure function of profile, lengths and budget.
#pragma once

#include <cstdint>
#include <vector>

#include "common/transfer/blocks.h"
#include "common/transfer/profile.h"

namespace smartgen::transfer {

struct BlockId {
  int layer = 0;
  int block = 0;
  friend bool operator==(const BlockId&, const BlockId&) = default;
};

struct PlanInput {
  int64_t tokens = 0;  // T: the prompt
  int64_t decode_cached =
      0;  // the decode side has tokens [0, n): blocks wholly inside are left out
  // Sliding-window layers: tokens before T - window are never sent. 0: none. One value a layer, or
  // empty for none at all.
  std::vector<int> windows;
  int64_t push_blocks = 0;  // K_r
};

struct TransferPlan {
  // Every block that holds tokens which the decode side lacks, most important first; ties by layer,
  // then position. The first `pushed` of them are path 1's; the rest follow in the same order on
  // path 3.
  std::vector<BlockId> order;
  int64_t pushed = 0;
  // XXH3 of order and pushed; names the plan on both sides.
  uint64_t hash = 0;
};

TransferPlan MakePlan(const Profile& profile, const PlanInput& input);
// The baselines' orders of the same blocks: what a prefix of them holds is compared with a prefix
// of the plan. The dense layers first, then by position, the layers in turns, so that any prefix
// holds the same share of each;
std::vector<BlockId> PositionOrder(int layers, const PlanInput& input);
// or at random, the same for the same seed on every machine.
std::vector<BlockId> RandomOrder(int layers, const PlanInput& input, uint64_t seed);
// The tokens of a block that travel: the block less what is cached or outside the window.
TokenRange SentTokens(const BlockId& id, const PlanInput& input);

}  // namespace smartgen::transfer
