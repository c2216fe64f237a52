// Faults that users of comparable systems met, played with both daemons: requests over reused
// pages, pools without room, damaged prefixes that requests share, pre-emption while KV is on the
// way. The executor makes each token of a hash over all KV bytes of all layers as they lie in
// memory, so that equal tokens are equal checksums of every block on both sides.
#include <atomic>

#include "tests/integration/pair_harness.h"

namespace smartgen::integration {
namespace {

constexpr int64_t kPageBytes = 16 * 4 * 64;  // 16 tokens of 4 layers

class PairCaseTest : public PairTest {
 protected:
  void Link(channel::FaultOptions faults) {
    wrap_prefill_ =
        [faults](std::shared_ptr<channel::Channel> inner) -> std::shared_ptr<channel::Channel> {
      return channel::FaultChannel::Wrap(std::move(inner), faults);
    };
  }
  // Prompts that share their first 160 tokens.
  static std::vector<int32_t> Sharing(uint64_t salt) {
    std::vector<int32_t> prompt = Prompt(160, 4711);
    const std::vector<int32_t> own = Prompt(40, salt);
    prompt.insert(prompt.end(), own.begin(), own.end());
    return prompt;
  }
};

TEST_F(PairCaseTest, W3_FiveHundredRequestsOverReusedPagesNeverDiffer) {
  // Room for a few requests at a time: each page is used about 30 times on either side.
  decode_options_.kv_bytes = prefill_options_.kv_bytes = 120 * kPageBytes;
  StartBoth();
  std::atomic<int> next{0};
  std::atomic<int> remote{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < 4; ++c) {
    clients.emplace_back([&] {
      for (int i = next++; i < 500; i = next++) {
        // Every third prompt was there before, so that cached pages are used and given up as well.
        const auto salt = static_cast<uint64_t>(i % 3 == 0 ? i % 21 : i);
        const auto request = MakeRequest(Prompt(20 + i * 37 % 180, salt), 4 + i % 5,
                                         i % 2 == 0 ? v1::MODE_FULL : v1::MODE_EXACT);
        const Result result = Generate(request);
        EXPECT_TRUE(result.status.ok()) << i << ": " << result.status.error_message();
        EXPECT_EQ(result.tokens, Expected(request)) << i;
        remote += result.stats.mode() != v1::MODE_LOCAL;
      }
    });
  }
  for (auto& client : clients) client.join();
  EXPECT_GT(remote.load(), 300) << "of 500";
  ExpectBaseline();
}

TEST_F(PairCaseTest, W6_APrefillSideWithoutRoomNeverSendsAPromptWithAHole) {
  prefill_options_.kv_bytes = 5 * kPageBytes;  // 80 tokens
  StartBoth();
  const auto fits = MakeRequest(Prompt(60), 5, v1::MODE_FULL);
  EXPECT_EQ(Generate(fits).stats.mode(), v1::MODE_FULL);
  const auto request = MakeRequest(Prompt(100), 8, v1::MODE_FULL);
  const Result result = Generate(request);
  EXPECT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.tokens, Expected(request));
  EXPECT_EQ(result.stats.mode(), v1::MODE_LOCAL);
  EXPECT_NE(result.stats.fallback_reason(), "");
  EXPECT_EQ(DecodeCounter("fallback_total", {{"reason", result.stats.fallback_reason()}}), 1);
  ExpectBaseline();
}

TEST_F(PairCaseTest, W6_ADecodeSideWithoutRoomTakesNoKvBeforeItHasSome) {
  // Room for one of them at a time, and a little: the others wait whole or are refused, but none
  // is begun in fewer pages than it needs.
  decode_options_.kv_bytes = 16 * kPageBytes;
  decode_options_.prefix_cache = false;
  StartBoth();
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < 8; ++i) {
    requests.push_back(MakeRequest(Prompt(150 + i, static_cast<uint64_t>(i)), 20,
                                   i % 2 == 0 ? v1::MODE_FULL : v1::MODE_EXACT));
  }
  ExpectAllRight(requests);
  ExpectBaseline();
}

TEST_F(PairCaseTest, W7_EverySharerOfADamagedPrefixIsRightAndTheCacheKeepsNothingBad) {
  Link({.seed = 17, .drop = 0.1, .corrupt = 0.2});
  StartBoth();
  for (uint64_t round = 0; round < 3; ++round) {
    std::vector<v1::GenerateRequest> requests;
    for (uint64_t i = 0; i < 6; ++i) {
      requests.push_back(
          MakeRequest(Sharing(round * 6 + i), 6, i % 2 == 0 ? v1::MODE_FULL : v1::MODE_EXACT));
    }
    SCOPED_TRACE(round);
    ExpectAllRight(requests);
    // What stands in the decode side's cache now came over that link: it is read here alone.
    const auto request = MakeRequest(Sharing(1000 + round), 6, v1::MODE_LOCAL);
    const Result result = Generate(request);
    EXPECT_EQ(result.stats.cached_tokens(), 160);
    EXPECT_EQ(result.tokens, Expected(request));
    decode_->prefix_cache().Clear();
    prefill_->prefix_cache().Clear();
  }
  EXPECT_GE(DecodeCounter("fallback_total", {{"reason", "kv_damaged"}}), 1);
  ExpectBaseline();
}

TEST_F(PairCaseTest, L4_PreemptionWhileKvIsOnTheWayLeavesTheOutputUnchanged) {
  Link({.bandwidth = 150'000});
  decode_options_.kv_bytes = 40 * kPageBytes;  // six requests want 10 to 13 pages each
  decode_options_.prefix_cache = false;
  StartBoth();
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < 6; ++i) {
    requests.push_back(MakeRequest(Prompt(80 + i, static_cast<uint64_t>(i)), 120, v1::MODE_EXACT));
  }
  int64_t preemptions = 0;
  for (const Result& result : ExpectAllRight(requests)) preemptions += result.stats.preemptions();
  EXPECT_GE(preemptions, 1);
  ExpectBaseline();
}

// Pushed, then fetched again, then given up for a prefill here: one request, three ways, and each
// page is freed once (the pools count misuses).
TEST_F(PairCaseTest, L15_ARequestThatTriedEveryWayFreesItsPagesOnce) {
  Link({.seed = 2, .drop = 0.9});
  decode_options_.stall = std::chrono::milliseconds(60);
  StartBoth();
  for (uint64_t i = 0; i < 6; ++i) {
    const auto request = MakeRequest(Prompt(120, 300 + i), 8, v1::MODE_FULL);
    const Result result = Generate(request);
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.tokens, Expected(request)) << i;
  }
  EXPECT_GE(DecodeCounter("fallback_total", {{"reason", "kv_missing"}}), 1);
  EXPECT_GE(DecodeCounter("fallback_total", {{"reason", "transfer_stalled"}}), 1);
  ExpectBaseline();
  EXPECT_EQ(decode_->pool().misuses() + prefill_->pool().misuses(), 0);
}

// With the pairing stands the data channel: the first request dials nothing.
TEST_F(PairCaseTest, P3_TheDataChannelIsThereBeforeTheFirstRequest) {
  std::atomic<int> wrapped{0};
  wrap_prefill_ = [&](std::shared_ptr<channel::Channel> inner) {
    ++wrapped;
    return inner;
  };
  StartBoth();
  EXPECT_EQ(wrapped.load(), 1);
  for (uint64_t i = 0; i < 10; ++i) {
    const Result result = Generate(MakeRequest(Prompt(100, i), 4, v1::MODE_FULL));
    EXPECT_EQ(result.stats.mode(), v1::MODE_FULL) << result.stats.fallback_reason();
  }
  EXPECT_EQ(wrapped.load(), 1);
}

// Pages are packed: a chunk of a layer is one message, however many pages it has.
TEST_F(PairCaseTest, P4_APromptTakesAMessageForEachLayerOfEachChunk) {
  std::shared_ptr<channel::Channel> link;
  wrap_prefill_ = [&](std::shared_ptr<channel::Channel> inner) { return link = inner; };
  decode_options_.stall = std::chrono::seconds(20);  // nothing is asked for twice
  StartBoth();
  const auto sent = [&] {
    uint64_t sum = 0;
    for (const uint64_t messages : link->stats().messages_sent) sum += messages;
    return sum;
  };
  for (const uint64_t chunks : {1, 3}) {
    const uint64_t before = sent();
    const auto request =
        MakeRequest(Prompt(static_cast<int>(64 * chunks), chunks), 4, v1::MODE_FULL);
    EXPECT_EQ(Generate(request).tokens, Expected(request));
    // Fewer where a layer of two chunks waited together.
    EXPECT_LE(sent() - before, 4 * chunks) << "4 layers";
    EXPECT_GE(sent() - before, 4u);
  }
  link.reset();
}

}  // namespace
}  // namespace smartgen::integration
