#include "decode_server/remote_prefill.h"

namespace smartgen::decode_server {

std::string_view FallbackName(Fallback reason) {
  switch (reason) {
    case Fallback::kNoInstance:
      return "no_prefill_instance";
    case Fallback::kPeerDown:
      return "peer_down";
    case Fallback::kPrefillBusy:
      return "prefill_busy";
    case Fallback::kPrefillUnavailable:
      return "prefill_unavailable";
    case Fallback::kPrefillTimeout:
      return "prefill_timeout";
    case Fallback::kPrefillError:
      return "prefill_error";
    case Fallback::kLeaseLost:
      return "lease_lost";
    case Fallback::kTransferStalled:
      return "transfer_stalled";
    case Fallback::kTransferTimeout:
      return "transfer_timeout";
    case Fallback::kSelectionDropped:
      return "selection_dropped";
    case Fallback::kHandoverTimeout:
      return "handover_timeout";
  }
  return "unknown";
}

Fallback FallbackFor(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
      return Fallback::kPrefillBusy;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kFailedPrecondition:
      return Fallback::kPrefillUnavailable;
    case absl::StatusCode::kDeadlineExceeded:
      return Fallback::kPrefillTimeout;
    case absl::StatusCode::kAborted:
      return Fallback::kLeaseLost;
    default:
      return Fallback::kPrefillError;
  }
}

}  // namespace smartgen::decode_server
