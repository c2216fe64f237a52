// Both ends over a loopback channel.
#include <numeric>
#include <random>
#include <thread>

#include "tests/common/transfer/transfer_fixture.h"

namespace smartgen::transfer {
namespace {

using std::chrono::seconds;

class TransferTest : public TransferFixture {};

TEST_F(TransferTest, WhatStandsOnOneSideStandsOnTheOther) {
  Connect();
  const base::TransferId id = base::NewTransferId();
  auto source = NewSequence(*source_pool_, 1000);
  auto target = NewSequence(*target_pool_, 1000);
  Fill(*source, 1, 1000);
  ASSERT_TRUE(BeginReceive(id, target, 48, 1000).ok());
  ASSERT_TRUE(BeginSend(id, source, 48, 1000).ok());
  // In chunks, as a long prefill would, with an overlap and tokens that are not asked for.
  SendLayers(id, 0, 500);
  SendLayers(id, 480, 1000);
  ASSERT_TRUE(log_.WaitFor("complete", 1));
  ASSERT_TRUE(log_.WaitFor("sent", 1));
  for (int layer = 0; layer < 3; ++layer) {
    EXPECT_TRUE(Equal(*source, *target, layer, 48, 1000));
    EXPECT_EQ(target->FirstNotLocal(layer, 0, 1000), 0);
  }
  EXPECT_EQ(log_.count("progress"), 3);
  const uint64_t bytes = 952 * static_cast<uint64_t>(Layout().TokenBytes());
  EXPECT_EQ(sender_->stats(id).bytes, bytes);
  EXPECT_EQ(sender_->stats(id).resent_bytes, 0u);
  EXPECT_EQ(receiver_->stats(id).bytes, bytes);
  EXPECT_EQ(receiver_->stats(id).bytes_by_path.at(Path::kFull), bytes);
  EXPECT_EQ(receiver_->stats(id).duplicate_bytes, 0u);
}

TEST_F(TransferTest, P4_AChunkOfALayerIsOneMessageUpToTheLimit) {
  Connect({.max_message_bytes = 1 << 20, .window = {.initial_bytes = 4 << 20}});
  const base::TransferId id = base::NewTransferId();
  auto source = NewSequence(*source_pool_, 4096);
  auto target = NewSequence(*target_pool_, 4096);
  Fill(*source, 1, 4096);
  ASSERT_TRUE(BeginReceive(id, target, 0, 4096).ok());
  ASSERT_TRUE(BeginSend(id, source, 0, 4096).ok());
  SendLayers(id, 0, 4096);
  ASSERT_TRUE(log_.WaitFor("complete", 1));
  ASSERT_TRUE(log_.WaitFor("sent", 1));
  // 4,096 tokens of 128, 128 and 96 bytes: half a MiB a layer. Pages were handed out in ascending
  // order, so that each message is one segment.
  EXPECT_EQ(sender_->stats(id).messages, 3u);
  EXPECT_EQ(sender_->stats(id).segments, 3u);
}

TEST_F(TransferTest, L15_EachPageIsFreedByExactlyOneOwner) {
  Connect({.window = {.initial_bytes = 4 << 20}});
  {
    const base::TransferId pushed = base::NewTransferId();
    auto source = NewSequence(*source_pool_, 256);
    auto target = NewSequence(*target_pool_, 256);
    Fill(*source, 1, 256);
    ASSERT_TRUE(BeginReceive(pushed, target, 0, 256).ok());
    ASSERT_TRUE(BeginSend(pushed, source, 0, 256).ok());
    SendLayers(pushed, 0, 256);
    // Pushed and fetched at once: whichever comes second is refused.
    std::vector<LayerRange> all;
    for (int layer = 0; layer < 3; ++layer) all.push_back({.layer = layer, .begin = 0, .end = 256});
    ASSERT_TRUE(sender_->Resend(pushed, all).ok());
    ASSERT_TRUE(log_.WaitFor("complete", 1));
    ASSERT_TRUE(log_.WaitFor("duplicate", 3));
    sender_->End(pushed);
    receiver_->End(pushed);
    EXPECT_EQ(log_.count("complete"), 1);
  }
  sender_.reset();
  sending_.reset();
  listener_.reset();
  dialler_.reset();
  EXPECT_EQ(source_pool_->free_pages(), source_pool_->total_pages());
  EXPECT_EQ(target_pool_->free_pages(), target_pool_->total_pages());
  EXPECT_EQ(source_pool_->misuses() + target_pool_->misuses(), 0);
}

TEST_F(TransferTest, EndWhileQueuedDropsAndUnpins) {
  const channel::FaultOptions slow{.bandwidth = 1e5};
  Connect({.max_message_bytes = 4096}, &slow);
  const base::TransferId id = base::NewTransferId();
  std::weak_ptr<kv::KvSequence> watch;
  {
    auto source = NewSequence(*source_pool_, 4096);
    watch = source;
    Fill(*source, 1, 4096);
    ASSERT_TRUE(BeginSend(id, source, 0, 4096).ok());
  }
  SendLayers(id, 0, 4096);
  EXPECT_FALSE(watch.expired());
  sender_->End(id);
  sender_->End(id);
  ASSERT_TRUE(log_.WaitFor("sent cancelled", 1));
  const base::Deadline deadline = In(seconds(20));
  // The count reaches zero a moment before the destructor has given the pages back.
  while (source_pool_->free_pages() != source_pool_->total_pages() &&
         !deadline.Expired(*base::Clock::Real())) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(watch.expired());
  EXPECT_EQ(source_pool_->free_pages(), source_pool_->total_pages());
  EXPECT_EQ(sender_->active(), 0);
  EXPECT_TRUE(absl::IsNotFound(sender_->LayerReady(id, {0, 0, 16})));
  EXPECT_TRUE(absl::IsNotFound(sender_->Resend(id, {})));
}

TEST_F(TransferTest, AChannelThatClosesFailsTheTransferOnce) {
  const channel::FaultOptions breaks{.close_after_messages = 5};
  Connect({.max_message_bytes = 4096}, &breaks);
  const base::TransferId id = base::NewTransferId();
  auto source = NewSequence(*source_pool_, 4096);
  auto target = NewSequence(*target_pool_, 4096);
  Fill(*source, 1, 4096);
  ASSERT_TRUE(BeginReceive(id, target, 0, 4096).ok());
  ASSERT_TRUE(BeginSend(id, source, 0, 4096).ok());
  for (int layer = 0; layer < 3; ++layer) {
    (void)sender_->LayerReady(id, {layer, 0, 4096}).ok();
  }
  ASSERT_TRUE(log_.WaitFor("sent failed", 1));
  ASSERT_TRUE(log_.WaitFor("closed", 1));
  EXPECT_TRUE(sender_->stats(id).failed);
  EXPECT_FALSE(sender_->LayerReady(id, {0, 0, 16}).ok());
  sender_->End(id);
  EXPECT_EQ(log_.count("sent failed"), 1);
  EXPECT_EQ(log_.count("sent cancelled"), 0);
}

// What a channel holds pins pages of a pool: with its last user gone it must end at once, whatever
// messages are still in it.
TEST_F(TransferTest, ASenderThatGoesKeepsNoChannel) {
  const channel::FaultOptions slow{.delay_min = seconds(10), .delay_max = seconds(10)};
  Connect({}, &slow);
  const base::TransferId id = base::NewTransferId();
  auto source = NewSequence(*source_pool_, 4096);
  Fill(*source, 1, 4096);
  ASSERT_TRUE(BeginSend(id, std::exchange(source, nullptr), 0, 4096).ok());
  SendLayers(id, 0, 4096);
  const std::weak_ptr<channel::Channel> watch = sending_;
  sending_.reset();
  faulty_.reset();
  EXPECT_FALSE(watch.expired());
  sender_.reset();
  EXPECT_TRUE(watch.expired());
  EXPECT_EQ(source_pool_->free_pages(), source_pool_->total_pages());
}

TEST_F(TransferTest, AFullQueueIsWaitedForNotAnError) {
  Connect({.max_message_bytes = 2048}, nullptr, {.max_queued_messages = 2});
  const base::TransferId id = base::NewTransferId();
  auto source = NewSequence(*source_pool_, 4096);
  auto target = NewSequence(*target_pool_, 4096);
  Fill(*source, 3, 4096);
  ASSERT_TRUE(BeginReceive(id, target, 0, 4096).ok());
  ASSERT_TRUE(BeginSend(id, source, 0, 4096).ok());
  SendLayers(id, 0, 4096);
  ASSERT_TRUE(log_.WaitFor("sent", 1));
  ASSERT_TRUE(log_.WaitFor("complete", 1));
  for (int layer = 0; layer < 3; ++layer) EXPECT_TRUE(Equal(*source, *target, layer, 0, 4096));
}

TEST_F(TransferTest, ResendLeavesOutWhatIsNotReady) {
  Connect();
  const base::TransferId id = base::NewTransferId();
  auto source = NewSequence(*source_pool_, 64);
  auto target = NewSequence(*target_pool_, 64);
  Fill(*source, 1, 64);
  ASSERT_TRUE(BeginReceive(id, target, 0, 64).ok());
  ASSERT_TRUE(BeginSend(id, source, 0, 64).ok());
  ASSERT_TRUE(sender_->LayerReady(id, {0, 0, 32}).ok());
  ASSERT_TRUE(sender_->Resend(id, std::vector<LayerRange>{{0, 0, 64}, {1, 0, 64}}).ok());
  ASSERT_TRUE(log_.WaitFor("duplicate", 1));
  EXPECT_EQ(target->FirstNotLocal(0, 0, 64), 32);
  EXPECT_EQ(target->FirstNotLocal(1, 0, 64), 0);
  for (const LayerRange& bad : {LayerRange{3, 0, 1}, {-1, 0, 1}, {0, 2, 1}, {0, -1, 1}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(sender_->Resend(id, std::vector<LayerRange>{bad})));
    EXPECT_TRUE(absl::IsInvalidArgument(sender_->LayerReady(id, bad)));
  }
  EXPECT_TRUE(absl::IsAlreadyExists(BeginSend(id, source, 0, 64)));
}

TEST_F(TransferTest, LossDamageDuplicatesAndReorderingEndInEqualBytes) {
  const channel::FaultOptions faults{
      .drop = 0.01, .corrupt = 0.01, .duplicate = 0.01, .reorder = 0.01};
  Connect({.max_message_bytes = 2048}, &faults);
  for (int round = 1; round <= 5; ++round) {
    const base::TransferId id = base::NewTransferId();
    auto source = NewSequence(*source_pool_, 4096);
    auto target = NewSequence(*target_pool_, 4096);
    Fill(*source, static_cast<uint64_t>(round), 4096);
    ASSERT_TRUE(BeginReceive(id, target, 0, 4096).ok());
    ASSERT_TRUE(BeginSend(id, source, 0, 4096).ok());
    SendLayers(id, 0, 4096);
    ASSERT_TRUE(log_.WaitFor("sent", round));
    const base::Deadline deadline = In(seconds(60));
    while (!log_.WaitFor("complete", round, std::chrono::milliseconds(100))) {
      ASSERT_FALSE(deadline.Expired(*base::Clock::Real()));
      ASSERT_TRUE(sender_->Resend(id, receiver_->Missing(id)).ok());
    }
    for (int layer = 0; layer < 3; ++layer) {
      EXPECT_TRUE(target->AllLocal(layer, 0, 4096));
      EXPECT_TRUE(Equal(*source, *target, layer, 0, 4096));
    }
    EXPECT_EQ(receiver_->stats(id).bytes, 4096 * static_cast<uint64_t>(Layout().TokenBytes()));
    sender_->End(id);
    receiver_->End(id);
  }
  const channel::FaultCounts counts = faulty_->counts();
  EXPECT_GT(counts.dropped, 0);
  EXPECT_GT(counts.duplicated, 0);
  EXPECT_GT(counts.reordered, 0);
  EXPECT_GT(log_.count("corrupt"), 0);
  // A corrupt message may itself be a duplicate and refused, or come after End.
  EXPECT_LE(log_.count("corrupt"), counts.corrupted + counts.duplicated);
  EXPECT_LE(log_.count("damaged"), log_.count("corrupt"));
  EXPECT_EQ(log_.count("malformed") + log_.count("out_of_range") + log_.count("old_incarnation"),
            0);
}

// L13: random sizes, a tenth of the transfers ended at random moments, and nothing stays accounted.
TEST_F(TransferTest, L13_TenThousandTransfersLeaveNothingBehind) {
  Connect({.max_message_bytes = 1024});
  std::mt19937 random(7);
  for (int i = 0; i < 10'000; ++i) {
    const base::TransferId id = base::NewTransferId();
    const int64_t tokens = 1 + random() % 48;
    auto source = NewSequence(*source_pool_, tokens);
    auto target = NewSequence(*target_pool_, tokens);
    Fill(*source, static_cast<uint64_t>(i), tokens);
    ASSERT_TRUE(BeginReceive(id, target, 0, tokens).ok());
    ASSERT_TRUE(BeginSend(id, source, 0, tokens).ok());
    const int64_t done = log_.count("complete");
    SendLayers(id, 0, tokens);
    if (random() % 10 != 0) {
      ASSERT_TRUE(log_.WaitFor("complete", done + 1));
    } else if (random() % 2 == 0) {
      receiver_->End(id);
    }
    sender_->End(id);
    receiver_->End(id);
  }
  ASSERT_TRUE(log_.WaitFor("on_sent", 10'000));
  EXPECT_EQ(sender_->active() + receiver_->active(), 0);
  sender_.reset();
  sending_->Close(base::Aborted("the end"));
  ASSERT_TRUE(log_.WaitFor("closed", 1));
  EXPECT_EQ(sending_->stats().queued_bytes, 0u);
  EXPECT_EQ(log_.count("on_sent"), 10'000);
  EXPECT_EQ(log_.count("sent failed"), 0);
  listener_.reset();
  dialler_.reset();
  EXPECT_EQ(source_pool_->free_pages(), source_pool_->total_pages());
  EXPECT_EQ(target_pool_->free_pages(), target_pool_->total_pages());
}

// A reader looks at residency all the while: what it sees as local has its final bytes.
TEST_F(TransferTest, W3_AReaderThatSawLocalReadsFinalBytesIn100000Messages) {
  const channel::FaultOptions faults{.corrupt = 0.002, .duplicate = 0.01, .reorder = 0.01};
  Connect({.max_message_bytes = 1}, &faults);  // a token a message
  constexpr int64_t kTokens = 1024;
  constexpr int kRounds = 34;  // 34 * 3 layers * 1,024 tokens
  for (int round = 1; round <= kRounds; ++round) {
    const base::TransferId id = base::NewTransferId();
    auto source = NewSequence(*source_pool_, kTokens);
    auto target = NewSequence(*target_pool_, kTokens);
    Fill(*source, static_cast<uint64_t>(round), kTokens);
    ASSERT_TRUE(BeginReceive(id, target, 0, kTokens).ok());
    std::atomic<bool> stop{false};
    std::atomic<int64_t> wrong{0};
    std::thread reader([&] {
      while (!stop.load()) {
        for (int layer = 0; layer < 3; ++layer) {
          for (int64_t token = 0; token < kTokens; token += 5) {
            if (!target->AllLocal(layer, token, token + 1)) continue;
            if (!Equal(*source, *target, layer, token, token + 1)) ++wrong;
          }
        }
      }
    });
    const auto send = [&] {
      ASSERT_TRUE(BeginSend(id, source, 0, kTokens).ok());
      SendLayers(id, 0, kTokens);
      const base::Deadline deadline = In(seconds(60));
      while (!log_.WaitFor("complete", round, std::chrono::milliseconds(200))) {
        ASSERT_FALSE(deadline.Expired(*base::Clock::Real()));
        ASSERT_TRUE(sender_->Resend(id, receiver_->Missing(id)).ok());
      }
    };
    send();
    stop.store(true);
    reader.join();
    EXPECT_EQ(wrong.load(), 0);
    for (int layer = 0; layer < 3; ++layer) EXPECT_TRUE(Equal(*source, *target, layer, 0, kTokens));
    sender_->End(id);
    receiver_->End(id);
    if (HasFatalFailure()) return;
  }
  // On a slow machine some are asked for before they come, and come on the on-demand lane.
  const auto received = receiving_->stats().messages_received;
  EXPECT_GE(std::accumulate(received.begin(), received.end(), uint64_t{0}), 100'000u);
}

}  // namespace
}  // namespace smartgen::transfer
