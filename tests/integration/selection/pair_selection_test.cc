// Steps that select, with real attention and entries that are really fetched, over a link that
// loses, damages, doubles and reorders messages: nothing wrong is ever read, and the books balance.
// What is selected depends on values alone, so that tokens are those of a run without faults.
#include "common/executor/executor.h"
#include "common/model/model.h"
#include "common/selector/selector_set.h"
#include "tests/fakes/temp_folder.h"
#include "tests/integration/pair_harness.h"
#include "tests/tools/profile/tiny_model.h"

namespace smartgen::integration {
namespace {

constexpr int kTokens = 704;  // whole pages and chunks; beyond what is always dense
constexpr double kBudget = 0.1;

class PairSelectionTest : public PairTest {
 protected:
  static void SetUpTestSuite() {
    const fakes::TempFolder folder;  // what is open is mapped
    auto model = model::Model::Open(tools::profile::MakeTinyModel(folder.path()));
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
  }
  static void TearDownTestSuite() { model_.reset(); }
  void TearDown() override { link_.reset(); }

  static std::unique_ptr<executor::Executor> MakeExecutor() {
    executor::ExecutorOptions options;
    options.compute = executor::ComputeType::kF32;
    options.threads = 1;
    options.max_prefill_tokens = 64;
    auto executor = executor::CreateCpuExecutor(*model_, options);
    EXPECT_TRUE(executor.ok()) << executor.status();
    return executor.ok() ? *std::move(executor) : nullptr;
  }
  // Both daemons anew, with nothing cached.
  void Start(channel::FaultOptions faults) {
    stub_.reset();
    decode_.reset();
    link_.reset();
    prefill_.reset();
    for (auto* bytes : {&prefill_options_.kv_bytes, &decode_options_.kv_bytes}) *bytes = 32 << 20;
    prefill_options_.context_length = decode_options_.context_length = 1024;
    PrefillServer::Parts there;
    there.executor = MakeExecutor();
    there.model_name = "tiny";
    there.model_fingerprint = kFingerprint;
    there.wrap_channel = [this, faults](std::shared_ptr<channel::Channel> inner) {
      return link_ = channel::FaultChannel::Wrap(std::move(inner), faults);
    };
    auto prefill = PrefillServer::Start(prefill_options_, std::move(there));
    ASSERT_TRUE(prefill.ok()) << prefill.status();
    prefill_ = *std::move(prefill);
    decode_options_.prefill = {prefill_->address()};
    DecodeServer::Parts here;
    here.executor = MakeExecutor();
    here.model_name = "tiny";
    here.model_fingerprint = kFingerprint;
    auto decode = DecodeServer::Start(decode_options_, std::move(here));
    ASSERT_TRUE(decode.ok()) << decode.status();
    decode_ = *std::move(decode);
    stub_ = v1::Decode::NewStub(
        grpc::CreateChannel(decode_->address(), grpc::InsecureChannelCredentials()));
    WaitPaired();
  }
  // All begin before the first ends.
  std::vector<Result> RunAll(const std::vector<v1::GenerateRequest>& requests) {
    std::vector<std::unique_ptr<Call>> calls;
    for (const auto& request : requests) calls.push_back(Begin(request));
    std::vector<Result> results;
    for (const auto& call : calls) {
      results.push_back(call->Wait());
      EXPECT_TRUE(results.back().status.ok()) << results.back().status.error_message();
      EXPECT_EQ(results.back().stats.fallback_reason(), "");
    }
    return results;
  }
  double Sent(const std::string& path) {
    return prefill_->metrics()
        .GetCounter("transfer_bytes_total", {{"path", path}, {"direction", "sent"}})
        .value();
  }
  double Refused(const std::string& reason) {
    return DecodeCounter("transfer_refused_total", {{"reason", reason}});
  }
  static uint64_t Bytes(const Result& result, const std::string& path) {
    const auto it = result.stats.path_bytes().find(path);
    return it == result.stats.path_bytes().end() ? 0 : it->second;
  }
  static uint64_t KvBytes(const Result& result) {
    return Bytes(result, "proactive") + Bytes(result, "speculative") + Bytes(result, "ondemand") +
           Bytes(result, "full");
  }
  uint64_t PromptBytes() const {
    return static_cast<uint64_t>(kTokens * decode_->pool().layout().TokenBytes());
  }
  // Selection metadata of a prompt.
  uint64_t MetadataBytes(const std::string& selector) const {
    const auto& config = model_->config();
    std::vector<int> query_heads;
    for (const auto& layer : config.layers) query_heads.push_back(layer.num_heads);
    selector::SelectorSet set(decode_->pool().layout(), query_heads, {}, {});
    const auto made = set.Get(selector, kBudget);
    EXPECT_TRUE(made.ok()) << made.status();
    return static_cast<uint64_t>((*made)->metadata().TotalBytes(0, kTokens));
  }

  static inline std::unique_ptr<model::Model> model_;
  std::shared_ptr<channel::FaultChannel> link_;
};

// Eight at once of each selector, and so many steps that all KV is here before the last, but
// where what was lost comes too late.
class FetchingTest : public PairSelectionTest {
 protected:
  static constexpr int kEach = 8;
  static std::vector<v1::GenerateRequest> Requests(const std::string& selector) {
    std::vector<v1::GenerateRequest> requests;
    for (int i = 0; i < kEach; ++i) {
      auto request =
          MakeRequest(Prompt(kTokens, 900 + static_cast<uint64_t>(i)), 300, v1::MODE_SMARTGEN);
      v1::TransferOptions& options = *request.mutable_transfer();
      options.set_selector(selector);
      options.set_selection_budget(kBudget);
      options.set_handover(v1::TransferOptions::HANDOVER_NONE);
      options.set_speculative_ratio(0.02);
      requests.push_back(request);
    }
    return requests;
  }
  // Of a link that carries all KV in a little more than half of the time that the steps take where
  // nothing has to be waited for, however fast the machine is.
  double Bandwidth(const std::vector<v1::GenerateRequest>& requests) {
    Start({});
    const base::TimePoint begin = base::Clock::Real()->Now();
    RunAll(requests);
    const double seconds = base::ToSeconds(base::Clock::Real()->Now() - begin);
    return static_cast<double>(kEach * PromptBytes()) / (0.6 * seconds);
  }
  // Each byte counts once, on the path that it came by, whatever was sent again.
  void ExpectBooks(const std::vector<Result>& results, const std::string& selector) {
    uint64_t ondemand = 0;
    int64_t remote = 0;
    int delivered = 0;
    for (const Result& result : results) {
      EXPECT_EQ(result.stats.mode(), v1::MODE_SMARTGEN);
      if (result.stats.all_local_seconds() > 0) {
        EXPECT_EQ(KvBytes(result), PromptBytes());
        ++delivered;
      } else {
        EXPECT_LT(KvBytes(result), PromptBytes());  // what was lost last came too late
      }
      // Keys that are all here make what had not come of it.
      EXPECT_LE(Bytes(result, "metadata"), MetadataBytes(selector));
      EXPECT_EQ(KvBytes(result) + Bytes(result, "metadata"), result.stats.transfer_bytes());
      ondemand += Bytes(result, "ondemand");
      remote += result.stats.remote_entries();
    }
    EXPECT_GT(ondemand, 0u);
    EXPECT_GT(remote, 0) << "nothing had to be fetched";
    EXPECT_GE(delivered, 1);
    const double sent = Sent("proactive") + Sent("speculative") + Sent("ondemand");
    EXPECT_LE(sent, static_cast<double>(kEach * PromptBytes()));
    if (delivered == kEach) {
      EXPECT_EQ(sent, static_cast<double>(kEach * PromptBytes()));
    }
    EXPECT_EQ(Sent("metadata"), static_cast<double>(kEach * MetadataBytes(selector)));
    ExpectBaseline();
  }
};

TEST_F(FetchingTest, W2_FetchedEntriesOverABadLinkMakeTheTokensOfAGoodOne) {
  channel::FaultCounts counts;
  for (const char* selector : {"quest", "hata", "infinigen"}) {
    SCOPED_TRACE(selector);
    const auto requests = Requests(selector);
    const double bandwidth = Bandwidth(requests);
    Start({.bandwidth = bandwidth});
    const std::vector<Result> good = RunAll(requests);
    ExpectBooks(good, selector);
    for (const char* reason : {"corrupt", "malformed", "out_of_range"}) {
      EXPECT_EQ(Refused(reason), 0) << reason;
    }
    Start({.seed = 31,
           .drop = 0.01,
           .corrupt = 0.01,
           .duplicate = 0.01,
           .reorder = 0.01,
           .bandwidth = bandwidth});
    const std::vector<Result> bad = RunAll(requests);
    for (size_t i = 0; i < bad.size(); ++i) EXPECT_EQ(bad[i].tokens, good[i].tokens) << i;
    ExpectBooks(bad, selector);
    const channel::FaultCounts now = link_->counts();
    counts.dropped += now.dropped;
    counts.corrupted += now.corrupted;
    counts.duplicated += now.duplicated;
    counts.reordered += now.reordered;
    EXPECT_LE(Refused("corrupt"), static_cast<double>(now.corrupted + now.duplicated));
    for (const char* reason : {"malformed", "out_of_range", "old_incarnation"}) {
      EXPECT_EQ(Refused(reason), 0) << reason;
    }
  }
  EXPECT_GT(counts.dropped, 0);
  EXPECT_GT(counts.corrupted, 0);
  EXPECT_GT(counts.duplicated, 0);
  EXPECT_GT(counts.reordered, 0);
}

// One fault alone, so that each message that it hit can be found again in the counters.
TEST_F(FetchingTest, EachDamagedMessageIsRefusedOnce) {
  decode_options_.stall = std::chrono::seconds(1);  // nothing is asked for again but for damage
  const auto requests = Requests("quest");
  Start({.seed = 37, .corrupt = 0.05, .bandwidth = Bandwidth(requests)});
  ExpectBooks(RunAll(requests), "quest");
  const auto damaged = static_cast<double>(link_->counts().corrupted);
  EXPECT_GT(Refused("corrupt"), 0);
  EXPECT_LE(Refused("corrupt"), damaged);
  // What goes again goes in all heads, so that some of it was here already: it is drained unread.
  EXPECT_GE(Refused("corrupt") + Refused("duplicate"), damaged);
}

TEST_F(FetchingTest, EachDoubledMessageIsRefusedOnceOrIsMetadata) {
  decode_options_.stall = std::chrono::seconds(1);
  const auto requests = Requests("quest");
  Start({.seed = 41, .duplicate = 0.1, .bandwidth = Bandwidth(requests)});
  ExpectBooks(RunAll(requests), "quest");
  const auto doubled = static_cast<double>(link_->counts().duplicated);
  EXPECT_GT(Refused("duplicate"), 0);
  const double refused = Refused("duplicate") + Refused("unknown_transfer");
  EXPECT_LE(refused, doubled);
  // Two layers have metadata, one message a chunk; it is handed on however often it comes.
  EXPECT_GE(refused, doubled - kEach * 2 * (kTokens / 64));
  EXPECT_EQ(Refused("corrupt"), 0);
}

// Full attention, over the layers that are here and those of the other side, or by queries that
// are shipped.
TEST_F(PairSelectionTest, ExactOverABadLinkMakesTheTokensOfASingleProcess) {
  for (const auto handover :
       {v1::TransferOptions::HANDOVER_SPLIT, v1::TransferOptions::HANDOVER_ATTEND}) {
    SCOPED_TRACE(handover);
    Start({.seed = 43,
           .drop = 0.01,
           .corrupt = 0.01,
           .duplicate = 0.01,
           .reorder = 0.01,
           .bandwidth = 2e6});
    std::vector<v1::GenerateRequest> exact;
    std::vector<v1::GenerateRequest> local;
    for (uint64_t i = 0; i < 4; ++i) {
      local.push_back(MakeRequest(Prompt(kTokens, 950 + i), 60, v1::MODE_LOCAL));
      exact.push_back(MakeRequest(Prompt(kTokens, 950 + i), 60, v1::MODE_EXACT));
      exact.back().mutable_transfer()->set_handover(handover);
    }
    const std::vector<Result> results = RunAll(exact);
    decode_->prefix_cache().Clear();
    const std::vector<Result> expected = RunAll(local);
    int64_t steps = 0;
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].tokens, expected[i].tokens) << i;
      EXPECT_EQ(results[i].stats.mode(), v1::MODE_EXACT);
      steps += results[i].stats.handover_steps();
    }
    EXPECT_GT(steps, 0);
    ExpectBaseline();
  }
}

}  // namespace
}  // namespace smartgen::integration
