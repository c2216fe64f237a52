// How much KV the link can carry while prefill still runs.
#pragma once

#include <cstdint>

namespace smartgen::transfer {

struct BudgetInput {
  int layers = 0;
  // Blocks of a layer that hold tokens which the decode side lacks (kBlocks for a whole prompt of
  // at least kBlocks tokens).
  int64_t blocks_per_layer = 0;
  double prefill_seconds = 0;  // T_p
  double transfer_seconds =
      0;  // T_t: all of the KV that the decode side lacks, at this request's share of the link
  // When the first layer's KV of the first chunk is ready, as a share of T_p: nothing can be sent
  // before. 1 / layers where prefill is one chunk.
  double first_ready_share = 0;
  // Selection metadata goes inside the budget; its size in blocks.
  int64_t metadata_blocks = 0;
};

struct Budget {
  int64_t total_blocks = 0;  // K_r, metadata included
  int64_t push_blocks = 0;   // K_r less metadata, at least 0
  bool full = false;         // all of it fits: mode "full"
  // The two dense layers alone exceed push_blocks by this many; they are sent all the same.
  int64_t dense_overrun_blocks = 0;
};

// K_r = L * M * (T_p / T_t) * (1 - first_ready_share), clamped to [0, L * M] and rounded down
// (paper, equation 2, where the last factor is (L - 1) / L). T_p <= 0 gives no budget; T_t <= 0 all
// of it.
Budget ComputeBudget(const BudgetInput& input);

}  // namespace smartgen::transfer
