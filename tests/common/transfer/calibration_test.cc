#include "common/transfer/calibration.h"
#include "tests/fakes/temp_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <limits>

namespace smartgen::transfer {
namespace {

using testing::HasSubstr;

Calibration Example() {
  Calibration c;
  c.subject = {.model_fingerprint = "f00d", .compute = "bf16", .cpu = "A CPU", .threads = 2};
  c.model_name = "tiny";
  c.max_prefill_tokens = 2048;
  c.layers = 30;
  c.kv_bytes_per_token = 23040;
  c.command = "smartgen calibrate --model tiny";
  c.unix_seconds = 1'700'000'000;
  c.points.prefill = {{16, 0, 0.05, false}, {1024, 0, 2.5, false}, {128, 512, 0.4, true}};
  c.points.steps = {{1, 16, 0.02, false}, {8, 1024, 0.06, false}};
  c.points.links = {{"10.0.0.2:7100", 1.25e9, 2e-4}};
  return c;
}

std::string Message(const absl::Status& status) { return std::string(base::MessageOf(status)); }

class CalibrationFileTest : public ::testing::Test {
 protected:
  fakes::TempFolder folder_;
  std::string path_ = folder_.path() + "/c.pb";
  void Write(const std::string& bytes) { std::ofstream(path_, std::ios::binary) << bytes; }
  std::string Read() {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

TEST_F(CalibrationFileTest, ComesBackAsItWas) {
  const Calibration c = Example();
  ASSERT_TRUE(c.Save(path_).ok());
  const auto loaded = Calibration::Load(path_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_TRUE(loaded->CheckFor(c.subject).ok());
  EXPECT_EQ(loaded->model_name, c.model_name);
  EXPECT_EQ(loaded->max_prefill_tokens, c.max_prefill_tokens);
  EXPECT_EQ(loaded->layers, c.layers);
  EXPECT_EQ(loaded->kv_bytes_per_token, c.kv_bytes_per_token);
  EXPECT_EQ(loaded->command, c.command);
  EXPECT_EQ(loaded->unix_seconds, c.unix_seconds);
  ASSERT_EQ(loaded->points.prefill.size(), 3u);
  EXPECT_EQ(loaded->points.prefill[2].tokens, 128);
  EXPECT_EQ(loaded->points.prefill[2].prefix, 512);
  EXPECT_EQ(loaded->points.prefill[2].seconds, 0.4);
  EXPECT_TRUE(loaded->points.prefill[2].held_out);
  ASSERT_EQ(loaded->points.steps.size(), 2u);
  EXPECT_EQ(loaded->points.steps[1].batch, 8);
  EXPECT_EQ(loaded->points.steps[1].context, 1024);
  EXPECT_EQ(loaded->points.steps[1].seconds, 0.06);
  ASSERT_EQ(loaded->points.links.size(), 1u);
  EXPECT_EQ(loaded->points.links[0].peer, "10.0.0.2:7100");
  EXPECT_EQ(loaded->points.links[0].bytes_per_second, 1.25e9);
  EXPECT_EQ(loaded->points.links[0].round_trip_seconds, 2e-4);
}

TEST_F(CalibrationFileTest, SavingReplacesTheWholeFileAndLeavesNothingBeside) {
  Write(std::string(100'000, 'x'));
  ASSERT_TRUE(Example().Save(path_).ok());
  EXPECT_TRUE(Calibration::Load(path_).ok());
  EXPECT_FALSE(std::ifstream(path_ + ".tmp").good());
}

TEST_F(CalibrationFileTest, WhereNothingCanBeWrittenSaysSo) {
  EXPECT_EQ(Example().Save("/no/such/folder/c.pb").code(), absl::StatusCode::kUnavailable);
}

TEST_F(CalibrationFileTest, DamagedFilesAreRefused) {
  EXPECT_EQ(Calibration::Load(path_ + ".no").status().code(), absl::StatusCode::kNotFound);
  for (const char* bytes : {"", "GGUF and other things"}) {
    Write(bytes);
    EXPECT_THAT(Message(Calibration::Load(path_).status()),
                HasSubstr("not a SmartGen calibration"));
  }
  Write(std::string((1 << 20) + 1, 'x'));
  EXPECT_THAT(Message(Calibration::Load(path_).status()), HasSubstr("want at most 1048576 bytes"));
  ASSERT_TRUE(Example().Save(path_).ok());
  const std::string bytes = Read();
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    Write(bytes.substr(0, cut));
    const auto loaded = Calibration::Load(path_);
    if (!loaded.ok()) continue;
    // Cut between two fields it is a message still, of fewer points.
    EXPECT_LT(loaded->points.links.size() + loaded->points.steps.size(), 3u) << cut;
  }
}

TEST_F(CalibrationFileTest, AnotherVersionIsRefusedWithBothNamed) {
  ASSERT_TRUE(Example().Save(path_).ok());
  std::string bytes = Read();
  // Field 2, varint, after the five bytes of the magic.
  ASSERT_EQ(bytes[5], 0x10);
  ASSERT_EQ(bytes[6], static_cast<char>(kCalibrationVersion));
  bytes[6] = 77;
  Write(bytes);
  EXPECT_THAT(Message(Calibration::Load(path_).status()),
              HasSubstr("want version 1, the file has 77"));
}

TEST(CalibrationTest, IsRefusedWhereAnythingThatSpeedHangsOnDiffers) {
  const Calibration c = Example();
  const std::vector<std::pair<std::function<void(Calibration::Subject&)>, const char*>> cases = {
      {[](auto& s) { s.model_fingerprint = "beef"; }, "model: made for f00d, here it is beef"},
      {[](auto& s) { s.compute = "f32"; }, "compute: made for bf16, here it is f32"},
      {[](auto& s) { s.cpu = "B CPU"; }, "cpu: made for A CPU, here it is B CPU"},
      {[](auto& s) { s.threads = 4; }, "threads: made for 2, here it is 4"},
  };
  for (const auto& [change, message] : cases) {
    Calibration::Subject ours = c.subject;
    change(ours);
    const absl::Status status = c.CheckFor(ours);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(Message(status), HasSubstr(message));
  }
}

TEST(CalibrationTest, NumbersBeyondTheirLimitsAreRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::pair<std::function<void(Calibration&)>, const char*>> cases = {
      {[](auto& c) { c.subject.threads = 0; }, "threads: want 1 to"},
      {[](auto& c) { c.layers = 0; }, "layers: want 1 to"},
      {[](auto& c) { c.kv_bytes_per_token = -1; }, "kv_bytes_per_token: want 1 to"},
      {[](auto& c) { c.max_prefill_tokens = 0; }, "max_prefill_tokens: want 1 to"},
      {[](auto& c) { c.command.assign(5000, 'x'); }, "command: want at most 4096 bytes, got 5000"},
      {[](auto& c) { c.points.prefill.resize(5000); }, "prefill points: want 0 to 4096, got 5000"},
      {[](auto& c) { c.points.prefill[0].tokens = 0; }, "tokens: want 1 to"},
      {[](auto& c) { c.points.prefill[0].prefix = 1 << 25; }, "prefix: want 0 to"},
      {[](auto& c) { c.points.prefill[0].seconds = 0; }, "seconds: want a number above 0"},
      {[&](auto& c) { c.points.steps[0].seconds = nan; }, "got nan"},
      {[](auto& c) { c.points.steps[0].batch = 0; }, "batch: want 1 to"},
      {[](auto& c) { c.points.steps[0].context = -1; }, "context: want 0 to"},
      {[](auto& c) { c.points.links[0].bytes_per_second = -1; }, "bytes per second: want"},
      {[](auto& c) { c.points.links[0].round_trip_seconds = 0; }, "round trip: want"},
  };
  ASSERT_TRUE(Example().Check().ok());
  for (const auto& [change, message] : cases) {
    Calibration c = Example();
    change(c);
    EXPECT_EQ(c.Check().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Message(c.Check()), HasSubstr(message));
    EXPECT_FALSE(c.Save("never.pb").ok());
  }
}

}  // namespace
}  // namespace smartgen::transfer
