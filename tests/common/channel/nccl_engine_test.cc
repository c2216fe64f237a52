#include "common/channel/nccl/nccl_engine.h"

#include <random>

#include "common/channel/nccl/nccl_channel.h"
#include "tests/common/channel/nccl_fixture.h"

namespace smartgen::channel {
namespace {

using fakes::FakeDevice;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

class NcclEngineTest : public NcclFixture {};

TEST_F(NcclEngineTest, EveryLaneCarriesMessagesBothWays) {
  Start();
  NcclPairing pairing = Pair();
  for (int lane = 0; lane < kNumLanes; ++lane) {
    const auto which = static_cast<Lane>(lane);
    ASSERT_TRUE(pairing.out->Send(Message(which, "out", Pattern(7'777, lane), 100)).ok());
    ASSERT_TRUE(pairing.back->Send(Message(which, "back", Pattern(5'000, lane))).ok());
  }
  ASSERT_TRUE(pairing.there->WaitForMessages(4));
  ASSERT_TRUE(pairing.here->WaitForMessages(4));
  for (const auto& message : pairing.there->messages()) {
    EXPECT_EQ(message.head, "out");
    EXPECT_EQ(message.payload, Pattern(7'777, static_cast<uint64_t>(message.lane)));
  }
  ASSERT_TRUE(done_.WaitForTotal(8));
  EXPECT_EQ(done_.ok(), 8);
  const ChannelStats sent = pairing.out->stats();
  const ChannelStats received = pairing.back->stats();
  for (int lane = 0; lane < kNumLanes; ++lane) {
    EXPECT_EQ(sent.bytes_sent[lane], 7'777u) << lane;
    EXPECT_EQ(sent.messages_sent[lane], 1u) << lane;
    EXPECT_EQ(sent.segments_sent[lane], 78u) << lane;
    EXPECT_EQ(received.bytes_received[lane], 7'777u) << lane;
    EXPECT_EQ(received.messages_received[lane], 1u) << lane;
  }
  EXPECT_EQ(sent.queued_bytes, 0u);
  EXPECT_EQ(pairing.out->transport(), "nccl");
}

TEST_F(NcclEngineTest, SizesAroundAPieceAndNothingAtAllArrive) {
  Start();
  NcclPairing pairing = Pair();
  pairing.there->piece = 11;
  const std::vector<size_t> sizes = {0, 1, 999, 1000, 1001, 0, 2000, 4001, 0, 12'345};
  for (const size_t size : sizes) {
    ASSERT_TRUE(
        pairing.out->Send(Message(Lane::kProactive, std::to_string(size), Pattern(size, size), 37))
            .ok());
  }
  ASSERT_TRUE(pairing.there->WaitForMessages(sizes.size()));
  const auto messages = pairing.there->messages();
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(messages[i].head, std::to_string(sizes[i]));
    EXPECT_EQ(messages[i].payload, Pattern(sizes[i], sizes[i]));
  }
}

TEST_F(NcclEngineTest, KeepsTheOrderWithinALane) {
  Start();
  NcclPairing pairing = Pair();
  for (int i = 0; i < 500; ++i) {
    ASSERT_TRUE(pairing.out
                    ->Send(Message(i % 2 == 0 ? Lane::kProactive : Lane::kSpeculative,
                                   std::to_string(i), Pattern(i * 7 % 3000, i)))
                    .ok());
  }
  ASSERT_TRUE(pairing.there->WaitForMessages(500));
  std::array<int, kNumLanes> last{-1, -1, -1, -1};
  for (const auto& message : pairing.there->messages()) {
    const int number = std::stoi(message.head);
    EXPECT_EQ(message.payload, Pattern(number * 7 % 3000, number));
    EXPECT_GT(number, std::exchange(last[static_cast<size_t>(message.lane)], number));
  }
}

TEST_F(NcclEngineTest, NothingOfARefusedPayloadTravels) {
  Start();
  NcclPairing pairing = Pair();
  pairing.there->refuse = "no";
  ASSERT_TRUE(pairing.out->Send(Message(Lane::kProactive, "no", Pattern(30'000, 1))).ok());
  ASSERT_TRUE(pairing.out->Send(Message(Lane::kProactive, "yes", Pattern(10, 2))).ok());
  ASSERT_TRUE(pairing.there->WaitForMessages(1));
  ASSERT_TRUE(done_.WaitForTotal(2));
  EXPECT_EQ(pairing.back->stats().refused_messages, 1u);
  EXPECT_EQ(pairing.back->stats().refused_bytes, 30'000u);
  EXPECT_EQ(pairing.out->stats().bytes_sent[2], 10u);
}

TEST_F(NcclEngineTest, OnDemandDoesNotWaitForWhatHangsInTheCommunicator) {
  options_.piece_timeout = seconds(20);
  Start();
  NcclPairing pairing = Pair();
  decode_->nccl.Die();  // the next receive never ends
  ASSERT_TRUE(pairing.out->Send(Message(Lane::kProactive, "bulk", Pattern(100'000, 1))).ok());
  ASSERT_TRUE(pairing.out->Send(Message(Lane::kOnDemand, "urgent", Pattern(100, 1))).ok());
  ASSERT_TRUE(pairing.there->WaitForMessages(1));
  EXPECT_EQ(pairing.there->messages()[0].head, "urgent");
}

TEST_F(NcclEngineTest, CancelTagDropsWhatWasNotOffered) {
  options_.window_bytes = 5'000;
  options_.piece_timeout = seconds(20);
  Start();
  NcclPairing pairing = Pair();
  pairing.there->CloseGate();
  for (int i = 0; i < 100; ++i) {
    OutMessage message = Message(Lane::kProactive, std::to_string(i), Pattern(2'000, i));
    message.tag = i % 2 == 0 ? 7 : 8;
    ASSERT_TRUE(pairing.out->Send(std::move(message)).ok());
  }
  ASSERT_TRUE(pairing.there->WaitAtGate());
  const int64_t dropped = pairing.out->CancelTag(7);
  EXPECT_GE(dropped, 48);
  pairing.there->OpenGate();
  ASSERT_TRUE(done_.WaitForTotal(100));
  EXPECT_EQ(done_.cancelled(), dropped);
  ASSERT_TRUE(pairing.there->WaitForMessages(static_cast<size_t>(100 - dropped)));
  EXPECT_EQ(pairing.out->stats().queued_bytes, 0u);
}

TEST_F(NcclEngineTest, ALimitedLaneOffersNoMoreThanItsLimit) {
  Start();
  NcclPairing pairing = Pair();
  pairing.out->LimitInFlight(Lane::kProactive, 1);
  pairing.there->CloseGate();
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(pairing.out->Send(Message(Lane::kProactive, "x", Pattern(2'000, i))).ok());
  }
  ASSERT_TRUE(pairing.out->Send(Message(Lane::kSpeculative, "below", Pattern(2'000, 1))).ok());
  ASSERT_TRUE(pairing.there->WaitAtGate());
  // One is out, all others wait, those of the lane below as well.
  EXPECT_EQ(pairing.out->stats().queued_bytes, 10 * 2'000u);
  pairing.there->OpenGate();
  ASSERT_TRUE(pairing.there->WaitForMessages(11));
  EXPECT_EQ(pairing.there->messages().back().head, "below");
}

TEST_F(NcclEngineTest, AFullLaneSaysSo) {
  options_.max_queued_messages = 3;
  options_.window_bytes = 1;
  Start();
  NcclPairing pairing = Pair();
  pairing.there->CloseGate();
  absl::Status status;
  for (int i = 0; i < 10 && status.ok(); ++i) {
    status = pairing.out->Send(Message(Lane::kProactive, "x", Pattern(100, i)));
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  pairing.there->OpenGate();
}

TEST_F(NcclEngineTest, SizesBeyondTheLimitsAreRefused) {
  Start();
  NcclPairing pairing = Pair();
  for (const Lane lane : {Lane::kOnDemand, Lane::kProactive}) {
    EXPECT_TRUE(absl::IsInvalidArgument(
        pairing.out->Send(Message(lane, std::string(kMaxHeadBytes + 1, 'x'), {}))));
    EXPECT_TRUE(absl::IsInvalidArgument(pairing.out->Send(Message(lane, "", {}))));
    // The longest head still has room for what is put before it.
    ASSERT_TRUE(
        pairing.out->Send(Message(lane, std::string(kMaxHeadBytes, 'y'), Pattern(9, 1))).ok());
  }
  ASSERT_TRUE(pairing.there->WaitForMessages(2));
}

TEST_F(NcclEngineTest, CloseEndsBothEndsAndGivesEverythingBack) {
  Start();
  NcclPairing pairing = Pair();
  ExpectWorks(pairing);
  ASSERT_TRUE(done_.WaitForTotal(1));
  pairing.out->Close(base::Cancelled("enough"));
  ExpectCloses(pairing.here, "enough");
  ExpectCloses(pairing.there, "");
  EXPECT_TRUE(WaitUntil([&] { return prefill_->Rests() && decode_->Rests(); }));
  EXPECT_EQ(network_->communicators(), 0);
  EXPECT_TRUE(absl::IsUnavailable(pairing.out->Send(Message(Lane::kProactive, "late", {}))));
  EXPECT_EQ(pairing.here->closed_count(), 1);
}

TEST_F(NcclEngineTest, AnEngineThatEndsClosesItsChannels) {
  Start();
  NcclPairing pairing = Pair();
  prefill_->engine.reset();
  EXPECT_EQ(pairing.here->closed_count(), 1);
  ExpectCloses(pairing.there, "");
  NcclPairing late;
  const auto ticket = decode_->engine->MakeTicket();
  ASSERT_TRUE(ticket.ok());
  const Result refused =
      decode_->engine->Connect("127.0.0.1", prefill_->tcp->listen_port(), base::NewChannelKey(),
                               *ticket, late.there, In(milliseconds(300)));
  EXPECT_FALSE(refused.ok());
  EXPECT_EQ(late.there->closed_count(), 0);
}

TEST_F(NcclEngineTest, AnEngineThatEndsWhilePairingSaysSo) {
  Start();
  NcclPairing pairing;
  const auto ticket = prefill_->engine->MakeTicket();
  auto expected =
      Expect(*prefill_, base::NewChannelKey(), *ticket, pairing.here, std::chrono::seconds(60));
  prefill_->engine.reset();
  ASSERT_EQ(expected.wait_for(seconds(5)), std::future_status::ready);
  EXPECT_FALSE(expected.get().ok());
  EXPECT_EQ(pairing.here->closed_count(), 0);
}

// --- Cases from the field ---

// The peer's process is gone in the middle of a send: its end of TCP says so at once.
TEST_F(NcclEngineTest, N1_APeerKilledMidSendEndsInAnErrorAnAbortAndANewPairing) {
  for (const bool sender_dies : {true, false}) {
    network_options_.tells_of_the_end = false;
    Start();
    NcclPairing pairing = Pair();
    NcclSide& dies = sender_dies ? *prefill_ : *decode_;
    dies.nccl.Die();
    ASSERT_TRUE(pairing.out->Send(Message(Lane::kProactive, "bulk", Pattern(50'000, 1))).ok());
    std::this_thread::sleep_for(milliseconds(20));  // it hangs in the device by now
    dies.tcp.reset();
    ExpectCloses(sender_dies ? pairing.there : pairing.here, "");
    NcclSide& lives = sender_dies ? *decode_ : *prefill_;
    EXPECT_TRUE(WaitUntil([&] { return lives.Rests(); }));
    Restart(sender_dies ? prefill_ : decode_);
    NcclPairing again = Pair();
    ExpectWorks(again);
  }
}

// Nothing tells that the peer's device hangs: the piece's deadline does.
TEST_F(NcclEngineTest, N1_APeerWhoseDeviceHangsIsNoticedByTheDeadline) {
  for (const bool sender_hangs : {true, false}) {
    network_options_.tells_of_the_end = false;
    Start();
    NcclPairing pairing = Pair();
    (sender_hangs ? prefill_ : decode_)->nccl.Die();
    ASSERT_TRUE(pairing.out->Send(Message(Lane::kProactive, "bulk", Pattern(50'000, 1))).ok());
    const auto& lives = sender_hangs ? pairing.there : pairing.here;
    ExpectCloses(lives, "");
    ASSERT_TRUE(done_.WaitForTotal(sender_hangs ? 1 : 2));
    EXPECT_EQ(done_.ok(), 0);
    EXPECT_TRUE(WaitUntil([&] { return prefill_->Rests() && decode_->Rests(); }));
  }
}

TEST_F(NcclEngineTest, N1_AnErrorOfTheCommunicatorIsNoticedWithoutTraffic) {
  Start();
  NcclPairing pairing = Pair();
  prefill_->engine.reset();  // aborts; the TCP channel says so as well, whoever is first
  ExpectCloses(pairing.there, "");
  EXPECT_TRUE(WaitUntil([&] { return decode_->Rests(); }));
}

TEST_F(NcclEngineTest, N2_AnAbortThatHangsDoesNotHangTheEngineAndIsReported) {
  std::promise<std::string> stuck;
  std::atomic<int> reports{0};
  options_.on_stuck = [&](const std::string& why) {
    if (reports++ == 0) stuck.set_value(why);
  };
  options_.abort_timeout = milliseconds(200);
  Start();
  auto third = MakeSide(false);
  NcclPairing pairing = Pair();
  NcclPairing other = Pair(*prefill_, *third);
  network_->HangAborts(true);
  pairing.out->Close(base::Cancelled("enough"));
  ExpectCloses(pairing.here, "enough");  // at once, abort or not
  // Only the prefill side's and the first decode side's abort hang; the third goes on meanwhile.
  ExpectWorks(other);
  auto why = stuck.get_future();
  ASSERT_EQ(why.wait_for(seconds(5)), std::future_status::ready);
  EXPECT_THAT(why.get(), HasSubstr("has not ended within 0.2 s"));
  network_->HangAborts(false);
  EXPECT_TRUE(WaitUntil([&] {
    return prefill_->engine->stats().aborting == 0 && decode_->engine->stats().aborting == 0;
  }));
  third.reset();
}

TEST_F(NcclEngineTest, N3_AChannelIsUpWhenAByteHasGoneOverItsCommunicator) {
  Start();
  NcclPairing pairing = Pair();
  // Nobody's message.
  EXPECT_EQ(pairing.out->stats().messages_sent[2], 0u);
  EXPECT_EQ(pairing.out->stats().bytes_sent[2], 0u);
  EXPECT_TRUE(pairing.there->messages().empty());
  EXPECT_GT(pairing.out->link_info().acked_bytes, 0u);

  NcclPairing wrong;
  network_->Damage(1);
  const auto [out, back] = TryPair(*prefill_, *decode_, wrong);
  EXPECT_FALSE(back.ok());
  EXPECT_THAT(std::string(base::MessageOf(back.status())), HasSubstr("warm-up"));
  EXPECT_EQ(wrong.there->closed_count(), 0);
}

TEST_F(NcclEngineTest, N3_ACommunicatorThatNeverStandsEndsAtTheDeadline) {
  Start();
  decode_->nccl.Die();
  NcclPairing pairing;
  const auto [out, back] = TryPair(*prefill_, *decode_, pairing, milliseconds(300));
  EXPECT_TRUE(absl::IsDeadlineExceeded(out.status()) || absl::IsUnavailable(out.status()))
      << out.status();
  EXPECT_FALSE(back.ok());
  EXPECT_TRUE(WaitUntil([&] { return prefill_->Rests() && decode_->Rests(); }));
  EXPECT_EQ(pairing.here->closed_count(), 0);
  EXPECT_EQ(pairing.there->closed_count(), 0);
}

// Both sides derive one order: what the doubles check at every message of every test here, and what
// is checked here for envelopes that say otherwise.
TEST_F(NcclEngineTest, N4_EnvelopesOutOfOrderEndThePairing) {
  Start();
  struct Wrong {
    Envelope envelope;
    bool to_sender;
    std::string why;
  };
  const std::vector<std::byte> head = Bytes("head");
  const std::vector<Wrong> all = {
      {{.kind = EnvelopeKind::kOffer, .epoch = 1, .sequence = 7, .amount = 5, .head = head},
       false,
       "number: want 1, came 7"},
      {{.kind = EnvelopeKind::kOffer, .epoch = 99, .sequence = 1, .amount = 5, .head = head},
       false,
       "epoch"},
      {{.kind = EnvelopeKind::kAccept, .epoch = 1, .sequence = 3, .amount = 1},
       true,
       "answer to offer 3"},
      {{.kind = EnvelopeKind::kRefuse, .epoch = 1, .sequence = 0}, true, "answer to offer 0"},
      {{.kind = EnvelopeKind::kAccept, .epoch = 1, .sequence = 1, .amount = 1},
       false,
       "we make none"},
      {{.kind = EnvelopeKind::kOffer, .epoch = 1, .sequence = 1, .amount = 5, .head = head},
       true,
       "rank 0 receives nothing"},
  };
  for (const Wrong& wrong : all) {
    // A peer by hand: a plain TCP channel to one that expects an NCCL channel's envelopes.
    const auto queue = std::make_shared<CommandQueue>();
    auto staging = *Staging::Create(&prefill_->device, 2, 1000);
    auto copies = *prefill_->device.CreateStream();
    auto receiver = std::make_shared<RecordingReceiver>();
    absl::Status failure;
    NcclChannel::Options options;
    options.role = wrong.to_sender ? NcclChannel::Role::kSender : NcclChannel::Role::kReceiver;
    options.epoch = 1;
    const auto channel = std::make_shared<NcclChannel>(
        options,
        NcclChannel::Parts{&prefill_->nccl, staging.get(), copies.get(), base::Clock::Real(),
                           queue},
        receiver, [&](const Result& result) { failure = result.status(); });
    const auto side = channel->TcpReceiver();
    const auto bytes = Wrap(wrong.envelope);
    if (!wrong.to_sender && wrong.envelope.sequence > 0 &&
        wrong.envelope.kind == EnvelopeKind::kOffer) {
      const auto warm = Wrap({.kind = EnvelopeKind::kOffer, .epoch = 1, .amount = 1});
      ASSERT_TRUE(side->OnHead(Lane::kOnDemand, warm, 0).ok());
      side->OnPayload(Lane::kOnDemand, warm, {});
    }
    ASSERT_TRUE(side->OnHead(Lane::kOnDemand, bytes, 0).ok());
    side->OnPayload(Lane::kOnDemand, bytes, {});
    for (auto& command : queue->Take({})) command();
    int turn = 0;
    const auto work = channel->Work(base::Clock::Real()->Now(), &turn);
    ASSERT_FALSE(work.ok()) << wrong.why;
    EXPECT_THAT(std::string(base::MessageOf(work.status())), HasSubstr(wrong.why));
    channel->Fail(work.status());
    EXPECT_FALSE(failure.ok());
  }
}

// Senders that share a receiver, and receivers that share a sender, over devices that do one thing
// at a time.
TEST_F(NcclEngineTest, H5_ManyPairsAndBothDirectionsMakeNoDeadlock) {
  options_.piece_timeout = seconds(4);
  Start();
  constexpr int kSides = 3;
  std::vector<std::unique_ptr<NcclSide>> prefills;
  std::vector<std::unique_ptr<NcclSide>> decodes;
  for (int i = 0; i < kSides; ++i) {
    prefills.push_back(MakeSide(true));
    decodes.push_back(MakeSide(false));
  }
  std::vector<NcclPairing> pairings;
  for (auto& from : prefills) {
    for (auto& to : decodes) pairings.push_back(Pair(*from, *to));
  }
  constexpr int kMessages = 60;
  for (int i = 0; i < kMessages; ++i) {
    for (auto& pairing : pairings) {
      const auto size = static_cast<size_t>(i * 131 % 5000);
      ASSERT_TRUE(
          pairing.out->Send(Message(Lane::kProactive, std::to_string(i), Pattern(size, i))).ok());
      ASSERT_TRUE(
          pairing.back->Send(Message(Lane::kProactive, std::to_string(i), Pattern(size, i))).ok());
    }
  }
  for (auto& pairing : pairings) {
    ASSERT_TRUE(pairing.there->WaitForMessages(kMessages));
    ASSERT_TRUE(pairing.here->WaitForMessages(kMessages));
    const auto messages = pairing.there->messages();
    for (int i = 0; i < kMessages; ++i) {
      EXPECT_EQ(messages[i].payload, Pattern(static_cast<size_t>(i * 131 % 5000), i));
    }
    EXPECT_EQ(pairing.there->closed_count(), 0);
  }
}

TEST_F(NcclEngineTest, H4_AfterThePeersRestartANewPairingWorksAndTheOldOneIsGone) {
  Start();
  NcclPairing first = Pair();
  ExpectWorks(first);
  Restart(prefill_);
  ExpectCloses(first.there, "");
  NcclPairing second = Pair();
  ExpectWorks(second);
  EXPECT_TRUE(WaitUntil([&] { return decode_->engine->stats().aborts == 1; }));
  EXPECT_EQ(first.there->closed_count(), 1);
}

TEST_F(NcclEngineTest, N6_CommunicatorsAreCountedMeasuredAndCapped) {
  options_.max_pairs = 2;
  network_options_.communicator_bytes = 8 << 20;
  Start();
  auto second = MakeSide(false);
  auto third = MakeSide(false);
  NcclPairing one = Pair();
  NcclPairing two = Pair(*prefill_, *second);
  EXPECT_TRUE(WaitUntil([&] { return prefill_->engine->stats().communicator_bytes == 16 << 20; }));
  NcclPairing three;
  const auto [out, back] = TryPair(*prefill_, *third, three, milliseconds(500));
  EXPECT_TRUE(absl::IsResourceExhausted(out.status())) << out.status();
  EXPECT_THAT(std::string(base::MessageOf(out.status())), HasSubstr("max_pairs"));
  one.out->Close(base::Cancelled("room for another"));
  EXPECT_TRUE(WaitUntil([&] {
    const NcclStats stats = prefill_->engine->stats();
    return stats.channels == 1 && stats.aborting == 0;
  }));
  NcclPairing four = Pair(*prefill_, *third);
  ExpectWorks(four);
}

TEST_F(NcclEngineTest, N6_ADeviceWithoutRoomForACommunicatorRefusesThePairing) {
  network_options_.communicator_bytes = 600 << 20;
  Start();
  auto second = MakeSide(false);
  NcclPairing one = Pair();
  NcclPairing two;
  const auto [out, back] = TryPair(*prefill_, *second, two, milliseconds(500));
  EXPECT_TRUE(absl::IsResourceExhausted(out.status())) << out.status();
  EXPECT_FALSE(back.ok());
  ExpectWorks(one);
}

// W2: a device whose copies come late, on streams that run apart: whoever read before the event
// would read what was there before.
TEST_F(NcclEngineTest, W2_WhatIsDeliveredIsWhatWasSentHoweverLateTheStreamsAre) {
  device_options_.temper = FakeDevice::Temper::kLoose;
  device_options_.max_pause = std::chrono::microseconds(2000);
  network_options_.most_looks = 5;
  Start();
  NcclPairing pairing = Pair();
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(
        pairing.out->Send(Message(Lane::kProactive, std::to_string(i), Pattern(3100, i))).ok());
  }
  ASSERT_TRUE(pairing.there->WaitForMessages(100));
  for (const auto& message : pairing.there->messages()) {
    EXPECT_EQ(message.payload, Pattern(3100, std::stoul(message.head)));
  }
}

TEST_F(NcclEngineTest, ALostDeviceEndsTheProcess) {
  std::promise<std::string> stuck;
  options_.on_stuck = [&](const std::string& why) { stuck.set_value(why); };
  options_.abort_timeout = seconds(1);
  Start();
  NcclPairing pairing = Pair();
  prefill_->device.Lose();
  ASSERT_TRUE(pairing.out->Send(Message(Lane::kProactive, "x", Pattern(10, 1))).ok());
  ExpectCloses(pairing.here, "the device was lost");
  auto why = stuck.get_future();
  ASSERT_EQ(why.wait_for(seconds(5)), std::future_status::ready);
  EXPECT_THAT(why.get(), HasSubstr("the device has failed"));
}

// 10,000 transfers; now and then somebody dies, hangs, closes or refuses. Nothing is left behind.
TEST_F(NcclEngineTest, TenThousandTransfersWithFaultsLeaveNothingBehind) {
  options_.piece_timeout = seconds(4);
  network_options_.most_looks = 2;
  Start();
  std::minstd_rand random(5);
  const auto draw = [&](int below) {
    return static_cast<int>(random() % static_cast<unsigned>(below));
  };
  int64_t sent = 0;
  int pairings = 0;
  while (sent < 10'000) {
    NcclPairing pairing = Pair();
    ASSERT_NE(pairing.out, nullptr);
    ASSERT_NE(pairing.back, nullptr);
    ++pairings;
    pairing.there->refuse = "refused";
    const int messages = 200 + draw(400);
    for (int i = 0; i < messages; ++i) {
      const auto lane = draw(4) == 0 ? Lane::kSpeculative : Lane::kProactive;
      if (!pairing.out
               ->Send(Message(lane, draw(10) == 0 ? "refused" : "x",
                              Pattern(static_cast<size_t>(draw(2500)), 1)))
               .ok()) {
        break;
      }
      ++sent;
    }
    const int fault = draw(5);
    if (fault == 0) pairing.out->Close(base::Cancelled("the sender's end"));
    if (fault == 1) pairing.back->Close(base::Cancelled("the receiver's end"));
    if (fault == 2) Restart(prefill_);
    if (fault == 3) Restart(decode_);
    if (fault == 4) {
      ASSERT_TRUE(done_.WaitForTotal(sent));
      pairing.out->Close(base::Cancelled("done"));
    }
    ASSERT_TRUE(pairing.here->WaitForClose().has_value());
    ASSERT_TRUE(pairing.there->WaitForClose().has_value());
    ASSERT_TRUE(done_.WaitForTotal(sent));
  }
  EXPECT_EQ(done_.total(), sent);
  EXPECT_GT(done_.ok(), 0);
  EXPECT_GT(pairings, 15);
  EXPECT_TRUE(WaitUntil([&] { return prefill_->Rests() && decode_->Rests(); }));
  EXPECT_EQ(network_->communicators(), 0);
}

TEST(NcclEnvelope, WhatIsWrappedComesOutAgain) {
  const auto head = Bytes("a head");
  for (const Envelope& envelope :
       {Envelope{.head = head},
        Envelope{.kind = EnvelopeKind::kOffer,
        .lane = Lane::kSpeculative,
        .epoch = 0xfedcba98,
        .sequence = 0x123456789abcdef0,
        .amount = kMaxPayloadBytes,
        .head = head},
        Envelope{.kind = EnvelopeKind::kAccept, .epoch = 1, .sequence = 2, .amount = 3},
        Envelope{.kind = EnvelopeKind::kRefuse, .epoch = 1, .sequence = 2}}) {
    const auto bytes = Wrap(envelope);
    const auto back = Unwrap(bytes);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->kind, envelope.kind);
    EXPECT_EQ(back->lane, envelope.lane);
    EXPECT_EQ(back->epoch, envelope.epoch);
    EXPECT_EQ(back->sequence, envelope.sequence);
    EXPECT_EQ(back->amount, envelope.amount);
    EXPECT_TRUE(std::ranges::equal(back->head, envelope.head));
    // Cut anywhere, it is refused or another valid one; never read beyond its end.
    for (size_t cut = 0; cut < bytes.size(); ++cut) {
      const std::vector<std::byte> part(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(cut));
      const bool head_cut = envelope.kind == EnvelopeKind::kPlain ? cut > 1 : cut > kEnvelopeBytes;
      EXPECT_EQ(Unwrap(part).ok(), head_cut) << cut;
    }
  }
}

TEST(NcclEnvelope, WrongFieldsAreNamed) {
  const auto head = Bytes("head");
  const auto why = [](std::vector<std::byte> bytes, size_t at, uint8_t value) {
    bytes[at] = std::byte{value};
    const auto result = Unwrap(bytes);
    return result.ok() ? "none" : std::string(base::MessageOf(result.status()));
  };
  const auto offer = Wrap({.kind = EnvelopeKind::kOffer, .sequence = 1, .amount = 1, .head = head});
  EXPECT_THAT(why(offer, 0, 4), HasSubstr("kind"));
  EXPECT_THAT(why(offer, 1, 0), HasSubstr("lane"));
  EXPECT_THAT(why(offer, 1, 4), HasSubstr("lane"));
  EXPECT_THAT(why(offer, 2, 1), HasSubstr("reserved"));
  EXPECT_THAT(why(offer, 23, 1), HasSubstr("payload"));
  EXPECT_THAT(why(offer, 8, 0), HasSubstr("want a head, but for number 0"));
  const auto refuse = Wrap({.kind = EnvelopeKind::kRefuse, .sequence = 1});
  EXPECT_THAT(why(refuse, 16, 1), HasSubstr("refusal: amount"));
  const std::vector<std::byte> long_head(kMaxHeadBytes + 1);
  EXPECT_FALSE(Unwrap(Wrap({.head = long_head})).ok());
  auto accept = Wrap({.kind = EnvelopeKind::kAccept, .sequence = 1, .amount = 1});
  accept.push_back(std::byte{0});
  EXPECT_THAT(why(accept, 2, 0), HasSubstr("too many"));
}

}  // namespace
}  // namespace smartgen::channel
