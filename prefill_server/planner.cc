#include "prefill_server/planner.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "common/transfer/budget.h"
#include "common/transfer/plan.h"

namespace smartgen::prefill_server {
namespace {

using transfer::Mode;

// Weight of the newest measurement.
constexpr double kNew = 0.3;

int64_t CountBlocks(const transfer::PlanInput& input, int layer) {
  int64_t count = 0;
  for (int block = 0; block < transfer::kBlocks; ++block) {
    count += transfer::SentTokens({layer, block}, input).empty() ? 0 : 1;
  }
  return count;
}

}  // namespace

double PrefillSpeed::Predict(int64_t tokens) const {
  const int wanted = std::bit_width(static_cast<uint64_t>(std::max<int64_t>(tokens, 1)));
  base::MutexLock lock(mutex_);
  for (int distance = 0; distance < kClasses; ++distance) {
    for (const int at : {wanted - distance, wanted + distance}) {
      if (at >= 0 && at < kClasses && seconds_per_token_[at] > 0) {
        return seconds_per_token_[at] * static_cast<double>(tokens);
      }
    }
  }
  return 0;
}

void PrefillSpeed::Learn(int64_t tokens, double seconds) {
  if (tokens <= 0 || !(seconds > 0)) return;
  const int at = std::min<int>(std::bit_width(static_cast<uint64_t>(tokens)), kClasses - 1);
  const double value = seconds / static_cast<double>(tokens);
  base::MutexLock lock(mutex_);
  double& mean = seconds_per_token_[at];
  mean = mean > 0 ? mean + kNew * (value - mean) : value;
}

double TransferPlanner::PrefillSeconds(int64_t tokens, int64_t cached) const {
  const double calibrated = costs_ == nullptr ? 0 : costs_->PrefillSeconds(tokens, cached);
  return calibrated > 0 ? calibrated : speed_.Predict(tokens);
}

void TransferPlanner::Learn(int64_t tokens, int64_t cached, double seconds) const {
  if (costs_ != nullptr) costs_->LearnPrefill(tokens, cached, seconds);
  speed_.Learn(tokens, seconds);
}

const transfer::Profile& TransferPlanner::ProfileFor(std::string_view selector) const {
  const auto found = std::find_if(
      profiles_.begin(), profiles_.end(),
      [&](const transfer::Profile& profile) { return profile.origin().selector == selector; });
  return found != profiles_.end() ? *found : profiles_.front();
}

DeliveryPlan TransferPlanner::Plan(const Input& input) const {
  DeliveryPlan plan;
  plan.mode = input.mode;
  const int layers = layout_.num_layers();
  transfer::PlanInput blocks;
  blocks.tokens = input.tokens;
  blocks.decode_cached = input.decode_cached;
  for (const kv::LayerLayout& layer : layout_.layers) blocks.windows.push_back(layer.window);
  int64_t per_layer = 0;
  for (int layer = 0; layer < layers; ++layer) {
    const int64_t count = CountBlocks(blocks, layer);
    plan.total_blocks += count;
    per_layer = std::max(per_layer, count);
  }
  const int64_t computed = input.tokens - input.prefill_cached;
  plan.prefill_seconds = PrefillSeconds(computed, input.prefill_cached);
  const auto bytes =
      static_cast<double>(transfer::TravelBytes(layout_, input.decode_cached, input.tokens));
  if (input.link.bytes_per_second > 0) {
    plan.transfer_seconds = bytes * static_cast<double>(std::max<int64_t>(input.sharing, 1)) /
                            input.link.bytes_per_second;
  }
  if (!transfer::Selects(input.mode)) return plan;  // everything goes, layer by layer

  transfer::BudgetInput budget;
  budget.layers = layers;
  budget.blocks_per_layer = per_layer;
  budget.prefill_seconds = plan.prefill_seconds;
  budget.transfer_seconds = plan.transfer_seconds;
  // The first layer of the first chunk is ready after its share of that chunk.
  const double chunks =
      std::max(1.0, static_cast<double>(computed) /
                        static_cast<double>(std::max<int64_t>(input.chunk_tokens, 1)));
  budget.first_ready_share = 1.0 / (layers * chunks);
  const double block_bytes = bytes / static_cast<double>(std::max<int64_t>(plan.total_blocks, 1));
  budget.metadata_blocks =
      static_cast<int64_t>(static_cast<double>(input.metadata_bytes) / std::max(block_bytes, 1.0));
  transfer::Budget result;
  if (plan.prefill_seconds > 0 && plan.transfer_seconds > 0) {
    result = transfer::ComputeBudget(budget);
  } else {
    result.total_blocks =
        static_cast<int64_t>(options_.unknown_share * static_cast<double>(plan.total_blocks));
    result.push_blocks = std::max<int64_t>(0, result.total_blocks - budget.metadata_blocks);
  }
  plan.budget_blocks = result.total_blocks;
  plan.dense_overrun_blocks = result.dense_overrun_blocks;
  blocks.push_blocks = result.push_blocks;

  transfer::TransferPlan ranked = transfer::MakePlan(ProfileFor(input.transfer.selector), blocks);
  plan.pushed_blocks = ranked.pushed;
  plan.order = std::move(ranked.order);
  if (input.mode == Mode::kPartial || !input.transfer.profile) {
    plan.order = transfer::PositionOrder(layers, blocks);
  } else if (input.mode == Mode::kRandom) {
    plan.order = transfer::RandomOrder(layers, blocks, input.seed);
  }
  plan.deliver_rest = input.mode == Mode::kSmartGen && input.transfer.speculation;
  plan.credits = plan.deliver_rest;
  return plan;
}

}  // namespace smartgen::prefill_server
