#include "tools/calibration_report.h"

#include <cmath>
#include <ctime>

namespace smartgen::tools {
namespace {

using Json = nlohmann::ordered_json;
using transfer::CostModel;
using transfer::CostPoints;

std::string UtcText(int64_t unix_seconds) {
  const auto time = static_cast<time_t>(unix_seconds);
  tm parts{};
  if (gmtime_r(&time, &parts) == nullptr) return "an unknown time";
  char text[32];
  strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &parts);
  return text;
}

// "  +3.1 %", and a mark where the point was held out.
std::string ErrorText(double predicted, double measured, bool held_out) {
  return fmt::format("{:>+8.1f} %{}", (predicted / measured - 1) * 100,
                     held_out ? "  held out" : "");
}

std::string PrefillText(const CostPoints& points, const CostModel& model) {
  if (points.prefill.empty()) return "";
  std::string text = fmt::format("\n{:>12} {:>12} {:>12} {:>12} {:>10}\n", "prompt",
                                 "cached before", "measured", "predicted", "error");
  for (const auto& p : points.prefill) {
    const double predicted = model.PrefillSeconds(p.tokens, p.prefix);
    text +=
        fmt::format("{:>12} {:>13} {:>12} {:>12} {}\n", p.tokens, p.prefix, SecondsText(p.seconds),
                    SecondsText(predicted), ErrorText(predicted, p.seconds, p.held_out));
  }
  return text;
}

std::string StepText(const CostPoints& points, const CostModel& model) {
  if (points.steps.empty()) return "";
  std::string text = fmt::format("\n{:>12} {:>13} {:>12} {:>12} {:>10}\n", "step of", "context",
                                 "measured", "predicted", "error");
  for (const auto& p : points.steps) {
    const double predicted = model.StepSeconds(p.batch, p.context);
    text +=
        fmt::format("{:>12} {:>13} {:>12} {:>12} {}\n", p.batch, p.context, SecondsText(p.seconds),
                    SecondsText(predicted), ErrorText(predicted, p.seconds, p.held_out));
  }
  return text;
}

std::string LinkText(const CostPoints& points) {
  std::string text;
  for (const auto& link : points.links) {
    text += fmt::format("\nfrom {}: {}, round trip {}\n", link.peer,
                        RateText(link.bytes_per_second), SecondsText(link.round_trip_seconds));
  }
  return text;
}

}  // namespace

std::string SecondsText(double seconds) {
  if (seconds >= 1) return fmt::format("{:.2f} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.1f} ms", seconds * 1e3);
  return fmt::format("{:.0f} us", seconds * 1e6);
}

std::string RateText(double bytes_per_second) {
  const double megabits = bytes_per_second * 8 / 1e6;
  if (megabits >= 1000) return fmt::format("{:.2f} Gbit/s", megabits / 1000);
  return fmt::format("{:.3g} Mbit/s", megabits);
}

absl::StatusOr<HeldOutSummary> Summarize(const CostPoints& points) {
  ASSIGN_OR_RETURN(const auto results, transfer::PredictHeldOut(points));
  HeldOutSummary summary;
  for (const transfer::HeldOutResult& result : results) {
    const double error = std::abs(result.error());
    ++summary.points;
    summary.mean += error;
    if (error < summary.worst) continue;
    summary.worst = error;
    summary.worst_what = fmt::format("{}: measured {}, predicted {}", result.what,
                                     SecondsText(result.measured), SecondsText(result.predicted));
  }
  if (summary.points > 0) summary.mean /= static_cast<double>(summary.points);
  return summary;
}

absl::Status CheckHeldOut(const CostPoints& points) {
  ASSIGN_OR_RETURN(const HeldOutSummary summary, Summarize(points));
  if (summary.worst <= transfer::kMaxHeldOutError) return absl::OkStatus();
  return base::FailedPrecondition(
      "a point held out is missed by {:.0f} %, want at most {:.0f} % ({}); something else may be "
      "using this machine: repeat when it is quiet, or with more --runs; --allow-noise writes the "
      "file all the same. Nothing was written",
      summary.worst * 100, transfer::kMaxHeldOutError * 100, summary.worst_what);
}

absl::StatusOr<std::string> CalibrationText(const transfer::Calibration& c) {
  ASSIGN_OR_RETURN(const auto model, CostModel::Create(c.points));
  ASSIGN_OR_RETURN(const HeldOutSummary summary, Summarize(c.points));
  std::string text =
      fmt::format("{} ({}), compute {}, {} threads, {}\nmade {} by: {}\n", c.model_name,
                  c.subject.model_fingerprint, c.subject.compute, c.subject.threads, c.subject.cpu,
                  UtcText(c.unix_seconds), c.command);
  text += PrefillText(c.points, *model) + StepText(c.points, *model) + LinkText(c.points);
  if (summary.points > 0) {
    text +=
        fmt::format("\n{} points held out: error {:.1f} % in the mean, {:.1f} % at worst ({})\n",
                    summary.points, summary.mean * 100, summary.worst * 100, summary.worst_what);
  }
  return text;
}

absl::StatusOr<Json> CalibrationJson(const transfer::Calibration& c) {
  ASSIGN_OR_RETURN(const auto model, CostModel::Create(c.points));
  ASSIGN_OR_RETURN(const HeldOutSummary summary, Summarize(c.points));
  Json prefill = Json::array();
  for (const auto& p : c.points.prefill) {
    prefill.push_back(Json{{"tokens", p.tokens},
                           {"prefix", p.prefix},
                           {"seconds", p.seconds},
                           {"predicted", model->PrefillSeconds(p.tokens, p.prefix)},
                           {"held_out", p.held_out}});
  }
  Json steps = Json::array();
  for (const auto& p : c.points.steps) {
    steps.push_back(Json{{"batch", p.batch},
                         {"context", p.context},
                         {"seconds", p.seconds},
                         {"predicted", model->StepSeconds(p.batch, p.context)},
                         {"held_out", p.held_out}});
  }
  Json links = Json::array();
  for (const auto& link : c.points.links) {
    links.push_back(Json{{"peer", link.peer},
                         {"bytes_per_second", link.bytes_per_second},
                         {"round_trip_seconds", link.round_trip_seconds}});
  }
  return Json{{"model", c.model_name},
              {"model_fingerprint", c.subject.model_fingerprint},
              {"compute", c.subject.compute},
              {"cpu", c.subject.cpu},
              {"threads", c.subject.threads},
              {"max_prefill_tokens", c.max_prefill_tokens},
              {"layers", c.layers},
              {"kv_bytes_per_token", c.kv_bytes_per_token},
              {"command", c.command},
              {"unix_seconds", c.unix_seconds},
              {"prefill", prefill},
              {"steps", steps},
              {"links", links},
              {"held_out_points", summary.points},
              {"held_out_error_mean", summary.mean},
              {"held_out_error_worst", summary.worst}};
}

}  // namespace smartgen::tools
