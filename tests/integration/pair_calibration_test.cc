// Daemons with calibration files.

#include "common/base/cpu.h"
#include "common/transfer/calibration.h"
#include "tests/fakes/temp_folder.h"
#include "tests/integration/pair_harness.h"

namespace smartgen::integration {
namespace {

using ::testing::HasSubstr;
using transfer::Calibration;

class PairCalibrationTest : public PairTest {
 protected:
  // Of the fake model on this machine: 1 ms a token.
  static Calibration Fitting() {
    Calibration c;
    c.subject = {
        .model_fingerprint = kFingerprint, .compute = "bf16", .cpu = base::CpuName(), .threads = 1};
    c.max_prefill_tokens = 2048;
    c.layers = 4;
    c.kv_bytes_per_token = 1;
    c.points.prefill = {{10, 0, 0.01, false}, {1000, 0, 1, false}};
    c.points.steps = {{1, 10, 0.01, false}, {2, 10, 0.01, false}};
    return c;
  }
  std::string Save(const Calibration& c) {
    EXPECT_TRUE(c.Save(path_).ok());
    return path_;
  }
  PrefillServer::Parts Parts() {
    PrefillServer::Parts parts;
    parts.executor = std::make_unique<FakeExecutor>(prefill_executor_);
    parts.model_fingerprint = kFingerprint;
    return parts;
  }
  fakes::TempFolder folder_;
  std::string path_ = folder_.path() + "/c.pb";
};

TEST_F(PairCalibrationTest, BothDaemonsRefuseOneThatDoesNotFitAndSayWhy) {
  Calibration other = Fitting();
  other.subject.threads = 7;
  prefill_options_.calibration = decode_options_.calibration = Save(other);
  const auto prefill = PrefillServer::Start(prefill_options_, Parts()).status();
  DecodeServer::Parts parts;
  parts.executor = std::make_unique<FakeExecutor>(decode_executor_);
  parts.model_fingerprint = kFingerprint;
  const auto decode = DecodeServer::Start(decode_options_, std::move(parts)).status();
  for (const absl::Status& status : {prefill, decode}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(base::MessageOf(status)),
                HasSubstr(path_ + ": calibration: threads: made for 7, here it is 1"));
  }
  prefill_options_.calibration = path_ + ".no";
  EXPECT_EQ(PrefillServer::Start(prefill_options_, Parts()).status().code(),
            absl::StatusCode::kNotFound);
}

// 20 ms to the prefill instance and back: up to some 200 tokens local is sooner.
TEST_F(PairCalibrationTest, P6_ModeAutoKeepsShortPromptsAndSendsLongOnesToTheSameTokens) {
  prefill_options_.calibration = Save(Fitting());
  StartPrefill();
  Calibration with_link = Fitting();
  with_link.points.links = {{prefill_->address(), 1e9, 0.02}};
  decode_options_.calibration = Save(with_link);
  StartDecode();
  WaitPaired();
  // The long one first: the fake is faster than this calibration says, which is learnt where it
  // ran.
  for (const auto& [length, local] : {std::pair{900, false}, {30, true}}) {
    const auto request = MakeRequest(Prompt(length, static_cast<uint64_t>(length)), 6);
    const Result result = Generate(request);
    ASSERT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.tokens, Expected(request));
    EXPECT_EQ(result.stats.mode() == v1::MODE_LOCAL, local) << length;
    EXPECT_EQ(result.stats.fallback_reason(), "");
  }
}

}  // namespace
}  // namespace smartgen::integration
