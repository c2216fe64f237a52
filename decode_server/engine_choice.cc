// How the next step of a request is made while KV is on the way: handed over, by fetching, or later
// (smartgen.md, section 6).
#include <algorithm>

#include "common/base/log.h"
#include "decode_server/engine.h"
#include "decode_server/engine_metrics.h"

namespace smartgen::decode_server {
namespace {

using transfer::Handover;
using transfer::StepKind;

// Tokens made here that the prefill side would have to make anew: more are never worth it, since
// what is missing becomes less while they are made.
constexpr int64_t kMaxReplayed = 32;
// Weight of the newest step's misses.
constexpr double kNew = 0.5;
// A wait that takes this much longer than was expected, and a little, is given up.
constexpr double kWaitPatience = 2;
constexpr base::Duration kWaitSlack = std::chrono::milliseconds(20);

double KvBytes(const PrefillAttempt::Progress& progress) {
  double bytes = 0;
  for (const auto& [path, count] : progress.path_bytes) {
    if (!transfer::IsOpaque(path)) bytes += static_cast<double>(count);
  }
  return bytes;
}

}  // namespace

double DecodeEngine::MissingBytes(const Request& request,
                                  const PrefillAttempt::Progress& progress) const {
  if (request.remote.kv_complete) return 0;
  const int64_t all = transfer::TravelBytes(
      parts_.pool->layout(), request.sequence->prefix_tokens(), request.remote.prompt_end);
  // Generated tokens' KV has come by the same paths; at most so much of it.
  const int64_t generated = std::max<int64_t>(request.length() - 1 - request.remote.prompt_end, 0);
  const double born =
      static_cast<double>(generated) * static_cast<double>(parts_.pool->layout().TokenBytes());
  const double arrived = std::max(KvBytes(progress) - born, 0.0);
  return std::max(static_cast<double>(all) - arrived, 0.0);
}

double DecodeEngine::SplitTrip(const transfer::LinkEstimate& link) const {
  const double bytes = static_cast<double>(parts_.executor->config().hidden_dim) * sizeof(float);
  return link.rtt_seconds + (link.bytes_per_second > 0 ? bytes / link.bytes_per_second : 0);
}

transfer::StepOutlook DecodeEngine::LookAhead(const Request& request, int from) const {
  const PrefillAttempt::Progress progress = request.remote.attempt->progress();
  const base::TimePoint now = parts_.clock->Now();
  const int layers = parts_.executor->config().num_layers();
  transfer::StepOutlook outlook;
  outlook.layers = layers;
  outlook.step_seconds = step_times_.step_seconds();
  outlook.bytes_per_second = progress.link.bytes_per_second;
  outlook.round_trip_seconds = progress.link.rtt_seconds;
  outlook.split_seconds =
      step_times_.SplitSeconds(request.remote.address, static_cast<double>(layers - from) / layers,
                               SplitTrip(progress.link), now);
  if (from > 0) {  // the first layers run here
    outlook.split_seconds += step_times_.step_seconds() * from / layers;
  }
  // Before token 1 is delivered, the prompt's end is held there and not yet here.
  outlook.replayed = std::max<int64_t>(request.length() - 1 - request.outlook.held_there, 0);
  outlook.remaining_bytes = MissingBytes(request, progress);
  return outlook;
}

bool DecodeEngine::MayChoose(const Request& request) const {
  const Handover handover = request.spec.transfer.handover;
  return request.stats.mode == Mode::kSmartGen &&
         (handover == Handover::kAuto || handover == Handover::kAttend);
}

StepKind DecodeEngine::ChooseSelectingStep(Request& request, int64_t owed_bytes) {
  const Handover handover = request.spec.transfer.handover;
  // The baselines fetch; and so does who must.
  if (!MayChoose(request)) {
    return handover == Handover::kSplit && request.length() - 1 == request.outlook.held_there
               ? StepKind::kSplit
               : StepKind::kFetch;
  }
  transfer::StepOutlook outlook = LookAhead(request, 0);
  // A link that is not known yet may be thin, and what follows in idle time soon tells.
  if (outlook.bytes_per_second <= 0) {
    return outlook.replayed == 0 ? StepKind::kSplit : StepKind::kFetch;
  }
  outlook.owed_bytes = static_cast<double>(owed_bytes);
  const auto& seen = request.outlook;
  if (seen.missed_bytes >= 0 && seen.missing_then > 0) {
    outlook.missed_bytes = seen.missed_bytes * outlook.remaining_bytes / seen.missing_then;
  } else {
    const auto& options = request.spec.transfer;
    outlook.missed_bytes = options.selection_budget * outlook.remaining_bytes *
                           step_times_.MissShare(options.selector);
  }
  outlook.remaining_bytes += static_cast<double>(owed_bytes);
  transfer::StepCosts costs = transfer::PredictStep(outlook);
  costs.attend = transfer::StepCosts::kNever;  // queries are shipped by full attention alone
  if (outlook.replayed > kMaxReplayed) costs.split = transfer::StepCosts::kNever;
  if (!request.spec.transfer.speculation) costs.wait = transfer::StepCosts::kNever;
  return WaitsOn(request, costs);
}

StepKind DecodeEngine::ChooseExactStep(Request& request, int layers) {
  const Handover handover = request.spec.transfer.handover;
  if (handover == Handover::kNone) {
    WaitUntil(request, kEndOfTime);
    return StepKind::kWait;
  }
  if (handover != Handover::kAuto) return StepKind::kSplit;
  transfer::StepOutlook outlook = LookAhead(request, layers);
  if (outlook.bytes_per_second <= 0) return StepKind::kSplit;
  const int64_t position = request.length() - 1;
  const int64_t prompt_end = request.remote.prompt_end;
  for (int layer = layers; layer < outlook.layers && prompt_end < position; ++layer) {
    const int64_t until = request.sequence->FirstNotLocal(layer, prompt_end, position);
    outlook.remaining_bytes +=
        static_cast<double>((position - until) * parts_.pool->layout().TokenBytes(layer));
  }
  transfer::StepCosts costs = transfer::PredictStep(outlook);
  costs.fetch = costs.attend = transfer::StepCosts::kNever;
  return WaitsOn(request, costs);
}

bool DecodeEngine::ShipsQueries(const Request& request) const {
  const Handover handover = request.spec.transfer.handover;
  if (handover != Handover::kAuto) return handover == Handover::kAttend;
  transfer::StepOutlook outlook = LookAhead(request, 0);
  if (outlook.bytes_per_second <= 0 || outlook.step_seconds <= 0) return false;
  const model::LayerConfig& layer = parts_.executor->config().layers.front();
  outlook.attend_bytes =
      static_cast<double>(layer.num_heads) * (layer.head_dim + 1) * sizeof(float);
  outlook.attend_queue_seconds =
      std::max(step_times_.QueueSeconds(request.remote.address, parts_.clock->Now()), 0.0);
  transfer::StepCosts costs = transfer::PredictStep(outlook);
  costs.fetch = costs.wait = transfer::StepCosts::kNever;
  return transfer::Soonest(costs) == StepKind::kAttend;
}

StepKind DecodeEngine::WaitsOn(Request& request, const transfer::StepCosts& costs) {
  auto& outlook = request.outlook;
  const base::TimePoint now = parts_.clock->Now();
  const StepKind kind = transfer::Soonest(costs);
  if (outlook.waited || (outlook.wait_until != base::TimePoint{} && now > outlook.wait_until)) {
    outlook.waited = true;
    transfer::StepCosts others = costs;
    others.wait = transfer::StepCosts::kNever;
    return transfer::Soonest(others);
  }
  if (kind == StepKind::kWait) {
    WaitUntil(request, now + base::FromSeconds(kWaitPatience * costs.wait) + kWaitSlack);
  }
  return kind;
}

void DecodeEngine::WaitUntil(Request& request, base::TimePoint until) {
  if (request.outlook.wait_until != base::TimePoint{}) return;
  request.outlook.wait_until = until;
  CountStep(request, StepKind::kWait);
}

void DecodeEngine::CountStep(Request& request, StepKind kind) {
  ++request.stats.step_kinds[kind];
  hot_->step_choices.at(static_cast<size_t>(kind))->Add();
  if (kind == StepKind::kWait) return;
  request.outlook.waited = false;
  request.outlook.wait_until = {};
}

void DecodeEngine::LearnMisses(Request& request, int64_t remote_entries) {
  int64_t heads = 0;
  for (const auto& layer : parts_.pool->layout().layers) heads += layer.kv_heads;
  const double entry_bytes =
      static_cast<double>(parts_.pool->layout().TokenBytes()) / static_cast<double>(heads);
  const double missed = static_cast<double>(remote_entries) * entry_bytes;
  auto& outlook = request.outlook;
  const double missing = std::max(outlook.missing_before, 1.0);
  if (outlook.missed_bytes < 0) {
    const auto& options = request.spec.transfer;
    step_times_.Missed(options.selector, options.selection_budget * missing, missed);
    outlook.missed_bytes = missed;
  } else {
    // What is selected one step after the other is much the same.
    const double scaled = outlook.missed_bytes * missing / std::max(outlook.missing_then, 1.0);
    outlook.missed_bytes = scaled + kNew * (missed - scaled);
  }
  outlook.missing_then = missing;
}

}  // namespace smartgen::decode_server
