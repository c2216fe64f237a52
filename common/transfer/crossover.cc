#include "common/transfer/crossover.h"

#include <algorithm>

namespace smartgen::transfer {

Ttst PredictTtst(const TtstInput& in) {
  Ttst out;
  if (in.step_seconds <= 0) return out;
  if (in.local_prefill_seconds > 0) {
    out.local = in.local_queue_seconds + in.local_prefill_seconds + in.step_seconds;
  }
  if (in.prefill_seconds <= 0 || in.round_trip_seconds <= 0) return out;
  const double way = in.round_trip_seconds + in.queue_seconds;
  out.exact = way + in.prefill_seconds + in.round_trip_seconds + in.step_seconds;
  if (in.transfer_seconds <= 0) return out;
  const double piece = std::clamp(in.piece_share, 0.0, 1.0);
  const double kv_here = std::max(piece * in.prefill_seconds + in.transfer_seconds,
                                  in.prefill_seconds + piece * in.transfer_seconds);
  out.full = way + kv_here + in.step_seconds;
  out.exact = std::min(out.exact, out.full);
  return out;
}

double PieceShare(int layers, int64_t tokens, int64_t chunk_tokens) {
  const int64_t chunk = std::max<int64_t>(chunk_tokens, 1);
  const int64_t chunks = std::max<int64_t>((tokens + chunk - 1) / chunk, 1);
  return 1.0 / (static_cast<double>(std::max(layers, 1)) * static_cast<double>(chunks));
}

bool LocalWins(const TtstInput& input, int64_t other_streams) {
  const Ttst ttst = PredictTtst(input);
  if (ttst.local <= 0 || ttst.exact <= 0) return false;
  const double held_up = static_cast<double>(1 + std::max<int64_t>(other_streams, 0));
  return ttst.local + kHoldUpShare * held_up * input.local_prefill_seconds < ttst.exact;
}

}  // namespace smartgen::transfer
