// When the second token comes, by the mode that brings it, and where a prompt is better read. Pure.
#pragma once

#include <cstdint>

namespace smartgen::transfer {

// Seconds; 0 where a time is not known, but for the queues.
struct TtstInput {
  // Here, on the decode instance: the prompt's T_p, what it waits before that, and a decode step.
  double local_prefill_seconds = 0;
  double local_queue_seconds = 0;
  double step_seconds = 0;
  // There, on a prefill instance.
  double prefill_seconds = 0;
  double queue_seconds = 0;
  // T_t: all of the KV that is lacking here, at this request's share of the link.
  double transfer_seconds = 0;
  double round_trip_seconds = 0;
  // KV goes out in pieces, a layer of a chunk each: their share of the whole. The first is ready
  // after this share of T_p, the last when T_p is over.
  double piece_share = 1;
};

// Seconds from the request's arrival to its second token; 0: not known.
struct Ttst {
  double local = 0;  // queue + T_p + step
  // Half a round trip there and back each, the queue, then T_p and the transfer side by side: the
  // longer of (piece * T_p + T_t) and (T_p + piece * T_t). Then a step.
  double full = 0;
  // Token 1 comes without waiting for KV; one more round trip hands the second step over (split
  // decode). Where all KV is here sooner than that, it is as full.
  double exact = 0;
};

Ttst PredictTtst(const TtstInput& input);

// 1 / (layers * chunks) of a prompt whose `tokens` tokens are computed by chunks.
double PieceShare(int layers, int64_t tokens, int64_t chunk_tokens);

// A prompt read here holds up the streams that run here, and whoever comes while it is read. For
// each of the former and once for the latter, this share of T_p counts against local.
inline constexpr double kHoldUpShare = 0.1;

// True where the second token comes sooner without a prefill instance, by more than the hold-up of
// others is worth: with equal machines and nobody else here, a prompt whose T_p is at most ten
// times what the way there and back and the queue cost. False if anything needed is not known.
bool LocalWins(const TtstInput& input, int64_t other_streams);

}  // namespace smartgen::transfer
