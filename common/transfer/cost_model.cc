#include "common/transfer/cost_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "common/transfer/nonnegative_fit.h"

namespace smartgen::transfer {
namespace {

// Fewer measurements than this do not tell a knee from noise.
constexpr size_t kMinRowsForKnee = 6;
// What a knee must leave of the squared error to be believed.
constexpr double kKneeGain = 0.5;
constexpr double kNoKnee = std::numeric_limits<double>::infinity();

std::vector<double> Features(double x, std::span<const double> rest, double knee) {
  std::vector<double> features = {1, std::min(x, knee), std::max(x - knee, 0.0)};
  features.insert(features.end(), rest.begin(), rest.end());
  return features;
}

// Attention reads prefix and chunk: n queries over p cached tokens, and over half of each other.
std::vector<double> PrefillRest(int64_t tokens, int64_t prefix) {
  const auto n = static_cast<double>(tokens);
  return {n * static_cast<double>(prefix), n * n / 2};
}

std::vector<double> StepRest(int64_t batch, int64_t context) {
  return {static_cast<double>(batch) * static_cast<double>(context)};
}

template <typename Point, typename ToRow>
absl::StatusOr<std::unique_ptr<const KneedCurve>> FitPoints(std::string_view kind,
                                                            const std::vector<Point>& points,
                                                            ToRow to_row) {
  std::vector<KneedCurve::Row> rows;
  for (const Point& point : points) {
    if (!point.held_out) rows.push_back(to_row(point));
  }
  if (rows.empty()) return std::unique_ptr<const KneedCurve>();
  auto curve = KneedCurve::Fit(rows);
  if (!curve.ok()) return base::Annotate(curve.status(), kind);
  return std::make_unique<const KneedCurve>(*std::move(curve));
}

}  // namespace

absl::StatusOr<KneedCurve> KneedCurve::Fit(std::span<const Row> rows) {
  if (rows.size() < 2) {
    return base::InvalidArgument("curve: want at least 2 measurements, got {}", rows.size());
  }
  const auto fit_with = [&](double knee) {
    std::vector<FitRow> fit_rows;
    for (const Row& row : rows) fit_rows.push_back({Features(row.x, row.rest, knee), row.value});
    return FitNonNegative(fit_rows);
  };
  KneedCurve curve;
  curve.knee_ = kNoKnee;
  ASSIGN_OR_RETURN(auto best, fit_with(kNoKnee));
  std::set<double> knees;
  if (rows.size() >= kMinRowsForKnee) {
    for (const Row& row : rows) knees.insert(row.x);
  }
  double bound = best.squared_error * kKneeGain;
  for (const double knee : knees) {
    ASSIGN_OR_RETURN(auto fit, fit_with(knee));
    if (!(fit.squared_error < bound)) continue;
    bound = fit.squared_error;
    best = std::move(fit);
    curve.knee_ = knee;
  }
  curve.coefficients_ = std::move(best.coefficients);
  return curve;
}

double KneedCurve::At(double x, std::span<const double> rest) const {
  const std::vector<double> features = Features(x, rest, knee_);
  double sum = 0;
  for (size_t i = 0; i < features.size(); ++i) sum += coefficients_[i] * features[i];
  return sum;
}

double Correction::ratio() const {
  base::MutexLock lock(mutex_);
  return std::exp(log_ratio_);
}

void Correction::Observe(double predicted, double measured) {
  const bool usable =
      std::isfinite(predicted) && predicted > 0 && std::isfinite(measured) && measured > 0;
  if (!usable) return;
  const double most = std::log(kMaxRatio);
  // Of the logarithms: the quotient of two finite numbers may be infinite.
  const double seen = std::clamp(std::log(measured) - std::log(predicted), -most, most);
  base::MutexLock lock(mutex_);
  log_ratio_ += kNew * (seen - log_ratio_);
}

absl::StatusOr<std::unique_ptr<CostModel>> CostModel::Create(const CostPoints& points) {
  auto model = std::unique_ptr<CostModel>(new CostModel);
  ASSIGN_OR_RETURN(model->prefill_,
                   FitPoints("prefill", points.prefill, [](const PrefillPoint& point) {
                     return KneedCurve::Row{static_cast<double>(point.tokens),
                                            PrefillRest(point.tokens, point.prefix), point.seconds};
                   }));
  ASSIGN_OR_RETURN(model->step_,
                   FitPoints("decode steps", points.steps, [](const StepPoint& point) {
                     return KneedCurve::Row{static_cast<double>(point.batch),
                                            StepRest(point.batch, point.context), point.seconds};
                   }));
  model->links_ = points.links;
  return model;
}

double CostModel::RawPrefill(int64_t tokens, int64_t prefix) const {
  if (prefill_ == nullptr || tokens <= 0 || prefix < 0) return 0;
  return prefill_->At(static_cast<double>(tokens), PrefillRest(tokens, prefix));
}

double CostModel::RawStep(int64_t batch, int64_t context) const {
  if (step_ == nullptr || batch <= 0 || context < 0) return 0;
  return step_->At(static_cast<double>(batch), StepRest(batch, context));
}

double CostModel::PrefillSeconds(int64_t tokens, int64_t prefix) const {
  return RawPrefill(tokens, prefix) * prefill_correction_.ratio();
}

const Correction* CostModel::RemoteCorrection(std::string_view peer) const {
  base::MutexLock lock(mutex_);
  const auto found = remote_.find(peer);
  return found == remote_.end() ? nullptr : &found->second;
}

double CostModel::RemotePrefillSeconds(std::string_view peer, int64_t tokens,
                                       int64_t prefix) const {
  const Correction* correction = RemoteCorrection(peer);
  return RawPrefill(tokens, prefix) * (correction == nullptr ? 1.0 : correction->ratio());
}

double CostModel::StepSeconds(int64_t batch, int64_t context) const {
  return RawStep(batch, context) * step_correction_.ratio();
}

LinkPoint CostModel::Link(std::string_view peer) const {
  for (const LinkPoint& link : links_) {
    if (link.peer == peer) return link;
  }
  return LinkPoint{.peer = std::string(peer)};
}

void CostModel::LearnPrefill(int64_t tokens, int64_t prefix, double seconds) {
  prefill_correction_.Observe(RawPrefill(tokens, prefix), seconds);
}

void CostModel::LearnRemotePrefill(std::string_view peer, int64_t tokens, int64_t prefix,
                                   double seconds) {
  const double predicted = RawPrefill(tokens, prefix);
  base::MutexLock lock(mutex_);
  auto found = remote_.find(peer);
  if (found == remote_.end()) {
    if (remote_.size() >= kMaxPeers) return;
    found = remote_.try_emplace(std::string(peer)).first;
  }
  found->second.Observe(predicted, seconds);
}

void CostModel::LearnStep(int64_t batch, int64_t context, double seconds) {
  step_correction_.Observe(RawStep(batch, context), seconds);
}

absl::StatusOr<std::vector<HeldOutResult>> PredictHeldOut(const CostPoints& points) {
  ASSIGN_OR_RETURN(const auto model, CostModel::Create(points));
  std::vector<HeldOutResult> results;
  for (const PrefillPoint& point : points.prefill) {
    if (!point.held_out) continue;
    results.push_back({fmt::format("prefill {} tokens after {}", point.tokens, point.prefix),
                       point.seconds, model->PrefillSeconds(point.tokens, point.prefix)});
  }
  for (const StepPoint& point : points.steps) {
    if (!point.held_out) continue;
    results.push_back({fmt::format("step of {} with {} tokens", point.batch, point.context),
                       point.seconds, model->StepSeconds(point.batch, point.context)});
  }
  return results;
}

}  // namespace smartgen::transfer
