// What a lane may have on the way, and what the channel knows of the way.
#include <thread>

#include "tests/common/channel/tcp_fixture.h"

namespace smartgen::channel {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class TcpLimitTest : public TcpFixture {};

TEST_F(TcpLimitTest, ALimitBoundsWhatIsHandedToTheNetworkAndNotTaken) {
  constexpr uint64_t kLimit = 64 << 10;
  Start({.socket_buffer_bytes = 16 << 10});  // the receiving system takes little on its own
  Pair();
  out_->LimitInFlight(Lane::kProactive, kLimit);
  there_->CloseGate();
  for (int i = 0; i < 16; ++i) {
    ASSERT_TRUE(out_->Send(Message(Lane::kProactive, "bulk", Pattern(256 << 10, 1))).ok());
  }
  ASSERT_TRUE(there_->WaitAtGate());
  std::this_thread::sleep_for(milliseconds(50));
  // At most the limit, and what the other system took into its buffer.
  EXPECT_LE(out_->stats().bytes_sent[2], kLimit + (64 << 10));
  EXPECT_GT(out_->stats().bytes_sent[2], 0u);
  there_->OpenGate();
  ASSERT_TRUE(there_->WaitForMessages(16));
  EXPECT_EQ(there_->messages()[15].payload, Pattern(256 << 10, 1));
}

TEST_F(TcpLimitTest, ALaneAtItsLimitDoesNotHoldUpTheOnesAbove) {
  Start({.socket_buffer_bytes = 16 << 10});
  Pair();
  out_->LimitInFlight(Lane::kSpeculative, 1);
  ASSERT_TRUE(out_->Send(Message(Lane::kSpeculative, "bulk", Pattern(64 << 10, 1))).ok());
  ASSERT_TRUE(out_->Send(Message(Lane::kOnDemand, "urgent", {})).ok());
  ASSERT_TRUE(there_->WaitForMessages(1));
  EXPECT_EQ(there_->messages()[0].head, "urgent");
  out_->LimitInFlight(Lane::kSpeculative, 0);
  ASSERT_TRUE(there_->WaitForMessages(2));
}

TEST_F(TcpLimitTest, TheLinkIsKnownOnceBytesWereAcknowledged) {
  Start();
  Pair();
  uint64_t sent = 0;
  const base::Deadline deadline = In(seconds(20));
  // A sample is taken when there is something to write, a millisecond after the last.
  while (out_->link_info().acked_bytes < (4 << 20)) {
    ASSERT_FALSE(deadline.Expired(*base::Clock::Real()));
    ASSERT_TRUE(out_->Send(Message(Lane::kProactive, "bulk", Pattern(1 << 20, 1))).ok());
    sent += 1 << 20;
    std::this_thread::sleep_for(milliseconds(2));
  }
  const LinkInfo info = out_->link_info();
  EXPECT_LE(info.acked_bytes, sent + sent / 100);  // headers beside
  EXPECT_GT(info.min_rtt_seconds, 0);
  EXPECT_LT(info.min_rtt_seconds, 1);
}

}  // namespace
}  // namespace smartgen::channel
