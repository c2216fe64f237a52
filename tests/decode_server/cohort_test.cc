// Streams that wait for KV together, and what becomes of the others when one of them leaves.
#include "tests/decode_server/engine_fixture.h"

namespace smartgen::decode_server {
namespace {

class CohortTest : public EngineTest {
 protected:
  // A stream whose steps fetch what they need of its prefill instance.
  struct Stream {
    std::shared_ptr<FakeListener> listener;
    std::shared_ptr<Request> request;
    std::shared_ptr<FakeAttempt> attempt;
    std::unique_ptr<kv::KvSequence> there;
    sampling::SampledToken first;
    bool answers = true;
    size_t tokens() const { return listener->tokens.size(); }
    RequestState state() const { return request->state(); }
  };

  std::unique_ptr<Stream> Begin(int salt, bool answers, int tokens = 40) {
    GenerateSpec spec = Spec(tokens, 64, Mode::kSmartGen, salt);
    spec.transfer.selector = "dense";
    spec.transfer.selection_budget = 1;
    spec.transfer.handover = transfer::Handover::kNone;
    spec.transfer.speculation = false;
    auto stream = std::make_unique<Stream>();
    stream->answers = answers;
    stream->listener = Submit(std::move(spec));
    stream->request = requests_.back();
    engine_->Step();
    stream->attempt = directory_.attempts.back();
    stream->there = std::make_unique<kv::KvSequence>(there_pool_.get());
    EXPECT_TRUE(stream->there->Reserve(tokens + 64).ok());
    stream->attempt->on_fetch = [this, s = stream.get()](int layer, auto ranges) {
      if (!s->answers) return;
      for (const kv::HeadRange& range : ranges) {
        CopyKv(*s->there, *s->attempt->spec.sequence, layer, range);
      }
    };
    executor::PrefillChunk chunk;
    std::vector<float> logits(256);
    chunk.sequence = stream->there.get();
    chunk.tokens = stream->attempt->tokens;
    chunk.last_logits = logits;
    EXPECT_TRUE(executor_->Prefill(chunk).ok());
    sampling::Sampler sampler(stream->attempt->spec.sampling, stream->attempt->tokens);
    stream->first = *sampler.Sample(logits, tokens);
    return stream;
  }
  // The first tokens of all come at once, so that they make their next step together.
  void Prefilled(std::initializer_list<const Stream*> streams) {
    for (const Stream* stream : streams) {
      stream->attempt->events.on_started(0, 0);
      stream->attempt->events.on_token(stream->first);
      stream->attempt->events.on_done(true, 0);
    }
  }
  void MakeAll(int64_t pages = 64) {
    Make(pages);
    const kv::KvLayout layout = executor_->Layout(1024);
    there_pool_ = *kv::KvPool::Create(layout, {.bytes = 64 * layout.PageBytesTotal()});
  }
  void Steps(int count) {
    for (int i = 0; i < count; ++i) engine_->Step();
  }

  std::unique_ptr<kv::KvPool> there_pool_;
};

TEST_F(CohortTest, OneThatIsCancelledGivesItsPagesBackAndTheOthersGoOn) {
  MakeAll();
  const auto silent = Begin(1, false);
  const auto lively = Begin(2, true);
  Prefilled({silent.get(), lively.get()});
  Steps(5);
  ASSERT_EQ(lively->tokens(), 1u) << "they wait together";
  silent->request->Cancel(base::Cancelled("the client left"));
  engine_->Step();
  EXPECT_EQ(FreeOrCached(),
            pool_->total_pages() - static_cast<int64_t>(lively->request->sequence->pages().size()));
  Steps(3);
  EXPECT_GE(lively->tokens(), 3u);
  EXPECT_EQ(lively->listener->stats.fallback_reason, "");
}

TEST_F(CohortTest, OneWhoseInstanceIsLostDoesNotHoldUpTheOthers) {
  MakeAll();
  const auto silent = Begin(1, false);
  const auto lively = Begin(2, true);
  Prefilled({silent.get(), lively.get()});
  Steps(5);
  ASSERT_EQ(lively->tokens(), 1u);
  silent->attempt->events.on_failed(Fallback::kPeerDown, base::Unavailable("it is gone"));
  Steps(4);
  EXPECT_GE(lively->tokens(), 3u);
  EXPECT_EQ(lively->state(), RequestState::kReading);
  EXPECT_NE(silent->state(), RequestState::kReading);
}

TEST_F(CohortTest, OneThatIsPreEmptedGivesItsPagesToTheOldest) {
  MakeAll();
  const auto oldest = Submit(Spec(24, 64, Mode::kLocal, 9));
  Steps(3);
  const auto second = Begin(1, false);
  const auto third = Begin(2, false);
  Prefilled({second.get(), third.get()});
  Steps(2);
  ASSERT_EQ(third->state(), RequestState::kReading);
  const auto hoarded = pool_->Allocate(pool_->free_pages());
  ASSERT_TRUE(hoarded.ok());
  const size_t before = oldest->tokens.size();
  Steps(20);
  EXPECT_EQ(metrics_->GetCounter("preemptions_total").value(), 1);
  EXPECT_EQ(second->state(), RequestState::kReading);
  EXPECT_GT(oldest->tokens.size(), before + 10);
  EXPECT_EQ(Fallbacks("selection_dropped"), 1);
  pool_->Release(*hoarded);
}

TEST_F(CohortTest, OneWhosePagesAreStillWrittenToIsWaitedForBeforeAnotherIsPreEmpted) {
  MakeAll();
  const auto oldest = Submit(Spec(24, 64, Mode::kLocal, 9));
  Steps(3);
  const auto second = Begin(1, false);
  const auto third = Begin(2, false);
  Prefilled({second.get(), third.get()});
  Steps(2);
  const auto hoarded = pool_->Allocate(pool_->free_pages());
  ASSERT_TRUE(hoarded.ok());
  std::shared_ptr<kv::KvSequence> payload_under_way = third->attempt->spec.sequence;
  Steps(20);
  const size_t before = oldest->tokens.size();
  EXPECT_EQ(metrics_->GetCounter("preemptions_total").value(), 1);
  EXPECT_EQ(second->state(), RequestState::kReading);
  EXPECT_FALSE(oldest->finished);
  payload_under_way.reset();
  Steps(5);
  EXPECT_GT(oldest->tokens.size(), before);
  EXPECT_EQ(metrics_->GetCounter("preemptions_total").value(), 1);
  pool_->Release(*hoarded);
}

TEST_F(CohortTest, OneThatCannotBeComputedEndsAlone) {
  int64_t bad_position = -1;
  executor_options_.fails = [&](const executor::DecodeSlot& slot) {
    return slot.position == bad_position ? base::DataLoss("a number that is none")
                                         : absl::OkStatus();
  };
  MakeAll();
  const auto bad = Begin(1, true, 40);
  const auto good = Begin(2, true, 50);
  Prefilled({bad.get(), good.get()});
  Steps(2);
  bad_position = bad->request->length() - 1;
  ASSERT_EQ(bad->state(), RequestState::kReading);
  Steps(4);
  EXPECT_TRUE(absl::IsDataLoss(bad->listener->failure)) << bad->listener->failure;
  const size_t before = good->tokens();
  Steps(4);
  EXPECT_TRUE(good->listener->failure.ok()) << good->listener->failure;
  EXPECT_GT(good->tokens(), before + 1);
}

}  // namespace
}  // namespace smartgen::decode_server
