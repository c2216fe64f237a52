#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/fakes/temp_folder.h"
#include "tools/bench/benchmarks.h"
#include "tools/bench/forecast.h"

namespace smartgen::tools::bench {
namespace {

using testing::HasSubstr;

// 1 ms a token, 10 ms a step; 10,000 bytes of KV a token in 10 layers.
transfer::Calibration Example() {
  transfer::Calibration c;
  c.subject = {.model_fingerprint = "f00d", .compute = "bf16", .cpu = "A CPU", .threads = 2};
  c.model_name = "tiny";
  c.max_prefill_tokens = 2048;
  c.layers = 10;
  c.kv_bytes_per_token = 10000;
  c.points.prefill = {{10, 0, 0.01, false}, {1000, 0, 1, false}};
  c.points.steps = {{1, 10, 0.01, false}, {2, 10, 0.01, false}};
  c.points.links = {{"10.0.0.2:7100", 1e9, 2e-3}};
  return c;
}

ForecastInput Input() {
  ForecastInput input;
  input.decode = input.prefill = Example();
  input.lengths = {10, 1000};
  input.bytes_per_second = {1e6, 1e9};
  input.round_trip_seconds = 2e-3;
  return input;
}

TEST(ForecastTest, EachLengthAndBandwidthGetsTheTimesOfItsParts) {
  const auto forecast = MakeForecast(Input());
  ASSERT_TRUE(forecast.ok()) << forecast.status();
  ASSERT_EQ(forecast->rows.size(), 4u);
  const Forecast::Row& slow = forecast->rows[2];
  EXPECT_EQ(slow.tokens, 1000);
  EXPECT_EQ(slow.bytes_per_second, 1e6);
  EXPECT_NEAR(slow.ttst.local, 1 + 0.01, 1e-9);
  EXPECT_NEAR(slow.ttst.full, 0.002 + (0.1 * 1 + 10) + 0.01, 1e-9);
  EXPECT_NEAR(slow.ttst.exact, 0.002 + 1 + 0.002 + 0.01, 1e-9);
  const Forecast::Row& fast = forecast->rows[3];
  EXPECT_NEAR(fast.ttst.full, 0.002 + (1 + 0.1 * 0.01) + 0.01, 1e-9);
}

TEST(ForecastTest, AutoKeepsShortPromptsAndSoonestIsTheLeast) {
  ForecastInput input = Input();
  // A prefill machine twice as fast.
  for (auto& point : input.prefill.points.prefill) point.seconds /= 2;
  const auto forecast = MakeForecast(input);
  ASSERT_TRUE(forecast.ok()) << forecast.status();
  EXPECT_EQ(forecast->rows[0].soonest(), "exact");  // 10 tokens: 9 ms there and back, 10 ms here
  EXPECT_FALSE(forecast->rows[2].local_wins);
  EXPECT_EQ(forecast->rows[2].soonest(), "exact");
  EXPECT_EQ(forecast->rows[3].soonest(), "full");
  input.queue_seconds = 1;
  const auto busy = MakeForecast(input);
  ASSERT_TRUE(busy.ok());
  EXPECT_EQ(busy->rows[0].soonest(), "local");
  EXPECT_TRUE(busy->rows[0].local_wins);
}

TEST(ForecastTest, CalibrationsThatDoNotGoTogetherAreRefused) {
  ForecastInput input = Input();
  input.prefill.subject.compute = "f32";
  EXPECT_THAT(std::string(base::MessageOf(MakeForecast(input).status())),
              HasSubstr("f00d bf16 to decode and f00d f32 to prefill"));
  input = Input();
  input.decode.points.steps.clear();
  EXPECT_THAT(std::string(base::MessageOf(MakeForecast(input).status())), HasSubstr("lacks"));
  input = Input();
  input.lengths.clear();
  EXPECT_FALSE(MakeForecast(input).ok());
}

TEST(ForecastTest, TheCommandPrintsATableAndWritesJsonAndPlots) {
  const fakes::TempFolder made;
  const std::string folder = made.path();
  ASSERT_TRUE(Example().Save(folder + "/c.pb").ok());
  testing::internal::CaptureStdout();
  const int code =
      Crossover({"--calibration", folder + "/c.pb", "--lengths", "10,1000", "--bandwidths",
                 "8,8000", "--json", folder + "/out.json", "--svg-dir", folder + "/plots"});
  const std::string table = testing::internal::GetCapturedStdout();
  EXPECT_EQ(code, 0);
  EXPECT_THAT(table, HasSubstr("round trip 2.0 ms"));  // of the calibration's link
  EXPECT_THAT(table, HasSubstr("| 8.00 Gbit/s |"));
  const auto json = nlohmann::json::parse(std::ifstream(folder + "/out.json"));
  EXPECT_EQ(json["rows"].size(), 4u);
  EXPECT_EQ(json["measured"], false);
  EXPECT_NEAR(json["rows"][2]["local"].get<double>(), 1.01, 1e-6);
  for (const char* name : {"forecast_8_mbit.svg", "forecast_8000_mbit.svg"}) {
    std::ifstream svg(folder + "/plots/" + name);
    const std::string text((std::istreambuf_iterator<char>(svg)), {});
    EXPECT_THAT(text, HasSubstr("<svg")) << name;
    EXPECT_THAT(text, HasSubstr("exact")) << name;
  }
}

TEST(ForecastTest, OnlyACalibrationFileAsksForIt) {
  EXPECT_TRUE(AsksForForecast({"--lengths", "1", "--calibration=c.pb"}));
  EXPECT_TRUE(AsksForForecast({"--calibration", "c.pb"}));
  EXPECT_FALSE(AsksForForecast({"--calibration-runs", "3"}));
  EXPECT_FALSE(AsksForForecast({}));
}

}  // namespace
}  // namespace smartgen::tools::bench
