// Mode smartgen with an executor that reads everything: what is not here is fetched or the step is
// handed over, and the tokens are those of a single process either way.
#include "tests/integration/pair_harness.h"

namespace smartgen::integration {
namespace {

// Loses the first messages of the metadata lane, as a network would: done, and never there.
class LosesMetadata final : public channel::Channel {
 public:
  LosesMetadata(std::shared_ptr<channel::Channel> inner, int count)
      : inner_(std::move(inner)), left_(count) {}
  absl::Status Send(channel::OutMessage message) override {
    if (message.lane != channel::Lane::kMetadata || left_.fetch_sub(1) <= 0) {
      return inner_->Send(std::move(message));
    }
    // Not within Send: its caller is told from the I/O thread.
    std::thread([done = std::move(message.on_done)] { done(absl::OkStatus()); }).detach();
    return absl::OkStatus();
  }
  int64_t CancelTag(uint64_t tag) override { return inner_->CancelTag(tag); }
  void LimitInFlight(channel::Lane lane, uint64_t bytes) override {
    inner_->LimitInFlight(lane, bytes);
  }
  channel::ChannelStats stats() const override { return inner_->stats(); }
  channel::LinkInfo link_info() const override { return inner_->link_info(); }
  void Close(const absl::Status& reason) override { inner_->Close(reason); }
  std::string_view transport() const override { return inner_->transport(); }
  std::string peer() const override { return inner_->peer(); }

 private:
  const std::shared_ptr<channel::Channel> inner_;
  std::atomic<int> left_;
};

class PairSmartGenTest : public PairTest {
 protected:
  void Link(channel::FaultOptions faults) {
    wrap_prefill_ = [=](std::shared_ptr<channel::Channel> inner) {
      return channel::FaultChannel::Wrap(std::move(inner), faults);
    };
  }
  static v1::GenerateRequest Request(int length, int64_t max_tokens,
                                     v1::TransferOptions::Handover handover) {
    auto request = MakeRequest(Prompt(length), max_tokens, v1::MODE_SMARTGEN);
    request.mutable_transfer()->set_selector("dense");
    request.mutable_transfer()->set_selection_budget(1);
    request.mutable_transfer()->set_handover(handover);
    return request;
  }
  static int64_t Steps(const Result& result, const std::string& kind) {
    const auto it = result.stats.step_kinds().find(kind);
    return it == result.stats.step_kinds().end() ? 0 : it->second;
  }
};

TEST_F(PairSmartGenTest, StepsAreTheSameHoweverTheyAreMade) {
  Link({.bandwidth = 200'000});
  StartBoth();
  // 64 bytes a token, layer and head: 600 tokens are 154 kB, most of a second.
  for (const auto handover :
       {v1::TransferOptions::HANDOVER_AUTO, v1::TransferOptions::HANDOVER_SPLIT,
        v1::TransferOptions::HANDOVER_NONE}) {
    const auto request = Request(600, 60, handover);
    const Result result = Generate(request);
    ASSERT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.tokens, Expected(request)) << handover;
    EXPECT_EQ(result.stats.fallback_reason(), "");
    EXPECT_GT(Steps(result, handover == v1::TransferOptions::HANDOVER_NONE ? "fetch" : "split"), 0);
    decode_->prefix_cache().Clear();
  }
  ExpectBaseline();
}

TEST_F(PairSmartGenTest, MetadataThatWasLostIsSentAgain) {
  wrap_prefill_ = [](std::shared_ptr<channel::Channel> inner) {
    return std::make_shared<LosesMetadata>(std::move(inner), 3);
  };
  StartBoth();
  auto request = Request(200, 30, v1::TransferOptions::HANDOVER_NONE);
  request.mutable_transfer()->set_selector("quest");
  request.mutable_transfer()->set_speculation(false);  // or all KV would be here before
  const Result result = Generate(request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.tokens, Expected(request));
  EXPECT_EQ(result.stats.fallback_reason(), "");
  EXPECT_GE(DecodeCounter("fallback_total", {{"reason", "metadata_missing"}}), 1);
  EXPECT_GT(Steps(result, "fetch"), 0);
  ExpectBaseline();
}

TEST_F(PairSmartGenTest, OnceAllKvIsHereNothingIsFetchedAndThePrefillSideLetsGo) {
  Link({.bandwidth = 400'000});
  StartBoth();
  const auto request = Request(400, 2000, v1::TransferOptions::HANDOVER_AUTO);
  const auto call = Begin(request);
  ASSERT_TRUE(WaitUntil([&] { return call->tokens() > 10; }));
  // Long before its end.
  ASSERT_TRUE(WaitUntil([&] { return prefill_->Info().leases() == 0; }));
  const Result& result = call->Wait();
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.tokens, Expected(request));
  EXPECT_THAT(decode_->metrics().Serialize(),
              ::testing::HasSubstr("smartgen_speculative_iterations_count 1"));
  EXPECT_THAT(prefill_->metrics().Serialize(),
              ::testing::HasSubstr("smartgen_link_busy_ratio{peer="));
  EXPECT_GT(result.stats.all_local_seconds(), 0);
  EXPECT_LT(Steps(result, "fetch") + Steps(result, "split"), 1999);
  ExpectBaseline();
}

}  // namespace
}  // namespace smartgen::integration
