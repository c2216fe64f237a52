// bench crossover --calibration: what calibrations predict, without any daemon.
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "tools/bench/benchmarks.h"
#include "tools/bench/common_options.h"
#include "tools/bench/forecast.h"
#include "tools/bench/svg.h"

namespace smartgen::tools::bench {
namespace {

constexpr Command kCommand = {
    "bench crossover",
    "--calibration F [--prefill-calibration F] [--lengths 256,1024] [--bandwidths 100,1000]",
    "time to the second token by local, full and exact, as calibrations predict it", nullptr};
constexpr double kMaxLength = 1 << 24;

struct Options {
  std::string calibration;
  std::string prefill_calibration;
  std::vector<std::string> lengths = {"64", "256", "1024", "4096", "16384"};
  std::vector<std::string> bandwidths = {"100", "1000", "10000"};
  base::Duration round_trip{0};
  base::Duration queue{0};
  int streams = 0;
  std::string json;
  std::string svg_dir;

  void Bind(config::Binder& b) {
    b.Field("calibration", &calibration, "of the machine that decodes, made by smartgen calibrate");
    b.Field("prefill-calibration", &prefill_calibration,
            "of the machine that prefills; empty: as the other");
    b.Field("lengths", &lengths, "prompt lengths in tokens");
    b.Field("bandwidths", &bandwidths, "of the link, Mbit/s of payload");
    b.Time("round-trip", &round_trip,
           "between the machines; 0: as measured with calibrate --peer, else 1 ms");
    b.Time("queue", &queue, "what a prompt waits on the prefill machine");
    b.Field("streams", &streams, "others that decode");
    b.Field("json", &json, "file to write; empty: none");
    b.Field("svg-dir", &svg_dir, "folder for plots; empty: none");
    b.Check([this]() -> absl::Status {
      if (streams < 0 || streams > 1024) {
        return base::InvalidArgument("streams: want 0 to 1024, got {}", streams);
      }
      if (round_trip.count() < 0 || queue.count() < 0) {
        return base::InvalidArgument("round-trip and queue: want no negative times");
      }
      return absl::OkStatus();
    });
  }
};

absl::StatusOr<ForecastInput> MakeInput(const Options& options) {
  ForecastInput input;
  ASSIGN_OR_RETURN(input.decode, transfer::Calibration::Load(options.calibration));
  input.prefill = input.decode;
  if (!options.prefill_calibration.empty()) {
    ASSIGN_OR_RETURN(input.prefill, transfer::Calibration::Load(options.prefill_calibration));
  }
  ASSIGN_OR_RETURN(const auto lengths, ParseNumbers("lengths", options.lengths, 1, kMaxLength));
  for (const double length : lengths) input.lengths.push_back(static_cast<int64_t>(length));
  ASSIGN_OR_RETURN(const auto megabits, ParseNumbers("bandwidths", options.bandwidths, 0.1, 1e6));
  for (const double rate : megabits) input.bytes_per_second.push_back(rate * 1e6 / 8);
  input.round_trip_seconds = base::ToSeconds(options.round_trip);
  if (input.round_trip_seconds == 0) {
    const auto& links = input.decode.points.links;
    input.round_trip_seconds = links.empty() ? 1e-3 : links.front().round_trip_seconds;
  }
  input.queue_seconds = base::ToSeconds(options.queue);
  input.other_streams = options.streams;
  return input;
}

absl::Status RunForecast(const Options& options) {
  ASSIGN_OR_RETURN(const ForecastInput input, MakeInput(options));
  ASSIGN_OR_RETURN(const Forecast forecast, MakeForecast(input));
  std::fputs(ForecastTable(input, forecast).c_str(), stdout);
  std::fflush(stdout);
  if (!options.json.empty()) {
    RETURN_IF_ERROR(WriteTextFile(options.json, ForecastJson(input, forecast).dump(2) + "\n"));
  }
  if (options.svg_dir.empty()) return absl::OkStatus();
  std::error_code error;
  std::filesystem::create_directories(options.svg_dir, error);
  if (error) {
    return base::Unavailable("svg-dir: cannot make {}: {}", options.svg_dir, error.message());
  }
  for (const auto& [name, text] : ForecastPlots(input, forecast)) {
    RETURN_IF_ERROR(WriteTextFile(options.svg_dir + "/" + name, text));
  }
  return absl::OkStatus();
}

}  // namespace

bool AsksForForecast(const Args& args) {
  return std::any_of(args.begin(), args.end(), [](const std::string& arg) {
    return arg == "--calibration" || arg.starts_with("--calibration=");
  });
}

int CrossoverForecast(const Args& args) {
  Options options;
  const Parsed parsed = ParseFlags(kCommand, args, [&](config::Binder& b) { options.Bind(b); });
  if (!parsed.go_on) return parsed.exit_code;
  const absl::Status status = RunForecast(options);
  return status.ok() ? 0 : Fail(kCommand.name, status);
}

}  // namespace smartgen::tools::bench
