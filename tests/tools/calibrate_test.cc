#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/base/log.h"
#include "tests/fakes/temp_folder.h"
#include "tools/calibration_report.h"
#include "tools/command.h"

namespace smartgen::tools {
namespace {

using testing::HasSubstr;
using transfer::Calibration;

struct Result {
  int code;
  std::string out;
  std::string err;
};

Result RunCalibrate(const Args& args) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Result result;
  result.code = Calibrate(args);
  result.out = testing::internal::GetCapturedStdout();
  result.err = testing::internal::GetCapturedStderr();
  return result;
}

class CalibrateTest : public testing::Test {
 protected:
  // On standard error, as in the tool.
  void SetUp() override { ASSERT_TRUE(base::InitLogging("test", "warn", "text").ok()); }
  // A model of two layers: what is measured means nothing, so noise is allowed.
  Args Quick(Args more = {}) const {
    Args args = {"--model",      std::string(SMARTGEN_TEST_DATA) + "/arch_llama",
                 "--max-tokens", "64",
                 "--max-batch",  "2",
                 "--runs",       "1",
                 "--threads",    "1",
                 "--compute",    "f32",
                 "--out",        path_,
                 "--allow-noise"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  fakes::TempFolder folder_;
  std::string path_ = folder_.path() + "/c.pb";
};

TEST_F(CalibrateTest, WritesAFileThatShowPrints) {
  const Result made = RunCalibrate(Quick());
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("held out"));
  EXPECT_THAT(made.err, HasSubstr("wrote " + path_));
  const auto calibration = Calibration::Load(path_);
  ASSERT_TRUE(calibration.ok()) << calibration.status();
  EXPECT_EQ(calibration->subject.compute, "f32");
  EXPECT_EQ(calibration->subject.threads, 1);
  EXPECT_THAT(calibration->model_name, HasSubstr("arch_llama"));
  EXPECT_EQ(calibration->layers, 2);
  // 2 layers, 2 KV heads of 16 values, K and V, 4 bytes each.
  EXPECT_EQ(calibration->kv_bytes_per_token, 2 * 2 * 16 * 2 * 4);
  const Result shown = RunCalibrate({"show", path_});
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_EQ(shown.out, made.out);
}

TEST_F(CalibrateTest, PrintsOneObjectOfJson) {
  const Result made = RunCalibrate(Quick({"--json"}));
  ASSERT_EQ(made.code, 0) << made.err;
  const auto json = nlohmann::json::parse(made.out);
  EXPECT_EQ(json["threads"], 1);
  EXPECT_GT(json["prefill"].size(), 3u);
  EXPECT_GT(json["steps"].size(), 3u);
  EXPECT_GT(json["prefill"][0]["seconds"].get<double>(), 0);
  EXPECT_GT(json["held_out_points"].get<int>(), 0);
  EXPECT_EQ(nlohmann::json::parse(RunCalibrate({"show", path_, "--json"}).out), json);
}

TEST_F(CalibrateTest, AnUnreachablePeerIsToldBeforeAnythingIsMeasured) {
  const Result result = RunCalibrate(Quick({"--peer", "127.0.0.1:1"}));
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("measuring the way from 127.0.0.1:1"));
  EXPECT_FALSE(Calibration::Load(path_).ok());
}

TEST_F(CalibrateTest, TooLittleMemoryForAPromptIsAnError) {
  const Result result = RunCalibrate(Quick({"--kv-bytes", "16KiB"}));
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("ask for fewer max-tokens"));
}

TEST_F(CalibrateTest, ValuesOutOfRangeAreRefused) {
  EXPECT_THAT(RunCalibrate(Quick({"--runs", "0"})).err, HasSubstr("runs: want 1 to 1000, got 0"));
  EXPECT_THAT(RunCalibrate(Quick({"--max-tokens", "63"})).err, HasSubstr("max-tokens: want 64 to"));
  EXPECT_THAT(RunCalibrate(Quick({"--out", ""})).err, HasSubstr("out: want the name"));
  EXPECT_THAT(RunCalibrate({"show", path_ + ".no"}).err, HasSubstr(path_ + ".no"));
  EXPECT_EQ(RunCalibrate({"show"}).code, 1);
}

TEST_F(CalibrateTest, WhatPredictsBadlyIsRefusedWithTheWayOut) {
  transfer::CostPoints points;
  for (const int64_t n : {16, 64, 256}) {
    points.prefill.push_back({n, 0, 0.001 * static_cast<double>(n), false});
  }
  points.prefill.push_back({128, 0, 0.128 / 1.14, true});
  EXPECT_TRUE(CheckHeldOut(points).ok());
  points.prefill.back().seconds = 0.128 / 1.16;
  const absl::Status status = CheckHeldOut(points);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(base::MessageOf(status)),
              HasSubstr("missed by 16 %, want at most 15 % (prefill 128 tokens after 0: measured "
                        "110.3 ms, predicted 128.0 ms)"));
  EXPECT_THAT(std::string(base::MessageOf(status)), HasSubstr("--allow-noise"));
}

TEST(CalibrationReportTest, TimesAndRatesReadWell) {
  EXPECT_EQ(SecondsText(2.5), "2.50 s");
  EXPECT_EQ(SecondsText(0.0314), "31.4 ms");
  EXPECT_EQ(SecondsText(4.2e-5), "42 us");
  EXPECT_EQ(RateText(1.25e9), "10.00 Gbit/s");
  EXPECT_EQ(RateText(1.25e6), "10 Mbit/s");
}

}  // namespace
}  // namespace smartgen::tools
