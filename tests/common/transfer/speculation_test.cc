// Path 3 over a link whose speed the test computes, on a simulated clock (smartgen.md,
// section 8.6): a decode step gives a credit of `ratio` of the KV, the link carries an eighth of it
// in that time.
#include <cmath>

#include "tests/common/transfer/scripted_channel.h"
#include "tests/common/transfer/transfer_fixture.h"

namespace smartgen::transfer {
namespace {

class SpeculationTest : public TransferFixture {
 protected:
  static constexpr int64_t kTokens = 2048;
  static constexpr double kStepSeconds = 0.02;
  static constexpr int kStepsOfTheLink = 8;  // T_t

  void SetUp() override {
    channel_ = std::make_shared<ScriptedChannel>();
    sender_ = std::make_unique<TransferSender>(
        channel_, TransferSender::Options{.own_incarnation = kSenderIncarnation,
                                          .peer_incarnation = kReceiverIncarnation,
                                          .clock = &clock_});
    source_ = NewSequence(*source_pool_, kTokens);
    Fill(*source_, 1, kTokens);
    all_ = kTokens * Layout().TokenBytes();
  }
  // Path 1 is over and has carried nothing.
  void BeginRest() {
    ASSERT_TRUE(
        sender_
            ->Begin({.id = id_,
                     .sequence = source_,
                     .end = kTokens,
                     .pushed = 0,
                     .credits = true,
                     .on_sent = [this](const absl::Status& status) { sent_ = status.ok(); }})
            .ok());
    for (int layer = 0; layer < 3; ++layer) {
      ASSERT_TRUE(sender_->LayerReady(id_, {layer, 0, kTokens}).ok());
    }
    sender_->PromptDone(id_);
  }
  // A step's time passes: the link hands out what it carries in it.
  void Step() {
    const double end = base::ToSeconds(clock_.Now() - begin_) + kStepSeconds;
    const double rate = static_cast<double>(all_) / (kStepsOfTheLink * kStepSeconds);
    while (link_free_ < end && channel_->HandOutOne()) {
      for (const auto& sent : channel_->TakeSent()) {
        link_free_ += static_cast<double>(sent.payload.size()) / rate;
        by_path_[sent.head.path] += static_cast<int64_t>(sent.payload.size());
      }
      const auto at = begin_ + base::FromSeconds(link_free_);
      if (at > clock_.Now()) clock_.Advance(at - clock_.Now());
    }
    const auto until = begin_ + base::FromSeconds(end);
    if (until > clock_.Now()) clock_.Advance(until - clock_.Now());
    link_free_ = std::max(link_free_, base::ToSeconds(clock_.Now() - begin_));  // idle time is lost
  }
  // Steps until everything was sent. As the decode side does: a step's worth of credit, and what
  // was not carried is not added up.
  int StepsUntilSent(double ratio) {
    const int64_t per_step =
        static_cast<int64_t>(std::ceil(ratio * static_cast<double>(all_))) + Layout().TokenBytes(0);
    int64_t credited = 0;
    for (int steps = 1; steps <= 100; ++steps) {
      const int64_t more = per_step - (credited - by_path_[Path::kSpeculative]);
      if (more > 0) {
        sender_->Credit(id_, more);
        credited += more;
      }
      Step();
      if (sent_) return steps;
    }
    return -1;
  }

  base::SimulatedClock clock_;
  const base::TimePoint begin_ = clock_.Now();
  const base::TransferId id_ = base::NewTransferId();
  std::shared_ptr<ScriptedChannel> channel_;
  std::shared_ptr<kv::KvSequence> source_;
  int64_t all_ = 0;
  double link_free_ = 0;  // seconds from begin_
  std::map<Path, int64_t> by_path_;
  bool sent_ = false;
};

TEST_F(SpeculationTest, ARatioTakesItsInverseInStepsWhereTheLinkCarriesIt) {
  BeginRest();
  EXPECT_LE(StepsUntilSent(0.1), 10);
  EXPECT_EQ(by_path_[Path::kSpeculative], all_);
}

TEST_F(SpeculationTest, ASmallRatioTakesLonger) {
  BeginRest();
  const int steps = StepsUntilSent(0.05);
  EXPECT_LE(steps, 20);
  EXPECT_GE(steps, 19);
}

TEST_F(SpeculationTest, ALargeRatioTakesWhatTheLinkTakes) {
  BeginRest();
  const int steps = StepsUntilSent(0.2);
  EXPECT_GE(steps, kStepsOfTheLink);
  EXPECT_LE(steps, static_cast<int>(std::ceil(1.15 * kStepsOfTheLink)));
}

TEST_F(SpeculationTest, OnceAllIsSentAFetchBringsNothing) {
  BeginRest();
  ASSERT_GT(StepsUntilSent(0.2), 0);
  for (int layer = 0; layer < 3; ++layer) {
    ASSERT_TRUE(
        sender_->Fetch(id_, layer, std::vector<kv::HeadRange>{{-1, 0, kTokens}}, false).ok());
  }
  Step();
  EXPECT_EQ(by_path_[Path::kOnDemand], 0);
}

TEST_F(SpeculationTest, AnEarlyEndLetsTheKvGo) {
  BeginRest();
  sender_->Credit(id_, all_ / 4);
  Step();
  EXPECT_GT(source_.use_count(), 1);
  sender_->End(id_);
  EXPECT_EQ(source_.use_count(), 1);
  EXPECT_EQ(sender_->active(), 0);
}

TEST_F(SpeculationTest, TheLinkIsBusyWhileItCarriesAndNoLonger) {
  BeginRest();
  clock_.Advance(std::chrono::seconds(1));  // without credit nothing is under way
  link_free_ = 1;
  EXPECT_EQ(sender_->busy_seconds(), 0);
  ASSERT_GT(StepsUntilSent(1), 0);
  const double busy = sender_->busy_seconds();
  EXPECT_NEAR(busy, kStepsOfTheLink * kStepSeconds, 0.1 * kStepsOfTheLink * kStepSeconds);
  clock_.Advance(std::chrono::seconds(1));
  EXPECT_EQ(sender_->busy_seconds(), busy);
}

}  // namespace
}  // namespace smartgen::transfer
