#include "gateway/stream/slot.h"

#include "common/rpc/convert.h"

namespace smartgen::gateway {

std::string ModeName(v1::Mode mode) {
  if (mode == v1::MODE_UNSPECIFIED) return "";
  const auto known = rpc::FromProto(mode, transfer::Mode::kAuto);
  return known.ok() ? std::string(transfer::ModeName(*known)) : "";
}

void SetTransfer(const TransferChoice& choice, v1::TransferOptions& out) {
  if (choice.selector) out.set_selector(*choice.selector);
  if (choice.selection_budget) out.set_selection_budget(*choice.selection_budget);
  if (choice.speculative_ratio) out.set_speculative_ratio(*choice.speculative_ratio);
  if (choice.handover) {
    if (const auto handover = transfer::ParseHandover(*choice.handover); handover.ok()) {
      rpc::ToProto(*handover, &out);
    }
  }
  if (choice.selection) out.set_selection(*choice.selection);
  if (choice.profile) out.set_profile(*choice.profile);
  if (choice.parallel) out.set_parallel(*choice.parallel);
  if (choice.prefetch) out.set_prefetch(*choice.prefetch);
  if (choice.speculation) out.set_speculation(*choice.speculation);
}

ServingInfo ServingInfoOf(const Slot& slot) {
  ServingInfo info;
  info.mode = ModeName(slot.stats.mode());
  info.prefill_address = slot.stats.prefill_address();
  if (slot.call) info.decode_address = slot.call->address();
  info.fallback_reason = slot.stats.fallback_reason();
  info.queue_seconds = slot.stats.queue_seconds();
  info.prefill_seconds = slot.stats.prefill_seconds();
  info.transfer_exposed_seconds = slot.stats.transfer_exposed_seconds();
  info.decode_seconds = slot.stats.decode_seconds();
  info.transfer_bytes = slot.stats.transfer_bytes();
  info.path_bytes.insert(slot.stats.path_bytes().begin(), slot.stats.path_bytes().end());
  info.handover_steps = slot.stats.handover_steps();
  info.all_local_seconds = slot.stats.all_local_seconds();
  info.selected_entries = slot.stats.selected_entries();
  info.remote_entries = slot.stats.remote_entries();
  info.step_kinds.insert(slot.stats.step_kinds().begin(), slot.stats.step_kinds().end());
  info.resumptions = slot.resumptions;
  info.ttft_seconds = slot.ttft_seconds;
  info.ttst_seconds = slot.ttst_seconds;
  return info;
}

}  // namespace smartgen::gateway
