#include "tools/bench/forecast.h"

#include <algorithm>

#include "tools/bench/svg.h"
#include "tools/bench/table.h"
#include "tools/calibration_report.h"

namespace smartgen::tools::bench {
namespace {

using Json = nlohmann::ordered_json;
using transfer::CostModel;

absl::Status CheckInput(const ForecastInput& input) {
  const auto& here = input.decode.subject;
  const auto& there = input.prefill.subject;
  if (here.model_fingerprint != there.model_fingerprint || here.compute != there.compute) {
    return base::InvalidArgument(
        "want calibrations of the same model and compute type, got {} {} to decode and {} {} to "
        "prefill",
        here.model_fingerprint, here.compute, there.model_fingerprint, there.compute);
  }
  if (input.lengths.empty() || input.bytes_per_second.empty()) {
    return base::InvalidArgument("want at least one length and one bandwidth");
  }
  return absl::OkStatus();
}

std::string Milliseconds(double seconds) { return fmt::format("{:.1f}", seconds * 1e3); }

std::string Subtitle(const ForecastInput& input) {
  return fmt::format(
      "predicted: {}, {}, {} threads on {}, {} threads to prefill on {}, round trip {}",
      input.decode.model_name, input.decode.subject.compute, input.decode.subject.threads,
      input.decode.subject.cpu, input.prefill.subject.threads, input.prefill.subject.cpu,
      SecondsText(input.round_trip_seconds));
}

}  // namespace

std::string Forecast::Row::soonest() const {
  if (ttst.local <= ttst.full && ttst.local <= ttst.exact) return "local";
  return ttst.full <= ttst.exact ? "full" : "exact";
}

absl::StatusOr<Forecast> MakeForecast(const ForecastInput& input) {
  RETURN_IF_ERROR(CheckInput(input));
  ASSIGN_OR_RETURN(const auto here, CostModel::Create(input.decode.points));
  ASSIGN_OR_RETURN(const auto there, CostModel::Create(input.prefill.points));
  Forecast forecast;
  for (const int64_t tokens : input.lengths) {
    for (const double rate : input.bytes_per_second) {
      Forecast::Row row;
      row.tokens = tokens;
      row.bytes_per_second = rate;
      row.times.local_prefill_seconds = here->PrefillSeconds(tokens, 0);
      row.times.step_seconds = here->StepSeconds(1 + input.other_streams, tokens);
      row.times.prefill_seconds = there->PrefillSeconds(tokens, 0);
      row.times.queue_seconds = input.queue_seconds;
      row.times.transfer_seconds =
          static_cast<double>(tokens * input.decode.kv_bytes_per_token) / rate;
      row.times.round_trip_seconds = input.round_trip_seconds;
      row.times.piece_share =
          transfer::PieceShare(input.prefill.layers, tokens, input.prefill.max_prefill_tokens);
      row.ttst = transfer::PredictTtst(row.times);
      if (row.ttst.local <= 0 || row.ttst.full <= 0) {
        return base::InvalidArgument(
            "a calibration lacks prompts or decode steps, or the round "
            "trip is not known: local {:g} s, full {:g} s",
            row.ttst.local, row.ttst.full);
      }
      row.local_wins = transfer::LocalWins(row.times, input.other_streams);
      forecast.rows.push_back(std::move(row));
    }
  }
  return forecast;
}

std::string ForecastTable(const ForecastInput& input, const Forecast& forecast) {
  Table table;
  for (const char* name : {"tokens", "link", "T_p ms", "T_t ms", "R", "local ms", "full ms",
                           "exact ms", "soonest", "auto"}) {
    table.AddColumn(name, std::string_view(name) == "soonest" || std::string_view(name) == "auto");
  }
  for (const Forecast::Row& row : forecast.rows) {
    table.AddRow({std::to_string(row.tokens), RateText(row.bytes_per_second),
                  Milliseconds(row.times.prefill_seconds), Milliseconds(row.times.transfer_seconds),
                  fmt::format("{:.2f}", row.times.transfer_seconds / row.times.prefill_seconds),
                  Milliseconds(row.ttst.local), Milliseconds(row.ttst.full),
                  Milliseconds(row.ttst.exact), row.soonest(), row.local_wins ? "local" : "exact"});
  }
  return fmt::format("Time to second token, {}, queue {}, {} other streams.\n\n{}", Subtitle(input),
                     SecondsText(input.queue_seconds), input.other_streams, table.Render());
}

Json ForecastJson(const ForecastInput& input, const Forecast& forecast) {
  Json rows = Json::array();
  for (const Forecast::Row& row : forecast.rows) {
    rows.push_back(Json{{"tokens", row.tokens},
                        {"bytes_per_second", row.bytes_per_second},
                        {"local_prefill_seconds", row.times.local_prefill_seconds},
                        {"prefill_seconds", row.times.prefill_seconds},
                        {"transfer_seconds", row.times.transfer_seconds},
                        {"step_seconds", row.times.step_seconds},
                        {"local", row.ttst.local},
                        {"full", row.ttst.full},
                        {"exact", row.ttst.exact},
                        {"soonest", row.soonest()},
                        {"auto", row.local_wins ? "local" : "exact"}});
  }
  return Json{{"benchmark", "crossover"},
              {"measured", false},
              {"model", input.decode.model_name},
              {"compute", input.decode.subject.compute},
              {"decode_cpu", input.decode.subject.cpu},
              {"decode_threads", input.decode.subject.threads},
              {"prefill_cpu", input.prefill.subject.cpu},
              {"prefill_threads", input.prefill.subject.threads},
              {"round_trip_seconds", input.round_trip_seconds},
              {"queue_seconds", input.queue_seconds},
              {"other_streams", input.other_streams},
              {"rows", rows}};
}

std::vector<std::pair<std::string, std::string>> ForecastPlots(const ForecastInput& input,
                                                               const Forecast& forecast) {
  std::vector<std::pair<std::string, std::string>> files;
  for (const double rate : input.bytes_per_second) {
    LinePlot plot;
    plot.text = {fmt::format("Time to second token at {}", RateText(rate)), Subtitle(input),
                 "prompt tokens", "seconds from arrival to token 2"};
    plot.series = {{.name = "local"}, {.name = "full"}, {.name = "exact"}};
    for (const Forecast::Row& row : forecast.rows) {
      if (row.bytes_per_second != rate) continue;
      const auto x = static_cast<double>(row.tokens);
      plot.series[0].points.emplace_back(x, row.ttst.local);
      plot.series[1].points.emplace_back(x, row.ttst.full);
      plot.series[2].points.emplace_back(x, row.ttst.exact);
    }
    for (auto& series : plot.series) std::sort(series.points.begin(), series.points.end());
    files.emplace_back(fmt::format("forecast_{:.0f}_mbit.svg", rate * 8e-6), ToSvg(plot));
  }
  return files;
}

}  // namespace smartgen::tools::bench
