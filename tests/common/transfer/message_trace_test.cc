// Messages as whoever watches a transfer sees them: all that is counted, and nothing else.
#include "common/transfer/message_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/common/transfer/transfer_fixture.h"

namespace smartgen::transfer {
namespace {

class MessageTraceTest : public TransferFixture {
 protected:
  static std::map<trace::Kind, int64_t> Bytes(const trace::TracePtr& trace) {
    std::map<trace::Kind, int64_t> bytes;
    for (const trace::Event& event : trace->Read().events) {
      EXPECT_GE(event.duration.count(), 0);
      bytes[event.kind] += event.args[3];
    }
    return bytes;
  }
  trace::TracePtr sent_ = std::make_shared<trace::RequestTrace>("s", base::Clock::Real(), 4096);
  trace::TracePtr received_ = std::make_shared<trace::RequestTrace>("r", base::Clock::Real(), 4096);
};

TEST_F(MessageTraceTest, EventsOfBothSidesHoldTheBytesThatTheStatisticsCount) {
  Connect({.max_message_bytes = 4096, .window = {.initial_bytes = 4 << 20}});
  const base::TransferId id = base::NewTransferId();
  auto source = NewSequence(*source_pool_, 1000);
  auto target = NewSequence(*target_pool_, 1000);
  Fill(*source, 1, 1000);
  ASSERT_TRUE(receiver_
                  ->Begin({.id = id,
                           .sequence = target,
                           .begin = 48,
                           .end = 1000,
                           .on_complete = [this] { log_.Add("complete"); },
                           .on_message = TraceMessages(received_, /*sent=*/false, 1000)})
                  .ok());
  ASSERT_TRUE(sender_
                  ->Begin({.id = id,
                           .sequence = source,
                           .begin = 48,
                           .end = 1000,
                           .full = true,
                           .on_sent = OnSent(),
                           .on_message = TraceMessages(sent_, /*sent=*/true, 1000)})
                  .ok());
  SendLayers(id, 0, 1000);
  ASSERT_TRUE(log_.WaitFor("complete", 1));
  ASSERT_TRUE(log_.WaitFor("sent", 1));
  // Again: what is sent twice counts as neither sent nor received.
  const LayerRange again{.layer = 1, .begin = 100, .end = 200};
  ASSERT_TRUE(sender_->Resend(id, {&again, 1}).ok());
  ASSERT_TRUE(log_.WaitFor("duplicate", 1));
  const int64_t bytes = 952 * Layout().TokenBytes();
  EXPECT_EQ(Bytes(received_),
            (std::map<trace::Kind, int64_t>{{trace::Kind::kReceivedFull, bytes}}));
  EXPECT_EQ(Bytes(sent_)[trace::Kind::kSentFull], bytes);
  EXPECT_EQ(Bytes(sent_)[trace::Kind::kSentOnDemand], 0);
  EXPECT_EQ(receiver_->End(id).bytes, static_cast<uint64_t>(bytes));
  EXPECT_EQ(receiver_->End(id).bytes, 0u);
}

TEST_F(MessageTraceTest, ABlockIsNamedByItsFirstTokenAndABornTokenIsInNone) {
  const auto watch = TraceMessages(sent_, /*sent=*/true, 2048);
  // Blocks of two tokens.
  watch({.path = Path::kProactive, .layer = 3, .first_token = 100, .tokens = 8, .bytes = 5});
  watch({.path = Path::kOnDemand, .layer = 3, .first_token = 2048, .tokens = 1, .bytes = 6});
  watch({.path = Path::kHandover, .layer = 3, .step = 2050, .bytes = 7});
  const auto events = sent_->Read().events;
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].args, (trace::Args{3, 50, 8, 5}));
  EXPECT_EQ(events[1].args, (trace::Args{3, -1, 1, 6}));
  EXPECT_EQ(events[2].args, (trace::Args{3, 2050, 0, 7}));
}

TEST_F(MessageTraceTest, WithoutATraceThereIsNothingToCall) {
  EXPECT_FALSE(TraceMessages(nullptr, true, 1));
}

}  // namespace
}  // namespace smartgen::transfer
