// How long things take: prompts, decode steps, the way to a peer. Curves through measurements, and
// a correction by what is seen while serving.
//
// Everywhere 0 means "not known": the caller decides what to do then.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"

namespace smartgen::transfer {

// Computing `tokens` tokens of a prompt whose first `prefix` tokens are cached.
struct PrefillPoint {
  int64_t tokens = 0;
  int64_t prefix = 0;
  double seconds = 0;
  bool held_out = false;  // no curve goes through it: it tells how well the curve predicts
};

// A decode step of `batch` sequences, each with `context` tokens.
struct StepPoint {
  int64_t batch = 0;
  int64_t context = 0;
  double seconds = 0;
  bool held_out = false;
};

// From a prefill instance to here.
struct LinkPoint {
  std::string peer;  // as it was named: host:port
  double bytes_per_second = 0;
  double round_trip_seconds = 0;
};

struct CostPoints {
  std::vector<PrefillPoint> prefill;
  std::vector<StepPoint> steps;
  std::vector<LinkPoint> links;
};

// Sums of what grows with x, in two straight pieces, and of the products in `rest`:
// c[0] + c[1] * min(x, knee) + c[2] * max(x - knee, 0) + c[3 + i] * rest[i], no c negative.
// The knee is where a machine stops paying for its weights and begins to pay for each token, or
// where its kernels get efficient.
class KneedCurve {
 public:
  struct Row {
    double x = 0;
    std::vector<double> rest;
    double value = 0;
  };
  // By least squares of the relative error. Without a knee (one straight piece) unless one more
  // than halves the squared error. InvalidArgument for fewer than two rows or values that are not
  // positive.
  static absl::StatusOr<KneedCurve> Fit(std::span<const Row> rows);
  double At(double x, std::span<const double> rest) const;

 private:
  double knee_ = 0;
  std::vector<double> coefficients_;
};

// An exponentially weighted geometric mean of measured / predicted, 1 at first. Thread-safe.
class Correction {
 public:
  // Weight of the newest measurement.
  static constexpr double kNew = 0.2;
  // One measurement counts as at most so far off, in either direction (the process may have been
  // stopped), and so does the mean.
  static constexpr double kMaxRatio = 8;

  double ratio() const;
  // Ignored unless both are finite and positive. `predicted` is what the curve says, not corrected.
  void Observe(double predicted, double measured);

 private:
  mutable base::Mutex mutex_;
  double log_ratio_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Thread-safe.
class CostModel {
 public:
  // Points held out are left out. A kind without points is not known. InvalidArgument names the
  // kind whose points are too few or not positive.
  static absl::StatusOr<std::unique_ptr<CostModel>> Create(const CostPoints& points);

  // T_p here.
  double PrefillSeconds(int64_t tokens, int64_t prefix) const;
  // T_p of a prefill instance: as here until Learn was told otherwise, since a calibration is of
  // one machine and instances are commonly alike.
  double RemotePrefillSeconds(std::string_view peer, int64_t tokens, int64_t prefix) const;
  double StepSeconds(int64_t batch, int64_t context) const;
  // Zeros where that peer was not measured.
  LinkPoint Link(std::string_view peer) const;

  // What was measured while serving. Garbage (not positive, not finite) changes nothing.
  void LearnPrefill(int64_t tokens, int64_t prefix, double seconds);
  // At most kMaxPeers peers are told apart; of others nothing is learnt.
  void LearnRemotePrefill(std::string_view peer, int64_t tokens, int64_t prefix, double seconds);
  void LearnStep(int64_t batch, int64_t context, double seconds);
  // Measured over calibrated, as learnt so far.
  double prefill_ratio() const { return prefill_correction_.ratio(); }
  double step_ratio() const { return step_correction_.ratio(); }

  static constexpr size_t kMaxPeers = 256;

 private:
  CostModel() = default;
  double RawPrefill(int64_t tokens, int64_t prefix) const;
  double RawStep(int64_t batch, int64_t context) const;
  const Correction* RemoteCorrection(std::string_view peer) const;

  // Fixed after Create; null: not known.
  std::unique_ptr<const KneedCurve> prefill_;
  std::unique_ptr<const KneedCurve> step_;
  std::vector<LinkPoint> links_;

  Correction prefill_correction_;
  Correction step_correction_;
  mutable base::Mutex mutex_;
  // Never erased: pointers to values stay valid.
  std::map<std::string, Correction, std::less<>> remote_ ABSL_GUARDED_BY(mutex_);
};

// How a held-out point was predicted.
struct HeldOutResult {
  std::string what;  // "prefill 512 tokens after 1024"
  double measured = 0;
  double predicted = 0;
  double error() const { return predicted / measured - 1; }
};
// A calibration that predicts worse than this is not used.
inline constexpr double kMaxHeldOutError = 0.15;

// All points held out, against the curves through the others. Errors as Create.
absl::StatusOr<std::vector<HeldOutResult>> PredictHeldOut(const CostPoints& points);

}  // namespace smartgen::transfer
