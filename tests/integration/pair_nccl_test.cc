// prefilld and decoded with channel: nccl, on strict doubles of the device and of NCCL.
#include "tests/integration/pair_harness.h"

namespace smartgen::integration {
namespace {

using testing::HasSubstr;

class PairNcclTest : public PairTest {
 protected:
  PairNcclTest() { UseNccl(); }
  std::string Transport() { return decode_->Info().peers(0).transport(); }
  // Why the pairing does not come about.
  std::string Detail() {
    EXPECT_TRUE(WaitUntil([&] {
      return decode_->Info().peers(0).detail() != "not tried yet" &&
             !decode_->Info().peers(0).detail().empty();
    }));
    return decode_->Info().peers(0).detail();
  }
};

TEST_F(PairNcclTest, EveryModeMakesTheTokensOfASingleProcess) {
  StartBoth();
  EXPECT_EQ(Transport(), "nccl");
  for (const v1::Mode mode : {v1::MODE_FULL, v1::MODE_EXACT, v1::MODE_AUTO}) {
    for (const int length : {1, 17, 300, 700}) {
      const auto request = MakeRequest(
          Prompt(length, static_cast<uint64_t>(mode) * 1000 + static_cast<uint64_t>(length)), 40,
          mode);
      const Result result = Generate(request);
      ASSERT_TRUE(result.status.ok()) << result.status.error_message();
      EXPECT_EQ(result.tokens, Expected(request)) << length;
      EXPECT_EQ(result.stats.fallback_reason(), "");
    }
  }
  ExpectBaseline();
}

TEST_F(PairNcclTest, MetricsShowTheTransportAndItsMemory) {
  StartBoth();
  ASSERT_TRUE(Generate(MakeRequest(Prompt(200), 10, v1::MODE_FULL)).status.ok());
  EXPECT_EQ(decode_->metrics()
                .GetGauge("transport_info", {{"peer", prefill_->address()}, {"transport", "nccl"}})
                .value(),
            1);
  ASSERT_TRUE(WaitUntil([&] {
    prefill_->metrics().Serialize();
    return prefill_->metrics().GetGauge("nccl_channels").value() == 1 &&
           prefill_->metrics().GetGauge("nccl_memory_bytes", {{"kind", "communicators"}}).value() ==
               4 << 20;
  }));
  EXPECT_EQ(prefill_->metrics().GetGauge("nccl_memory_bytes", {{"kind", "staging"}}).value(),
            4 * (64 << 10));
}

// The asked transport is absent: refused, and it says what would help.
TEST_F(PairNcclTest, P2_APeerWithoutNcclIsRefusedByName) {
  prefill_options_.transport.channel = "tcp";
  StartPrefill();
  StartDecode();
  EXPECT_THAT(Detail(), HasSubstr("transports: ours tcp, theirs nccl"));
}

TEST_F(PairNcclTest, P2_WithoutADeviceTheDaemonDoesNotStart) {
  PrefillServer::Parts parts;
  parts.executor = std::make_unique<FakeExecutor>(prefill_executor_);
  parts.model_name = "fake";
  parts.model_fingerprint = kFingerprint;
  prefill_options_.transport.device = 99;
  const auto server = PrefillServer::Start(prefill_options_, std::move(parts));
  ASSERT_FALSE(server.ok());
  EXPECT_THAT(std::string(base::MessageOf(server.status())), HasSubstr("channel: nccl"));
}

TEST_F(PairNcclTest, P2_TakingTcpInsteadIsCounted) {
  UseNccl("nccl_or_tcp");
  prefill_options_.transport.channel = "tcp";
  StartBoth();
  EXPECT_EQ(Transport(), "tcp");
  EXPECT_EQ(DecodeCounter("fallback_total", {{"reason", "tcp_for_nccl"}}), 1);
  const auto request = MakeRequest(Prompt(100), 20, v1::MODE_FULL);
  EXPECT_EQ(Generate(request).tokens, Expected(request));
}

TEST_F(PairNcclTest, PairingsThatFailOverNcclGoOnOverTcpAndAreCounted) {
  UseNccl("nccl_or_tcp");
  prefill_options_.pairing_timeout = decode_options_.pairing_timeout =
      std::chrono::milliseconds(200);
  decode_nccl_->nccl.Die();
  StartBoth();
  EXPECT_EQ(Transport(), "tcp");
  EXPECT_EQ(DecodeCounter("fallback_total", {{"reason", "tcp_for_nccl"}}), 1);
}

TEST_F(PairNcclTest, OtherPiecesAreRefusedByName) {
  prefill_options_.transport.piece_bytes = 128 << 10;
  StartPrefill();
  StartDecode();
  EXPECT_THAT(Detail(), HasSubstr("nccl.piece_bytes: ours 131072, theirs 65536"));
}

TEST_F(PairNcclTest, P3_NothingIsSetUpAfterThePairing) {
  StartBoth();
  EXPECT_EQ(nccl_network_.communicators(), 2);  // one an end
  const uint64_t before = prefill_nccl_->device.used();
  for (uint64_t i = 0; i < 10; ++i) {
    const auto request = MakeRequest(Prompt(100, i), 2, v1::MODE_FULL);
    EXPECT_EQ(Generate(request).tokens, Expected(request));
  }
  EXPECT_EQ(nccl_network_.communicators(), 2);
  EXPECT_EQ(prefill_nccl_->device.used(), before);
}

TEST_F(PairNcclTest, H4H11_AfterARestartOfThePrefillSideTheSameDecodedGoesOnOverNccl) {
  StartBoth();
  const int port = prefill_->port();
  for (int i = 0; i < 3; ++i) {
    const auto request = MakeRequest(Prompt(300, static_cast<uint64_t>(i)), 20, v1::MODE_FULL);
    EXPECT_EQ(Generate(request).tokens, Expected(request));
    StopPrefill();
    StartPrefill(port);
    ASSERT_TRUE(WaitUntil([&] {
      const v1::PeerInfo peer = decode_->Info().peers(0);
      return peer.up() && peer.transport() == "nccl";
    }));
  }
  const auto request = MakeRequest(Prompt(300, 9), 20, v1::MODE_EXACT);
  const Result result = Generate(request);
  EXPECT_EQ(result.tokens, Expected(request));
  EXPECT_EQ(result.stats.fallback_reason(), "");
  ASSERT_TRUE(WaitUntil([&] { return nccl_network_.communicators() == 2; }));
}

// A device that hangs in the middle of a transfer: the stream goes on, and the next pairing works.
TEST_F(PairNcclTest, N1_ADeviceThatHangsInATransferEndsNoStream) {
  StartBoth();
  prefill_gate_.Close();
  const auto request = MakeRequest(Prompt(400), 30, v1::MODE_FULL);
  const auto call = Begin(request);
  ASSERT_TRUE(WaitUntil([&] { return prefill_gate_.Blocked(); }));
  prefill_nccl_->nccl.Die();
  prefill_gate_.Open();
  const Result result = call->Wait();
  EXPECT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.tokens, Expected(request));
  EXPECT_NE(result.stats.fallback_reason(), "");
  ExpectBaseline();
}

TEST_F(PairNcclTest, W2_LateStreamsChangeNoToken) {
  fakes::FakeDevice::Options loose;
  loose.temper = fakes::FakeDevice::Temper::kLoose;
  loose.max_pause = std::chrono::microseconds(1000);
  UseNccl("nccl", loose);
  StartBoth();
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < 12; ++i) {
    requests.push_back(MakeRequest(Prompt(50 + i * 37, static_cast<uint64_t>(i)), 16,
                                   i % 2 == 0 ? v1::MODE_FULL : v1::MODE_EXACT));
  }
  ExpectAllRight(requests);
  ExpectBaseline();
}

}  // namespace
}  // namespace smartgen::integration
