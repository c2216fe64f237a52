// Lost bytes, dead peers, full pools: the client sees one stream with the right tokens.
#include "common/rpc/client.h"
#include "common/rpc/health_check.h"
#include "tests/integration/pair_harness.h"

namespace smartgen::integration {
namespace {

using ::testing::HasSubstr;

class PairFaultTest : public PairTest {
 protected:
  void WithFaults(channel::FaultOptions faults) {
    wrap_prefill_ =
        [faults](std::shared_ptr<channel::Channel> inner) -> std::shared_ptr<channel::Channel> {
      return channel::FaultChannel::Wrap(std::move(inner), faults);
    };
  }
  double Fallbacks(std::string_view reason) {
    return DecodeCounter("fallback_total", {{"reason", reason}});
  }
};

TEST_F(PairFaultTest, WithoutAnyPrefillInstanceRequestsAreServedLocallyAndCounted) {
  StartDecode({"127.0.0.1:1"});
  const auto request = MakeRequest(Prompt(100), 8);
  const Result result = Generate(request);
  EXPECT_EQ(result.tokens, Expected(request));
  EXPECT_EQ(result.stats.fallback_reason(), "no_prefill_instance");
  EXPECT_EQ(Fallbacks("no_prefill_instance"), 1);
  ExpectBaseline();
}

TEST_F(PairFaultTest, ALoneDecodedServesAutoLocallyWithoutCallingItAFallback) {
  StartDecode({});
  const auto request = MakeRequest(Prompt(100), 8);
  const Result result = Generate(request);
  EXPECT_EQ(result.tokens, Expected(request));
  EXPECT_EQ(result.stats.fallback_reason(), "");
}

TEST_F(PairFaultTest, LostMessagesAreAskedForAgain) {
  WithFaults({.seed = 3, .drop = 0.4});
  StartBoth();
  for (int i = 0; i < 5; ++i) {
    const auto request = MakeRequest(Prompt(120, 50 + static_cast<uint64_t>(i)), 6, v1::MODE_FULL);
    const Result result = Generate(request);
    EXPECT_TRUE(result.status.ok());
    EXPECT_EQ(result.tokens, Expected(request));
  }
  EXPECT_GE(Fallbacks("kv_missing"), 1);
  ExpectBaseline();
}

TEST_F(PairFaultTest, DamagedMessagesAreNeverDecoded) {
  WithFaults({.seed = 5, .corrupt = 0.3});
  StartBoth();
  for (int i = 0; i < 10; ++i) {
    const auto request = MakeRequest(Prompt(120, 70 + static_cast<uint64_t>(i)), 6, v1::MODE_FULL);
    const Result result = Generate(request);
    EXPECT_TRUE(result.status.ok());
    EXPECT_EQ(result.tokens, Expected(request));
  }
  EXPECT_GE(Fallbacks("kv_damaged"), 1);
  ExpectBaseline();
}

TEST_F(PairFaultTest, H17_DelaysDuplicatesAndDisorderDoNoHarm) {
  WithFaults(
      {.seed = 9, .duplicate = 0.3, .reorder = 0.3, .delay_max = std::chrono::milliseconds(3)});
  StartBoth();
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < 30; ++i) {
    requests.push_back(MakeRequest(Prompt(20 + i * 7, static_cast<uint64_t>(i)), 5, v1::MODE_FULL));
  }
  ExpectAllRight(requests);
  ExpectBaseline();
}

TEST_F(PairFaultTest, H7_KvThatNeverComesEndsInALocalPrefillWithTheReason) {
  WithFaults({.drop = 1.0});
  StartBoth();
  const auto request = MakeRequest(Prompt(100), 8, v1::MODE_FULL);
  const Result result = Generate(request);
  EXPECT_EQ(result.tokens, Expected(request));
  EXPECT_EQ(result.stats.fallback_reason(), "transfer_stalled");
  EXPECT_EQ(result.stats.mode(), v1::MODE_LOCAL);
  ExpectBaseline();
}

TEST_F(PairFaultTest, ABrokenChannelPairsAnewAndNothingIsLost) {
  WithFaults({.close_after_messages = 6});
  StartBoth();
  for (int i = 0; i < 6; ++i) {
    const auto request = MakeRequest(Prompt(100, static_cast<uint64_t>(i)), 6);
    const Result result = Generate(request);
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.tokens, Expected(request));
    WaitPaired();
  }
  ExpectBaseline();
}

TEST_F(PairFaultTest, PrefillStoppedWhileItComputesEndsInALocalPrefill) {
  StartBoth();
  prefill_gate_.Close();
  const auto request = MakeRequest(Prompt(200), 10, v1::MODE_FULL);
  auto call = Begin(request);
  ASSERT_TRUE(WaitUntil([&] { return prefill_gate_.Blocked(); }));
  std::thread stopper([&] { StopPrefill(); });
  prefill_gate_.Open();
  const Result result = call->Wait();
  stopper.join();
  EXPECT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.tokens, Expected(request));
  ExpectBaseline();
}

TEST_F(PairFaultTest, H4_H11_ARestartedPrefillServesTheNextRequestWithoutARestartOfDecoded) {
  StartBoth();
  const int port = prefill_->port();
  for (int round = 0; round < 3; ++round) {
    const auto request = MakeRequest(Prompt(90, static_cast<uint64_t>(round)), 6, v1::MODE_FULL);
    const Result result = Generate(request);
    EXPECT_EQ(result.tokens, Expected(request));
    EXPECT_EQ(result.stats.mode(), v1::MODE_FULL) << result.stats.fallback_reason();
    StopPrefill();
    const auto without = MakeRequest(Prompt(90, 100 + static_cast<uint64_t>(round)), 6);
    EXPECT_EQ(Generate(without).tokens, Expected(without));
    StartPrefill(port);
    WaitPaired();
  }
}

TEST_F(PairFaultTest, ARestartedDecodeReplacesItsOldIncarnation) {
  StartBoth();
  const std::string address = prefill_->address();
  EXPECT_TRUE(Generate(MakeRequest(Prompt(50), 4, v1::MODE_FULL)).status.ok());
  decode_.reset();
  ASSERT_TRUE(WaitUntil([&] { return prefill_->Info().peers_size() == 0; }));
  ExpectBaseline();
  StartDecode({address});
  WaitPaired();
  const auto request = MakeRequest(Prompt(50), 4, v1::MODE_FULL);
  const Result result = Generate(request);
  EXPECT_EQ(result.tokens, Expected(request));
  EXPECT_EQ(result.stats.mode(), v1::MODE_FULL);
}

TEST_F(PairFaultTest, TheSecondInstanceTakesOverWhenTheFirstIsBusy) {
  prefill_options_.max_running = prefill_options_.max_queue = 1;
  StartPrefill();
  auto first = std::move(prefill_);
  Gate second_gate;
  prefill_executor_.before = second_gate.Hook();
  StartPrefill();
  StartDecode({first->address(), prefill_->address()});
  WaitPaired();
  prefill_gate_.Close();
  std::vector<std::unique_ptr<Call>> held;
  for (uint64_t i = 0; i < 2; ++i) {
    auto request = MakeRequest(Prompt(50, 200 + i), 4, v1::MODE_FULL);
    request.add_prefill_ranking(first->address());
    held.push_back(Begin(request));
    // The first runs before the second comes, for which there is no room in the queue else.
    ASSERT_TRUE(WaitUntil([&] {
      return first->Info().running() == 1 && first->Info().waiting() == static_cast<int64_t>(i);
    }));
  }
  const auto request = MakeRequest(Prompt(50), 4, v1::MODE_FULL);
  const Result result = Generate(request);
  EXPECT_EQ(result.tokens, Expected(request));
  EXPECT_EQ(result.stats.prefill_address(), prefill_->address());
  EXPECT_EQ(result.stats.fallback_reason(), "prefill_busy");
  prefill_gate_.Open();
  for (auto& call : held) EXPECT_TRUE(call->Wait().status.ok());
}

bool Serves(const std::string& address) {
  const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  return rpc::CheckHealth(channel, "", std::chrono::seconds(5)).ok();
}

// A lost GPU: nothing mends it but a new process, which a supervisor starts.
TEST_F(PairFaultTest, ADaemonWhoseExecutorHasFailedStopsServingAndSaysSo) {
  StartBoth();
  const v1::GenerateRequest request = MakeRequest(Prompt(64), 5);
  EXPECT_EQ(Generate(request).tokens, Expected(request));
  EXPECT_TRUE(Serves(prefill_->address()));
  EXPECT_TRUE(Serves(decode_->address()));
  EXPECT_EQ(prefill_->health(), absl::OkStatus());

  prefill_fake_->Fail();
  EXPECT_TRUE(WaitUntil([&] { return failed_ == 1 && !Serves(prefill_->address()); }));
  EXPECT_FALSE(prefill_->health().ok());
  // Whoever needs it reads the prompt itself.
  EXPECT_EQ(Generate(request).tokens, Expected(request));

  decode_fake_->Fail();
  EXPECT_TRUE(WaitUntil([&] { return failed_ == 2 && !Serves(decode_->address()); }));
  const Result last = Generate(request);
  EXPECT_EQ(last.status.error_code(), grpc::StatusCode::INTERNAL) << last.status.error_message();
  EXPECT_THAT(last.status.error_message(), testing::HasSubstr("device is lost"));
}

TEST_F(PairFaultTest, L10_LeasesThatNobodyRenewsExpireByThemselves) {
  prefill_options_.lease = std::chrono::milliseconds(600);
  StartBoth();
  // A ticket for a transfer that its owner then forgets.
  const std::vector<int32_t> prompt = Prompt(64);
  v1::PrefillRequest ticket;
  ticket.set_transfer_id(std::string(16, 'x'));
  ticket.set_decode_incarnation(decode_->incarnation());
  ticket.set_prefill_incarnation(prefill_->incarnation());
  ticket.mutable_token_ids()->Add(prompt.begin(), prompt.end());
  ticket.set_prompt_tokens(64);
  ticket.set_max_tokens(5);
  ticket.set_model_fingerprint(kFingerprint);
  *ticket.mutable_sampling() = MakeRequest(prompt, 1).sampling();
  const auto stub = v1::Prefill::NewStub(
      grpc::CreateChannel(prefill_->address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const auto reader = stub->Prefill(&context, ticket);
  v1::PrefillEvent event;
  while (reader->Read(&event)) {
  }
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_EQ(prefill_->Info().leases(), 1);
  ASSERT_TRUE(WaitUntil([&] { return prefill_->Info().leases() == 0; }, std::chrono::seconds(2)));
  EXPECT_EQ(prefill_->metrics().GetCounter("kv_expired_total", {{"reason", "lease"}}).value(), 1);
  ExpectBaseline();
}

TEST_F(PairFaultTest, LeasesAreRenewedWhileALongPrefillRuns) {
  prefill_options_.lease = std::chrono::milliseconds(600);
  StartBoth();
  prefill_gate_.Close();
  const auto request = MakeRequest(Prompt(64), 4, v1::MODE_FULL);
  auto call = Begin(request);
  ASSERT_TRUE(WaitUntil([&] { return prefill_gate_.Blocked(); }));
  // Three lease times on the spot.
  EXPECT_FALSE(
      WaitUntil([&] { return prefill_->Info().leases() == 0; }, std::chrono::milliseconds(1800)));
  prefill_gate_.Open();
  const Result result = call->Wait();
  EXPECT_EQ(result.tokens, Expected(request));
  EXPECT_EQ(result.stats.fallback_reason(), "");
}

TEST_F(PairFaultTest, H3_ADifferentLayoutIsRefusedWithTheFieldNamed) {
  prefill_executor_.kv_heads = 4;
  StartPrefill();
  StartDecode();
  ASSERT_TRUE(WaitUntil([&] {
    return decode_->Info().peers(0).detail().find("kv_heads") != std::string::npos;
  })) << decode_->Info().ShortDebugString();
  EXPECT_THAT(decode_->Info().peers(0).detail(), HasSubstr("layer 0 kv_heads: ours 4, theirs 2"));
  // The client gets its answer all the same.
  const auto request = MakeRequest(Prompt(30), 4);
  EXPECT_EQ(Generate(request).tokens, Expected(request));
}

TEST_F(PairFaultTest, ADifferentComputeTypeIsRefusedWithTheFieldNamed) {
  prefill_executor_.compute = executor::ComputeType::kF32;
  StartPrefill();
  StartDecode();
  EXPECT_TRUE(WaitUntil([&] {
    return decode_->Info().peers(0).detail().find("compute: ours f32, theirs bf16") !=
           std::string::npos;
  })) << decode_->Info().ShortDebugString();
}

TEST_F(PairFaultTest, L4_PreemptionLeavesTheOutputUnchanged) {
  // Room for about 40 pages of 16 tokens; six requests want 10 to 13 each.
  decode_options_.kv_bytes = 40 * 16 * 4 * 64;
  decode_options_.prefix_cache = false;
  // Slow enough that all are here before the first has ended.
  decode_executor_.before = [](int layer) {
    if (layer < 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  };
  StartBoth();
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < 6; ++i) {
    requests.push_back(MakeRequest(Prompt(80 + i, static_cast<uint64_t>(i)), 120, v1::MODE_FULL,
                                   i % 2 ? 0.7f : 0.0f));
  }
  int64_t preemptions = 0;
  for (const Result& result : ExpectAllRight(requests)) preemptions += result.stats.preemptions();
  EXPECT_GE(preemptions, 1);
  EXPECT_EQ(DecodeCounter("preemptions_total"), static_cast<double>(preemptions));
  ExpectBaseline();
}

TEST_F(PairFaultTest, H6_BeyondTheWaitingQueueRequestsAreRefusedAtOnce) {
  decode_options_.max_batch = 1;
  decode_options_.max_waiting = 2;
  StartBoth();
  decode_gate_.Close();
  auto running = Begin(MakeRequest(Prompt(20), 4, v1::MODE_LOCAL));
  ASSERT_TRUE(WaitUntil([&] { return decode_gate_.Blocked(); }));
  auto second = Begin(MakeRequest(Prompt(20), 4, v1::MODE_LOCAL));
  auto third = Begin(MakeRequest(Prompt(20), 4, v1::MODE_LOCAL));
  ASSERT_TRUE(WaitUntil([&] { return decode_->Info().waiting() == 2; }));
  const Result refused = Generate(MakeRequest(Prompt(20), 4, v1::MODE_LOCAL));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("max_waiting"));
  decode_gate_.Open();
  for (auto* call : {&running, &second, &third}) EXPECT_TRUE((*call)->Wait().status.ok());
}

TEST_F(PairFaultTest, APromptThatCanNeverFitIsRefusedAtOnce) {
  decode_options_.kv_bytes = 4 * 16 * 4 * 64;  // 4 pages
  StartBoth();
  const Result result = Generate(MakeRequest(Prompt(64), 4));
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::OUT_OF_RANGE);
  EXPECT_THAT(result.status.error_message(), HasSubstr("never fit"));
}

TEST_F(PairFaultTest, RunningStreamsGoOnWhileALongPromptIsPrefilledLocally) {
  std::mutex mutex;
  std::vector<int> order;  // layers of prefills, and -1 for each decode step
  decode_executor_.before = [&, hook = decode_gate_.Hook()](int layer) {
    hook(layer);
    const std::lock_guard lock(mutex);
    order.push_back(layer);
  };
  StartDecode({});
  auto stream = Begin(MakeRequest(Prompt(10), 2000, v1::MODE_LOCAL));
  ASSERT_TRUE(WaitUntil([&] { return stream->tokens() >= 5; }));
  decode_gate_.Close();
  ASSERT_TRUE(WaitUntil([&] { return decode_gate_.Blocked(); }));
  auto prompt = Begin(MakeRequest(Prompt(320, 5), 1, v1::MODE_LOCAL));
  ASSERT_TRUE(WaitUntil([&] { return decode_->Info().waiting() == 1; }));
  {
    const std::lock_guard lock(mutex);
    order.clear();
  }
  decode_gate_.Open();
  EXPECT_TRUE(prompt->Wait().status.ok());
  stream->Cancel();
  ExpectBaseline();
  // 10 chunks of 32 tokens, and a decode step before each.
  const std::lock_guard lock(mutex);
  int chunks = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i] != 0) continue;
    ++chunks;
    EXPECT_TRUE(i > 0 && order[i - 1] == -1) << i;
  }
  EXPECT_EQ(chunks, 10);
}

TEST_F(PairFaultTest, DrainLetsStreamsFinishAndRefusesNewOnes) {
  StartBoth();
  decode_gate_.Close();
  const auto request = MakeRequest(Prompt(60), 30, v1::MODE_FULL);
  auto call = Begin(request);
  ASSERT_TRUE(WaitUntil([&] { return decode_gate_.Blocked(); }));
  std::thread drain([&] { decode_->Drain(); });
  ASSERT_TRUE(WaitUntil([&] { return decode_->Info().draining(); }));
  EXPECT_EQ(Generate(request).status.error_code(), grpc::StatusCode::UNAVAILABLE);
  decode_gate_.Open();
  EXPECT_EQ(call->Wait().tokens, Expected(request));
  drain.join();
  EXPECT_EQ(decode_->engine().load().running, 0);
}

TEST_F(PairFaultTest, H16_ADrainingPrefillFinishesItsTransferAndGetsNothingNew) {
  StartBoth();
  prefill_gate_.Close();
  const auto request = MakeRequest(Prompt(60), 8, v1::MODE_FULL);
  auto call = Begin(request);
  ASSERT_TRUE(WaitUntil([&] { return prefill_gate_.Blocked(); }));
  std::thread drain([&] { prefill_->Drain(); });
  ASSERT_TRUE(WaitUntil([&] { return decode_->pairings().Healthy({}).empty(); }));
  const auto other = MakeRequest(Prompt(61), 8);
  EXPECT_EQ(Generate(other).tokens, Expected(other));
  prefill_gate_.Open();
  const Result result = call->Wait();
  EXPECT_EQ(result.tokens, Expected(request));
  EXPECT_EQ(result.stats.mode(), v1::MODE_FULL);
  drain.join();
  ExpectBaseline();
}

TEST_F(PairFaultTest, H15_AStuckEngineIsReportedAndRecovers) {
  decode_options_.watchdog = std::chrono::milliseconds(200);
  StartDecode({});
  const auto channel = grpc::CreateChannel(decode_->address(), grpc::InsecureChannelCredentials());
  EXPECT_TRUE(rpc::WaitUntilServing(channel, std::chrono::seconds(2)).ok());
  decode_gate_.Close();
  auto call = Begin(MakeRequest(Prompt(60), 4, v1::MODE_LOCAL));
  EXPECT_TRUE(WaitUntil(
      [&] { return !rpc::WaitUntilServing(channel, std::chrono::milliseconds(50)).ok(); }));
  decode_gate_.Open();
  EXPECT_TRUE(call->Wait().status.ok());
  EXPECT_TRUE(rpc::WaitUntilServing(channel, std::chrono::seconds(2)).ok());
}

}  // namespace
}  // namespace smartgen::integration
