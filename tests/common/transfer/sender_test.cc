// The sender alone, over a channel that the test works by hand and a clock that stands still.
#include <gmock/gmock.h>

#include <functional>
#include <numeric>
#include <set>

#include "tests/common/transfer/scripted_channel.h"
#include "tests/common/transfer/transfer_fixture.h"

namespace smartgen::transfer {
namespace {

using channel::Lane;
using testing::ElementsAre;

// Layers of 2, 1 and 3 KV heads; 128, 128 and 96 bytes a token.
class SenderTest : public TransferFixture {
 protected:
  static constexpr int64_t kTokenBytes = 128 + 128 + 96;
  // It reads the clock to its end.
  ~SenderTest() override { sender_.reset(); }

  void Start(TransferSender::Options options = {}) {
    channel_ = std::make_shared<ScriptedChannel>();
    options.own_incarnation = kSenderIncarnation;
    options.peer_incarnation = kReceiverIncarnation;
    options.clock = &clock_;
    sender_ = std::make_unique<TransferSender>(channel_, options);
  }
  // A window of which a single token is a quantum: the order of tokens is the order of messages.
  void StartOneByOne() { Start({.window = {.min_bytes = 1, .max_bytes = 1, .initial_bytes = 1}}); }
  base::TransferId Begin(SendSpec spec) {
    spec.id = base::NewTransferId();
    spec.on_sent = OnSent();
    if (spec.sequence == nullptr) {
      spec.sequence = NewSequence(*source_pool_, spec.end + 64);
      Fill(*spec.sequence, 1, spec.end + 64);
    }
    source_ = spec.sequence;
    end_ = spec.end;
    EXPECT_TRUE(sender_->Begin(spec).ok());
    return spec.id;
  }
  void Ready(const base::TransferId& id, int layer, int64_t begin, int64_t end) {
    ASSERT_TRUE(sender_->LayerReady(id, {.layer = layer, .begin = begin, .end = end}).ok());
  }
  void AllReady(const base::TransferId& id) {
    for (int layer = 0; layer < 3; ++layer) Ready(id, layer, 0, end_);
  }
  std::vector<ScriptedChannel::Sent> Drain() {
    channel_->HandOutAll();
    return channel_->TakeSent();
  }
  // (layer, first token) of each message.
  static std::vector<std::pair<int, int>> Places(const std::vector<ScriptedChannel::Sent>& sent) {
    std::vector<std::pair<int, int>> places;
    for (const auto& message : sent) {
      places.emplace_back(message.head.layer, message.head.ranges.at(0).begin);
    }
    return places;
  }
  static int64_t Bytes(const std::vector<ScriptedChannel::Sent>& sent) {
    int64_t bytes = 0;
    for (const auto& message : sent) bytes += static_cast<int64_t>(message.payload.size());
    return bytes;
  }
  // Every (layer, token, head) of the messages, each once.
  static std::multiset<std::tuple<int, int64_t, int>> Entries(
      const std::vector<ScriptedChannel::Sent>& sent) {
    std::multiset<std::tuple<int, int64_t, int>> entries;
    for (const auto& message : sent) {
      const int layer = static_cast<int>(message.head.layer);
      for (const WireRange& range : message.head.ranges) {
        const int heads =
            range.head_count == 0 ? Layout().layers[layer].kv_heads : range.head_count;
        for (int64_t token = range.begin; token < range.end(); ++token) {
          for (int h = 0; h < heads; ++h) entries.emplace(layer, token, range.first_head + h);
        }
      }
    }
    return entries;
  }
  void ExpectEachEntryOnce(const std::vector<ScriptedChannel::Sent>& sent, int64_t begin,
                           int64_t end) {
    const auto entries = Entries(sent);
    EXPECT_EQ(entries.size(), static_cast<size_t>((end - begin) * (2 + 1 + 3)));
    EXPECT_EQ(std::set(entries.begin(), entries.end()).size(), entries.size());
  }

  base::SimulatedClock clock_;
  std::shared_ptr<ScriptedChannel> channel_;
  std::shared_ptr<kv::KvSequence> source_;
  int64_t end_ = 0;
};

TEST_F(SenderTest, WithoutAnOrderLayersGoOneAfterTheOtherFromTheFirstTokenOn) {
  StartOneByOne();
  const auto id = Begin({.begin = 1, .end = 4});
  for (int layer = 2; layer >= 0; --layer) Ready(id, layer, 0, 4);
  // Layer 2 was ready first, and one message of it went at once.
  EXPECT_THAT(Places(Drain()), ElementsAre(std::pair(2, 1), std::pair(0, 1), std::pair(0, 2),
                                           std::pair(0, 3), std::pair(1, 1), std::pair(1, 2),
                                           std::pair(1, 3), std::pair(2, 2), std::pair(2, 3)));
  EXPECT_EQ(log_.count("sent"), 1);
}

TEST_F(SenderTest, APlansOrderIsKeptAmongWhatIsReady) {
  StartOneByOne();
  // 1,024 tokens: a block is a token.
  const auto id = Begin({.begin = 0, .end = 1024, .order = {{2, 7}, {0, 1023}, {1, 5}, {0, 0}}});
  Ready(id, 0, 0, 1024);  // (0, 1023) goes
  Ready(id, 2, 0, 1024);
  Ready(id, 1, 0, 1024);
  for (int n = 0; n < 5; ++n) ASSERT_TRUE(channel_->HandOutOne());
  auto sent = channel_->TakeSent();
  EXPECT_THAT(Places(sent),
              ElementsAre(std::pair(0, 1023), std::pair(2, 7), std::pair(1, 5), std::pair(0, 0),
                          std::pair(0, 1)));  // then what the order does not name
  const auto rest = Drain();
  sent.insert(sent.end(), rest.begin(), rest.end());
  ExpectEachEntryOnce(sent, 0, 1024);
}

TEST_F(SenderTest, ABlockGoesWhenAllOfItsTokensAreReady) {
  Start();
  const auto id = Begin({.begin = 0, .end = 2048});  // two tokens a block
  Ready(id, 0, 0, 5);
  EXPECT_EQ(Entries(Drain()).size(), 4u * 2);
  Ready(id, 0, 5, 6);
  EXPECT_EQ(Entries(Drain()).size(), 2u * 2);
}

TEST_F(SenderTest, OnlyWhatIsPushedGoesBeforeThePromptIsDone) {
  Start();
  const auto id = Begin({.begin = 0, .end = 1024, .order = {{0, 3}, {1, 4}, {2, 5}}, .pushed = 2});
  AllReady(id);
  auto pushed = Drain();
  EXPECT_THAT(Places(pushed), ElementsAre(std::pair(0, 3), std::pair(1, 4)));
  EXPECT_EQ(pushed[0].head.path, Path::kProactive);
  EXPECT_EQ(pushed[0].lane, Lane::kProactive);
  EXPECT_EQ(log_.count("sent"), 0);
  sender_->PromptDone(id);
  const auto rest = Drain();
  EXPECT_EQ(Places(rest)[0], std::pair(2, 5));
  for (const auto& message : rest) {
    EXPECT_EQ(message.head.path, Path::kSpeculative);
    EXPECT_EQ(message.lane, Lane::kSpeculative);
  }
  pushed.insert(pushed.end(), rest.begin(), rest.end());
  ExpectEachEntryOnce(pushed, 0, 1024);
  EXPECT_EQ(log_.count("sent"), 1);
  const SenderStats stats = sender_->stats(id);
  EXPECT_EQ(stats.bytes_by_path.at(Path::kProactive), 256u);
  EXPECT_EQ(stats.bytes_by_path.at(Path::kSpeculative), 1024u * kTokenBytes - 256);
}

TEST_F(SenderTest, WithoutDeliveryTheRestGoesOnlyWhenFetched) {
  Start();
  const auto id = Begin(
      {.begin = 0, .end = 1024, .order = {{0, 3}, {1, 4}}, .pushed = 2, .deliver_rest = false});
  Ready(id, 0, 0, 1024);
  sender_->PromptDone(id);
  Ready(id, 1, 0, 1024);  // the second block of the push comes late, and still belongs to it
  Ready(id, 2, 0, 1024);
  const auto sent = Drain();
  EXPECT_THAT(Places(sent), ElementsAre(std::pair(0, 3), std::pair(1, 4)));
  EXPECT_EQ(sent[1].head.path, Path::kProactive);
  ASSERT_TRUE(
      sender_->Fetch(id, 2, std::vector<kv::HeadRange>{{.head = -1, .begin = 0, .end = 2}}, false)
          .ok());
  EXPECT_EQ(Entries(Drain()).size(), 2u * 3);
}

TEST_F(SenderTest, CreditsBoundTheBackgroundAfterThePrompt) {
  Start();
  const auto id = Begin({.begin = 0, .end = 64, .pushed = 0, .credits = true});
  AllReady(id);
  sender_->PromptDone(id);
  EXPECT_TRUE(Drain().empty());
  sender_->Credit(id, 127);  // not a token
  EXPECT_TRUE(Drain().empty());
  sender_->Credit(id, 1 + 3 * 128);
  EXPECT_EQ(Bytes(Drain()), 4 * 128);
  sender_->Credit(id, -1);
  EXPECT_TRUE(Drain().empty());
  sender_->Credit(id, INT64_MAX);
  EXPECT_EQ(Bytes(Drain()), 64 * kTokenBytes - 4 * 128);
  EXPECT_EQ(log_.count("sent"), 1);
}

TEST_F(SenderTest, TheWindowIsNeverExceededAndNeverLeftEmpty) {
  constexpr int64_t kWindow = 10'000;
  Start({.window = {.min_bytes = kWindow, .max_bytes = kWindow, .initial_bytes = kWindow}});
  const auto id = Begin({.begin = 0, .end = 2048});
  AllReady(id);
  int64_t left = 2048 * kTokenBytes;
  for (;;) {
    const auto queued = static_cast<int64_t>(channel_->stats().queued_bytes);
    // A turn is half of the window, less what is less than a token; one at least is under way.
    if (left > kWindow) {
      EXPECT_GT(queued, kWindow / 2 - 128);
    }
    if (!channel_->HandOutOne()) break;
    left -= Bytes(channel_->TakeSent());
  }
  EXPECT_EQ(left, 0);
  EXPECT_LE(channel_->most_windowed_bytes(), kWindow);
  EXPECT_EQ(channel_->limit(Lane::kProactive), static_cast<uint64_t>(kWindow));
  EXPECT_EQ(channel_->limit(Lane::kSpeculative), static_cast<uint64_t>(kWindow));
  EXPECT_EQ(channel_->limit(Lane::kOnDemand), 0u);
}

class ExpectedReplyTest : public SenderTest {
 protected:
  // A link of 102,400 bytes a second that has been seen to be one; messages of 2,048 bytes, two
  // under way.
  void SetUp() override {
    SenderTest::SetUp();
    Start({.window = {.min_bytes = 4096, .max_bytes = 4096, .initial_bytes = 4096}});
    id_ = Begin({.begin = 0, .end = 2048});
    AllReady(id_);
    for (int n = 0; n < 60; ++n) ASSERT_TRUE(HandOut());
    ASSERT_NEAR(sender_->link().bytes_per_second, 102400, 2000);
    channel_->TakeSent();
  }
  // False: the link is idle.
  bool HandOut() {
    clock_.Advance(std::chrono::milliseconds(20));
    return channel_->HandOutOne();
  }
  // Messages until the link is idle; 20 if it does not become so.
  int HandedOut() {
    int messages = 0;
    while (messages < 20 && HandOut()) ++messages;
    return messages;
  }
  void Reply() { ASSERT_TRUE(sender_->Reply(id_, 7, 0, std::vector<std::byte>(100)).ok()); }

  base::TransferId id_;
};

TEST_F(ExpectedReplyTest, TheBackgroundIsThroughWhenTheAnswerComes) {
  sender_->ExpectReply(id_, clock_.Now() + std::chrono::milliseconds(160));
  const int messages = HandedOut();
  EXPECT_GE(messages, 5);  // 100 ms, and the margin of two segments
  EXPECT_LE(messages, 8);
  channel_->TakeSent();
  Reply();
  EXPECT_EQ(HandedOut(), 20);  // the link is the background's again
  EXPECT_EQ(channel_->TakeSent().at(0).lane, Lane::kOnDemand);
}

TEST_F(ExpectedReplyTest, WithAnAnswerThatIsFarOffNothingWaits) {
  sender_->ExpectReply(id_, clock_.Now() + std::chrono::seconds(10));
  EXPECT_EQ(HandedOut(), 20);
}

TEST_F(ExpectedReplyTest, AnAnswerThatIsLateIsNotWaitedForWithoutEnd) {
  sender_->ExpectReply(id_, clock_.Now() + std::chrono::milliseconds(60));
  EXPECT_LT(HandedOut(), 4);
  sender_->Credit(id_, 1);  // something happens
  EXPECT_FALSE(HandOut());
  clock_.Advance(std::chrono::milliseconds(100));
  sender_->Credit(id_, 1);
  EXPECT_TRUE(HandOut());
}

TEST_F(ExpectedReplyTest, AnAnswerOfATransferThatEndsIsExpectedNoMore) {
  const base::TransferId other = Begin({.begin = 0, .end = 2048});
  AllReady(other);
  sender_->ExpectReply(base::NewTransferId(), clock_.Now());  // of none that there is
  sender_->ExpectReply(id_, clock_.Now() + std::chrono::milliseconds(60));
  EXPECT_LT(HandedOut(), 4);
  sender_->End(id_);
  EXPECT_EQ(HandedOut(), 20);
}

TEST_F(SenderTest, WhileTheLinksRateIsNotKnownNothingWaitsForAnAnswer) {
  Start({.window = {.min_bytes = 4096, .max_bytes = 4096, .initial_bytes = 4096}});
  const auto id = Begin({.begin = 0, .end = 2048});
  sender_->ExpectReply(id, clock_.Now());
  AllReady(id);
  EXPECT_EQ(Bytes(Drain()), 2048 * kTokenBytes);
}

TEST_F(SenderTest, ThreeTransfersShareTheLinkFairly) {
  Start({.window = {.min_bytes = 2048, .max_bytes = 2048, .initial_bytes = 2048}});
  std::map<base::TransferId, int64_t> bytes;
  std::vector<base::TransferId> ids;
  for (int i = 0; i < 3; ++i) {
    ids.push_back(Begin({.begin = 0, .end = 512}));
    AllReady(ids.back());
    // The first has had a head start; it gets no less from now on, and no more.
    if (i == 0) {
      for (int n = 0; n < 20; ++n) ASSERT_TRUE(channel_->HandOutOne());
      channel_->TakeSent();
    }
  }
  for (int n = 0; n < 120; ++n) ASSERT_TRUE(channel_->HandOutOne());
  for (const auto& message : channel_->TakeSent()) {
    bytes[message.head.transfer_id] += static_cast<int64_t>(message.payload.size());
  }
  for (const auto& id : ids) EXPECT_NEAR(bytes[id], 40 * 1024, 2 * 1024);
}

TEST_F(SenderTest, AnIdleLinkIsWhollyTheOneTransfersThatHasSomethingToSend) {
  Start();
  const auto waiting = Begin({.begin = 0, .end = 512});  // nothing is ready
  const auto id = Begin({.begin = 0, .end = 512});
  AllReady(id);
  EXPECT_EQ(Bytes(Drain()), 512 * kTokenBytes);
  EXPECT_EQ(sender_->stats(waiting).bytes, 0u);
}

TEST_F(SenderTest, AFetchOvertakesTheBackgroundAndIsNotSentAgain) {
  Start({.window = {.min_bytes = 1024, .max_bytes = 1024, .initial_bytes = 1024}});
  const auto id = Begin({.begin = 0, .end = 1024});
  AllReady(id);
  const std::vector<kv::HeadRange> asked = {{.head = -1, .begin = 1000, .end = 1010}};
  ASSERT_TRUE(sender_->Fetch(id, 2, asked, false).ok());
  ASSERT_TRUE(sender_->Fetch(id, 2, asked, false).ok());  // is on its way
  ASSERT_TRUE(channel_->HandOutOne());
  auto sent = channel_->TakeSent();
  EXPECT_THAT(Places(sent), ElementsAre(std::pair(2, 1000)));
  EXPECT_EQ(sent[0].lane, Lane::kOnDemand);
  EXPECT_EQ(sent[0].head.path, Path::kOnDemand);
  const auto rest = Drain();
  sent.insert(sent.end(), rest.begin(), rest.end());
  ExpectEachEntryOnce(sent, 0, 1024);
  EXPECT_EQ(log_.count("sent"), 1);
  EXPECT_EQ(sender_->stats(id).bytes_by_path.at(Path::kOnDemand), 10u * 96);
  EXPECT_EQ(sender_->stats(id).bytes, 1024u * kTokenBytes);
  ASSERT_TRUE(sender_->Fetch(id, 2, asked, true).ok());
  EXPECT_EQ(Bytes(Drain()), 10 * 96);
  EXPECT_EQ(sender_->stats(id).resent_bytes, 10u * 96);
}

TEST_F(SenderTest, HeadsThatWereFetchedAreLeftOutLater) {
  Start();
  const auto id = Begin({.begin = 0, .end = 64, .pushed = 0});
  AllReady(id);
  sender_->PromptDone(id);
  channel_->HandOutAll();
  channel_->TakeSent();
  const auto other = Begin({.begin = 0, .end = 64, .pushed = 0});
  AllReady(other);
  // Heads 0 and 2 of three, of other tokens.
  ASSERT_TRUE(
      sender_
          ->Fetch(other, 2,
                  std::vector<kv::HeadRange>{{0, 4, 8}, {2, 6, 10}, {0, 20, 21}, {1, 20, 21}},
                  false)
          .ok());
  auto sent = Drain();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_THAT(sent[0].head.ranges,
              ElementsAre(WireRange{4, 2, 0, 1}, WireRange{6, 2, 0, 1}, WireRange{6, 2, 2, 1},
                          WireRange{8, 2, 2, 1}, WireRange{20, 1, 0, 2}));
  // The bytes of the first range: K rows, then V rows of head 0.
  std::vector<std::byte> want;
  for (const auto& s : source_->Segments(2, 0, 4, 6)) want.insert(want.end(), s.begin(), s.end());
  EXPECT_TRUE(std::equal(want.begin(), want.end(), sent[0].payload.begin()));
  sender_->PromptDone(other);
  const auto rest = Drain();
  sent.insert(sent.end(), rest.begin(), rest.end());
  ExpectEachEntryOnce(sent, 0, 64);
  EXPECT_EQ(log_.count("sent"), 2);
}

TEST_F(SenderTest, ResendRepeatsWhatWasHandedOutAndNothingElse) {
  Start();
  const auto id = Begin({.begin = 0, .end = 64, .pushed = 0});
  AllReady(id);
  ASSERT_TRUE(sender_->Fetch(id, 2, std::vector<kv::HeadRange>{{1, 4, 8}}, false).ok());
  ASSERT_TRUE(sender_->Resend(id, std::vector<LayerRange>{{2, 0, 64}, {0, 0, 64}}).ok());
  const auto sent = Drain();
  EXPECT_EQ(Bytes(sent), 2 * 4 * 32);
  EXPECT_EQ(sent[1].head.ranges, sent[0].head.ranges);
  EXPECT_EQ(sender_->stats(id).resent_bytes, 4u * 32);
}

TEST_F(SenderTest, BornTokensOfWholeLayersGoAtOnceAndBeforeTheReply) {
  Start();
  const auto id = Begin({.begin = 0, .end = 64});
  Ready(id, 0, 0, 64);
  Ready(id, 1, 0, 64);
  Drain();
  sender_->PromptDone(id);
  ASSERT_TRUE(sender_->Born(id, 1, 64).ok());
  ASSERT_TRUE(sender_->Reply(id, 7, 3, {std::byte{1}, std::byte{2}}).ok() == false);  // no layer 3
  ASSERT_TRUE(sender_->Reply(id, 7, 2, {std::byte{1}, std::byte{2}}).ok());
  auto sent = Drain();
  ASSERT_EQ(sent.size(), 2u);  // layer 2 has its prompt to send first
  EXPECT_EQ(sent[0].head.layer, 1u);
  EXPECT_THAT(sent[0].head.ranges, ElementsAre(WireRange{64, 1, 0, 0}));
  EXPECT_EQ(sent[0].lane, Lane::kOnDemand);
  EXPECT_EQ(sent[1].head.path, Path::kHandover);
  EXPECT_EQ(sent[1].head.step, 7u);
  EXPECT_EQ(sent[1].payload, (std::vector<std::byte>{std::byte{1}, std::byte{2}}));
  // In its turn: after the layer's prompt.
  ASSERT_TRUE(sender_->Born(id, 1, 65).ok());
  Drain();
  Ready(id, 2, 0, 64);
  sent = Drain();
  ASSERT_FALSE(sent.empty());
  const auto last = sent.back().head.ranges.back();
  EXPECT_EQ(last.end(), 66);
  for (const auto& message : sent) {
    EXPECT_EQ(message.head.layer, 2u);
    EXPECT_EQ(message.lane, Lane::kSpeculative);
  }
  EXPECT_EQ(Bytes(sent), 66 * 96);
  ASSERT_TRUE(sender_->Born(id, 2, 66).ok());
  sent = Drain();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].lane, Lane::kOnDemand);
  // A second birth changes nothing.
  ASSERT_TRUE(sender_->Born(id, 0, 66).ok());
  EXPECT_EQ(Bytes(Drain()), 128 + 128);
  EXPECT_TRUE(absl::IsInvalidArgument(sender_->Born(id, 0, 63)));
  EXPECT_TRUE(absl::IsInvalidArgument(sender_->Born(id, 0, 128)));
  EXPECT_TRUE(absl::IsInvalidArgument(sender_->Born(id, 4, 66)));
}

TEST_F(SenderTest, MetadataGoesBeforeTheBackgroundAndKeepsToTheWindow) {
  Start({.window = {.min_bytes = 1024, .max_bytes = 1024, .initial_bytes = 1024}});
  const auto id = Begin({.begin = 0, .end = 64});
  AllReady(id);
  ASSERT_TRUE(sender_->Metadata(id, 1, 0, 64, false, std::vector<std::byte>(3000)).ok());
  ASSERT_TRUE(sender_->Metadata(id, 1, 0, 0, true, std::vector<std::byte>(10)).ok());
  EXPECT_EQ(channel_->queued(Lane::kMetadata), 0u);  // the window is full
  const auto sent = Drain();
  // Two messages of background fill the window; then the metadata, though larger than the window.
  EXPECT_EQ(sent[2].head.path, Path::kMetadata);
  EXPECT_EQ(sent[2].payload.size(), 3000u);
  EXPECT_EQ(sent[2].head.token_end, 64u);
  EXPECT_EQ(sent[3].head.flags, kFlagChecksum | kFlagHeader);
  EXPECT_EQ(channel_->most_windowed_bytes(), 3000);
  EXPECT_EQ(sender_->stats(id).bytes_by_path.at(Path::kMetadata), 3010u);
  EXPECT_TRUE(absl::IsInvalidArgument(sender_->Metadata(id, 0, 0, 1, false, {})));
  EXPECT_TRUE(absl::IsInvalidArgument(
      sender_->Metadata(id, 0, 0, 1, false, std::vector<std::byte>(kMaxOpaqueBytes + 1))));
}

// Calls `then` before the n-th message of the background is taken.
class InterruptedChannel final : public ScriptedChannel {
 public:
  InterruptedChannel(int n, std::function<void()> then) : left_(n), then_(std::move(then)) {}
  absl::Status Send(channel::OutMessage message) override {
    if (message.lane == Lane::kProactive && --left_ == 0) then_();
    return ScriptedChannel::Send(std::move(message));
  }

 private:
  int left_;
  const std::function<void()> then_;
};

// Messages of the background that were put together and not given to the channel yet have their
// part of the window: metadata that is larger than the rest of it waited for them, and they for the
// metadata.
TEST_F(SenderTest, MetadataThatComesBetweenMessagesOfTheBackgroundStopsNothing) {
  for (int n = 1; n <= 12; ++n) {
    base::TransferId id;
    channel_ = std::make_shared<InterruptedChannel>(n, [&] {
      EXPECT_TRUE(sender_->Metadata(id, 1, 0, 64, false, std::vector<std::byte>(2000)).ok());
    });
    sender_ = std::make_unique<TransferSender>(
        channel_, TransferSender::Options{
                      .own_incarnation = kSenderIncarnation,
                      .peer_incarnation = kReceiverIncarnation,
                      .window = {.min_bytes = 1024, .max_bytes = 1024, .initial_bytes = 1024},
                      .clock = &clock_});
    // A message is of one layer, so that what goes together is several of them.
    std::vector<BlockId> order;
    for (int token = 0; token < 64; ++token) {
      for (int layer = 0; layer < 3; ++layer) order.push_back({layer, token});
    }
    id = Begin({.begin = 0, .end = 1024, .order = order});
    AllReady(id);
    EXPECT_EQ(Bytes(Drain()), 1024 * kTokenBytes + 2000) << "before message " << n;
    sender_.reset();
  }
}

TEST_F(SenderTest, MetadataOnceMoreCountsAsSentAgainAndOnNoPath) {
  Start();
  const auto id = Begin({.begin = 0, .end = 64});
  const auto send = [&](int64_t begin, int64_t end, bool header, size_t bytes) {
    ASSERT_TRUE(sender_->Metadata(id, 1, begin, end, header, std::vector<std::byte>(bytes)).ok());
  };
  send(0, 0, true, 10);
  send(0, 32, false, 320);
  send(32, 64, false, 320);
  Drain();
  EXPECT_EQ(sender_->stats(id).resent_bytes, 0u);
  send(0, 0, true, 10);
  send(16, 64, false, 480);
  EXPECT_EQ(Bytes(Drain()), 490);
  EXPECT_EQ(sender_->stats(id).resent_bytes, 490u);
  EXPECT_EQ(sender_->stats(id).bytes, 650u + 490);
  EXPECT_EQ(sender_->stats(id).bytes_by_path.at(Path::kMetadata), 650u);
}

TEST_F(SenderTest, WhatCannotBeIsRefused) {
  Start();
  const auto id = Begin({.begin = 0, .end = 64});
  AllReady(id);
  const auto fetch = [&](int layer, kv::HeadRange range) {
    return sender_->Fetch(id, layer, std::vector<kv::HeadRange>{range}, false);
  };
  EXPECT_TRUE(absl::IsInvalidArgument(fetch(3, {0, 0, 1})));
  EXPECT_TRUE(absl::IsInvalidArgument(fetch(2, {3, 0, 1})));
  EXPECT_TRUE(absl::IsInvalidArgument(fetch(2, {-2, 0, 1})));
  EXPECT_TRUE(absl::IsInvalidArgument(fetch(2, {0, 2, 1})));
  // More entries than there are: not disjoint.
  const std::vector<kv::HeadRange> many(100, {.head = 0, .begin = 0, .end = 64});
  EXPECT_TRUE(absl::IsInvalidArgument(sender_->Fetch(id, 0, many, false)));
  // What begins beyond what there is takes nothing off the sum of the others.
  std::vector<kv::HeadRange> twice = {{-1, int64_t{4} << 60, int64_t{4} << 60}};
  for (int i = 0; i < 2; ++i) twice.push_back({-1, 0, std::numeric_limits<int64_t>::max()});
  EXPECT_TRUE(absl::IsInvalidArgument(sender_->Fetch(id, 0, twice, true)));
  const std::vector<kv::HeadRange> far(
      4, {0, std::numeric_limits<int64_t>::max() - 1, std::numeric_limits<int64_t>::max()});
  EXPECT_TRUE(sender_->Fetch(id, 0, far, true).ok()) << "nothing, and nothing overflows";
  EXPECT_TRUE(fetch(2, {2, 0, INT64_MAX}).ok());  // as far as there is something
  EXPECT_TRUE(absl::IsNotFound(sender_->Born(base::NewTransferId(), 0, 64)));
  SendSpec spec{.id = base::NewTransferId(), .sequence = source_, .begin = 0, .end = 64};
  for (const BlockId& bad : {BlockId{3, 0}, {-1, 0}, {0, 1024}, {0, -1}}) {
    spec.order = {bad};
    EXPECT_TRUE(absl::IsInvalidArgument(sender_->Begin(spec)));
  }
  spec.order = {{0, 1}, {0, 1}};
  EXPECT_TRUE(absl::IsInvalidArgument(sender_->Begin(spec)));
}

TEST_F(SenderTest, EndInEveryStateLetsTheSequenceGo) {
  const std::vector<std::function<void(const base::TransferId&)>> states = {
      [](const base::TransferId&) {},
      [&](const base::TransferId& id) { Ready(id, 0, 0, 32); },
      [&](const base::TransferId& id) { AllReady(id); },
      [&](const base::TransferId& id) {
        AllReady(id);
        channel_->HandOutOne();
      },
      [&](const base::TransferId& id) {
        AllReady(id);
        sender_->PromptDone(id);
        (void)sender_->Fetch(id, 2, std::vector<kv::HeadRange>{{1, 0, 64}}, false);
        (void)sender_->Metadata(id, 0, 0, 64, false, std::vector<std::byte>(100));
        (void)sender_->Born(id, 0, 64);
        (void)sender_->Reply(id, 1, 0, std::vector<std::byte>(100));
      },
      [&](const base::TransferId& id) {
        AllReady(id);
        channel_->HandOutAll();
        (void)sender_->Born(id, 0, 64);
      },
  };
  for (const auto& state : states) {
    Start({.window = {.min_bytes = 1024, .max_bytes = 1024, .initial_bytes = 1024}});
    const auto id = Begin({.begin = 0, .end = 64});
    state(id);
    const std::weak_ptr<kv::KvSequence> watch = std::exchange(source_, nullptr);
    sender_->End(id);
    EXPECT_TRUE(watch.expired());
    EXPECT_EQ(channel_->stats().queued_bytes, 0u);
    EXPECT_EQ(sender_->active(), 0);
    // The window is free again.
    const auto next = Begin({.begin = 0, .end = 64});
    AllReady(next);
    ExpectEachEntryOnce(
        [&] {
          auto sent = Drain();
          std::erase_if(sent, [&](const auto& m) { return m.head.transfer_id != next; });
          return sent;
        }(),
        0, 64);
  }
  EXPECT_EQ(log_.count("on_sent"), 2 * static_cast<int64_t>(states.size()));
}

}  // namespace
}  // namespace smartgen::transfer
