#include "gateway/stream/slot.h"

namespace smartgen::gateway {

std::string ModeName(v1::Mode mode) {
  switch (mode) {
    case v1::MODE_AUTO:
      return "auto";
    case v1::MODE_FULL:
      return "full";
    case v1::MODE_LOCAL:
      return "local";
    default:
      return "";
  }
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
  info.resumptions = slot.resumptions;
  info.ttft_seconds = slot.ttft_seconds;
  info.ttst_seconds = slot.ttst_seconds;
  return info;
}

}  // namespace smartgen::gateway
