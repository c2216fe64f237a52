// The receiver alone: the test plays the channel.
#include <thread>

#include "tests/common/transfer/transfer_fixture.h"

namespace smartgen::transfer {
namespace {

class ReceiverTest : public TransferFixture {
 protected:
  void SetUp() override {
    CreateReceiver();
    sequence_ = NewSequence(*target_pool_, 64);
    ASSERT_TRUE(BeginReceive(id_, sequence_, 16, 64).ok());
  }
  WireHead Head(int layer, int64_t begin, int64_t end) {
    const auto bytes = static_cast<uint64_t>((end - begin) * Layout().TokenBytes(layer));
    return {.flags = kFlagChecksum,
            .transfer_id = id_,
            .sender_incarnation = kSenderIncarnation,
            .receiver_incarnation = kReceiverIncarnation,
            .sequence = 1,
            .layer = static_cast<uint32_t>(layer),
            .payload_bytes = bytes,
            .checksum = base::Hash64(std::vector<std::byte>(bytes, std::byte{0x5a})),
            .ranges = {{.begin = static_cast<uint32_t>(begin),
                        .count = static_cast<uint16_t>(end - begin)}}};
  }
  absl::StatusOr<channel::Placement> Offer(const WireHead& head) {
    return receiver_->OnHead(channel::Lane::kProactive, EncodeWireHead(head), head.payload_bytes);
  }
  void Complete(const WireHead& head, channel::Placement placement,
                std::byte fill = std::byte{0x5a}) {
    for (const auto& segment : placement.segments) {
      std::fill(segment.begin(), segment.end(), fill);
    }
    receiver_->OnPayload(channel::Lane::kProactive, EncodeWireHead(head), std::move(placement));
  }
  void Deliver(WireHead head, std::byte fill = std::byte{0x5a}) {
    head.checksum = base::Hash64(std::vector<std::byte>(head.payload_bytes, fill));
    auto placement = Offer(head);
    ASSERT_TRUE(placement.ok()) << placement.status();
    Complete(head, *std::move(placement), fill);
  }
  std::vector<std::byte> Bytes(int layer, int64_t begin, int64_t end) {
    std::vector<std::byte> bytes;
    for (const auto& s : sequence_->Segments(layer, begin, end)) {
      bytes.insert(bytes.end(), s.begin(), s.end());
    }
    return bytes;
  }
  void ExpectRefused(const WireHead& head, Refusal refusal) {
    const std::string name(RefusalName(refusal));
    const int64_t before = log_.count(name);
    EXPECT_FALSE(Offer(head).ok());
    EXPECT_EQ(log_.count(name), before + 1) << name;
  }

  const base::TransferId id_ = base::NewTransferId();
  std::shared_ptr<kv::KvSequence> sequence_;
};

TEST_F(ReceiverTest, L5_H1_OnlyTheTransferIdNamesATransfer) {
  WireHead head = Head(0, 16, 32);
  head.transfer_id = base::NewTransferId();
  ExpectRefused(head, Refusal::kUnknownTransfer);
  Deliver(Head(0, 16, 32));
  EXPECT_TRUE(sequence_->AllLocal(0, 16, 32));
}

TEST_F(ReceiverTest, AnotherLifeOfEitherSideIsRefused) {
  WireHead head = Head(0, 16, 32);
  head.sender_incarnation += 1;
  ExpectRefused(head, Refusal::kOldIncarnation);
  head = Head(0, 16, 32);
  head.receiver_incarnation += 1;
  ExpectRefused(head, Refusal::kOldIncarnation);
}

TEST_F(ReceiverTest, RangesOutsideOfTheTransferAreRefused) {
  ExpectRefused(Head(0, 0, 32), Refusal::kOutOfRange);
  ExpectRefused(Head(0, 48, 65), Refusal::kOutOfRange);  // beyond the sequence
  WireHead head = Head(0, 16, 32);
  head.layer = 3;
  ExpectRefused(head, Refusal::kOutOfRange);
  head.layer = UINT32_MAX;
  ExpectRefused(head, Refusal::kOutOfRange);
  EXPECT_EQ(receiver_->stats(id_).bytes, 0u);
}

TEST_F(ReceiverTest, W10_BytesOfAnotherDtypeDoNotFit) {
  WireHead head = Head(0, 16, 32);
  head.payload_bytes /= 2;  // as bf16 would have
  ExpectRefused(head, Refusal::kOutOfRange);
}

TEST_F(ReceiverTest, APayloadThatIsNotWhatTheHeadSaysIsRefused) {
  const WireHead head = Head(0, 16, 32);
  EXPECT_FALSE(
      receiver_->OnHead(channel::Lane::kProactive, EncodeWireHead(head), head.payload_bytes + 1)
          .ok());
  EXPECT_EQ(log_.count("out_of_range"), 1);
}

TEST_F(ReceiverTest, NoiseAndMissingChecksumsAreRefused) {
  EXPECT_FALSE(
      receiver_->OnHead(channel::Lane::kProactive, std::vector<std::byte>(kWireFixedBytes), 100)
          .ok());
  EXPECT_EQ(log_.count("malformed"), 1);
  WireHead head = Head(0, 16, 32);
  head.flags = 0;
  head.checksum = 0;
  ExpectRefused(head, Refusal::kMalformed);
}

TEST_F(ReceiverTest, ATokenThatIsLocalIsNeverWrittenAgain) {
  Deliver(Head(0, 16, 32));
  ExpectRefused(Head(0, 16, 32), Refusal::kDuplicate);
  // One token would be: it is drained beside, and the others are placed.
  ASSERT_NO_FATAL_FAILURE(Deliver(Head(0, 31, 48), std::byte{0x77}));
  for (const auto& segment : sequence_->Segments(0, 16, 32)) {
    EXPECT_TRUE(std::all_of(segment.begin(), segment.end(),
                            [](std::byte b) { return b == std::byte{0x5a}; }));
  }
  EXPECT_TRUE(sequence_->AllLocal(0, 16, 48));
  EXPECT_EQ(log_.count("duplicate"), 2);
  EXPECT_EQ(receiver_->stats(id_).duplicate_bytes,
            static_cast<uint64_t>((16 + 1) * Layout().TokenBytes(0)));
  EXPECT_EQ(receiver_->stats(id_).bytes, static_cast<uint64_t>(32 * Layout().TokenBytes(0)));
}

TEST_F(ReceiverTest, AHeadThatIsLocalIsNeverWrittenAgain) {
  // Layer 2 has three heads of 4 floats: 16 bytes K and as many V a token and head.
  WireHead one = Head(2, 20, 24);
  one.ranges[0].first_head = 1;
  one.ranges[0].head_count = 1;
  one.payload_bytes = 4 * 32;
  ASSERT_NO_FATAL_FAILURE(Deliver(one, std::byte{0x11}));
  EXPECT_TRUE(sequence_->HeadLocal(2, 1, 20));
  EXPECT_FALSE(sequence_->HeadLocal(2, 0, 20));
  ASSERT_NO_FATAL_FAILURE(Deliver(Head(2, 16, 32), std::byte{0x22}));
  EXPECT_TRUE(sequence_->AllLocal(2, 16, 32));
  for (int head = 0; head < 3; ++head) {
    for (int64_t token = 16; token < 32; ++token) {
      const std::byte want{head == 1 && token >= 20 && token < 24 ? uint8_t{0x11} : uint8_t{0x22}};
      for (const auto& segment : sequence_->Segments(2, head, token, token + 1)) {
        for (const std::byte b : segment) ASSERT_EQ(b, want) << head << ", " << token;
      }
    }
  }
  EXPECT_EQ(receiver_->stats(id_).duplicate_bytes, 4u * 32);
  EXPECT_EQ(receiver_->stats(id_).bytes, 16u * 96);
}

TEST_F(ReceiverTest, PiecesBesideDuplicatesGetTheirOwnBytes) {
  // Bytes that differ from place to place: the order of the wire is kept around what is drained.
  ASSERT_NO_FATAL_FAILURE(Deliver(Head(0, 18, 21)));
  const std::vector<std::byte> before = Bytes(0, 18, 21);
  WireHead head = Head(0, 16, 40);
  std::vector<std::byte> payload(head.payload_bytes);
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i * 7 + i / 251);
  head.checksum = base::Hash64(payload);
  auto placement = Offer(head);
  ASSERT_TRUE(placement.ok()) << placement.status();
  size_t at = 0;
  for (const auto& segment : placement->segments) {
    std::copy_n(payload.begin() + static_cast<ptrdiff_t>(at), segment.size(), segment.begin());
    at += segment.size();
  }
  ASSERT_EQ(at, payload.size());
  receiver_->OnPayload(channel::Lane::kProactive, EncodeWireHead(head), *std::move(placement));
  EXPECT_EQ(Bytes(0, 18, 21), before);
  // The same payload in another sequence, where nothing was here before.
  auto fresh = NewSequence(*target_pool_, 64);
  at = 0;
  for (const auto& segment : fresh->Segments(0, 16, 40)) {
    std::copy_n(payload.begin() + static_cast<ptrdiff_t>(at), segment.size(), segment.begin());
    at += segment.size();
  }
  EXPECT_TRUE(Equal(*fresh, *sequence_, 0, 16, 18));
  EXPECT_TRUE(Equal(*fresh, *sequence_, 0, 21, 40));
}

TEST_F(ReceiverTest, TokensBeyondTheEndAreTakenAsFarAsTheSequenceHasRoom) {
  receiver_->End(id_);
  ASSERT_TRUE(BeginReceive(id_, sequence_, 16, 48).ok());
  Deliver(Head(0, 48, 49));
  EXPECT_TRUE(sequence_->AllLocal(0, 48, 49));
  EXPECT_EQ(log_.count("progress"), 0);
  Deliver(Head(0, 16, 48));
  EXPECT_EQ(log_.count("layer 0"), 1);
  ExpectRefused(Head(0, 60, 65), Refusal::kOutOfRange);
}

TEST_F(ReceiverTest, HeadsThatThereAreNotAreRefused) {
  WireHead head = Head(1, 16, 17);  // one KV head
  head.ranges[0].first_head = 1;
  head.ranges[0].head_count = 1;
  ExpectRefused(head, Refusal::kOutOfRange);
  head = Head(2, 16, 17);
  head.ranges[0].head_count = 4;
  head.payload_bytes = 4 * 32;
  ExpectRefused(head, Refusal::kOutOfRange);
}

TEST_F(ReceiverTest, TwoMessagesAtOnceForOneTokenNeverBothWrite) {
  auto first = Offer(Head(0, 16, 32));
  ASSERT_TRUE(first.ok());
  ExpectRefused(Head(0, 20, 24), Refusal::kDuplicate);
  auto beside = Offer(Head(0, 32, 48));
  ASSERT_TRUE(beside.ok());
  Complete(Head(0, 16, 32), *std::move(first));
  Complete(Head(0, 32, 48), *std::move(beside));
  EXPECT_TRUE(sequence_->AllLocal(0, 16, 48));
}

TEST_F(ReceiverTest, TwoTransfersNeverWriteOneSharedPageAtOnce) {
  const base::TransferId other = base::NewTransferId();
  std::vector<kv::PageId> pages(sequence_->pages().begin(), sequence_->pages().begin() + 4);
  for (const kv::PageId page : pages) target_pool_->AddRef(page);
  auto sharing = std::make_shared<kv::KvSequence>(target_pool_.get(), pages);
  ASSERT_TRUE(BeginReceive(other, sharing, 16, 64).ok());
  auto first = Offer(Head(0, 16, 64));
  ASSERT_TRUE(first.ok());
  WireHead second = Head(0, 32, 48);
  second.transfer_id = other;
  ExpectRefused(second, Refusal::kDuplicate);
  Complete(Head(0, 16, 64), *std::move(first));
  // What came for one came for both.
  EXPECT_EQ(log_.count("layer 0"), 2);
}

TEST_F(ReceiverTest, OfDamagedBytesThoseOfTheSpeculativePathAreCountedApart) {
  for (const Path path : {Path::kProactive, Path::kSpeculative, Path::kOnDemand}) {
    WireHead head = Head(1, 16, 32);
    head.path = path;
    auto placement = Offer(head);
    ASSERT_TRUE(placement.ok());
    Complete(head, *std::move(placement), std::byte{0x5b});
  }
  EXPECT_EQ(receiver_->stats(id_).corrupt_messages, 3u);
  EXPECT_EQ(receiver_->stats(id_).corrupt_speculative_bytes, Head(1, 16, 32).payload_bytes);
}

TEST_F(ReceiverTest, W2_ACorruptMessageMarksNothingAndIsAskedForAgain) {
  auto placement = Offer(Head(1, 16, 32));
  ASSERT_TRUE(placement.ok());
  Complete(Head(1, 16, 32), *std::move(placement), std::byte{0x5b});
  EXPECT_EQ(log_.count("corrupt"), 1);
  EXPECT_EQ(log_.count("damaged tokens"), 16);
  EXPECT_EQ(receiver_->stats(id_).corrupt_messages, 1u);
  EXPECT_EQ(receiver_->stats(id_).bytes, 0u);
  EXPECT_EQ(sequence_->FirstNotLocal(1, 16, 32), 16);
  Deliver(Head(1, 16, 32));
  EXPECT_TRUE(sequence_->AllLocal(1, 16, 32));
}

// The analogue of a receive on another stream: the bytes come long after the head was taken, from
// another thread. Residency is what a reader waits for, whoever writes.
TEST_F(ReceiverTest, W2_AReaderWaitsForTheBitHoweverLateTheWriterIs) {
  const WireHead head = Head(0, 16, 64);
  auto placement = Offer(head);
  ASSERT_TRUE(placement.ok()) << placement.status();
  std::atomic<int> stage{0};
  std::atomic<int64_t> early{0};
  std::thread reader([&] {
    const base::Deadline deadline = In(std::chrono::seconds(60));
    while (!sequence_->AllLocal(0, 16, 64)) {
      // Not even one token, and not the part whose bytes stand there already.
      early += sequence_->FirstNotLocal(0, 16, 64) != 16 && stage.load() < 3;
      if (stage.load() == 1) stage = 2;
      if (deadline.Expired(*base::Clock::Real())) return;
    }
    for (const std::byte b : Bytes(0, 16, 64)) early += b != std::byte{0x5a};
  });
  const auto half =
      placement->segments.begin() + static_cast<ptrdiff_t>((placement->segments.size() + 1) / 2);
  for (auto segment = placement->segments.begin(); segment != half; ++segment) {
    std::fill(segment->begin(), segment->end(), std::byte{0x5a});
  }
  stage = 1;
  const base::Deadline deadline = In(std::chrono::seconds(60));
  while (stage.load() == 1 && !deadline.Expired(*base::Clock::Real())) std::this_thread::yield();
  EXPECT_EQ(stage.load(), 2) << "the reader has looked while half of the bytes stood there";
  stage = 3;
  Complete(head, *std::move(placement));
  reader.join();
  EXPECT_EQ(early.load(), 0);
  EXPECT_TRUE(sequence_->AllLocal(0, 16, 64));
}

// A page of a prefix that two sequences share comes damaged, in the transfer of one of them: it is
// here for neither, both are told what they lack, and one good copy ends the wait of both.
TEST_F(ReceiverTest, W7_ADamagedSharedPageIsMissingForEverySharer) {
  const base::TransferId other = base::NewTransferId();
  std::vector<kv::PageId> pages(sequence_->pages().begin(), sequence_->pages().begin() + 4);
  for (const kv::PageId page : pages) target_pool_->AddRef(page);
  auto sharing = std::make_shared<kv::KvSequence>(target_pool_.get(), pages);
  ASSERT_TRUE(BeginReceive(other, sharing, 16, 64).ok());
  auto damaged = Offer(Head(0, 16, 64));
  ASSERT_TRUE(damaged.ok());
  Complete(Head(0, 16, 64), *std::move(damaged), std::byte{0x5b});
  EXPECT_EQ(log_.count("corrupt"), 1);
  const std::vector<LayerRange> everything = {{0, 16, 64}, {1, 16, 64}, {2, 16, 64}};
  EXPECT_EQ(receiver_->Missing(id_), everything);
  EXPECT_EQ(receiver_->Missing(other), everything);
  EXPECT_EQ(log_.count("layer 0"), 0);
  // The other one's copy, asked for again.
  WireHead again = Head(0, 16, 64);
  again.transfer_id = other;
  ASSERT_NO_FATAL_FAILURE(Deliver(again));
  EXPECT_EQ(log_.count("layer 0"), 2);
  EXPECT_TRUE(sequence_->AllLocal(0, 16, 64));
  EXPECT_TRUE(sharing->AllLocal(0, 16, 64));
}

// Two lanes count their messages each for itself: the same number from both is no duplicate, and
// nothing is complete before both are here.
TEST_F(ReceiverTest, W8_TheSameMessageNumberFromTwoLanesCountsForBoth) {
  for (int layer = 0; layer < 3; ++layer) {
    WireHead pushed = Head(layer, 16, 40);
    WireHead fetched = Head(layer, 40, 64);
    pushed.sequence = fetched.sequence = 7;
    ASSERT_NO_FATAL_FAILURE(Deliver(pushed));
    EXPECT_EQ(log_.count("progress"), layer);
    auto placement =
        receiver_->OnHead(channel::Lane::kOnDemand, EncodeWireHead(fetched), fetched.payload_bytes);
    ASSERT_TRUE(placement.ok()) << placement.status();
    for (const auto& segment : placement->segments) {
      std::fill(segment.begin(), segment.end(), std::byte{0x5a});
    }
    receiver_->OnPayload(channel::Lane::kOnDemand, EncodeWireHead(fetched), *std::move(placement));
    EXPECT_EQ(log_.count("progress"), layer + 1);
  }
  EXPECT_EQ(log_.count("complete"), 1);
  EXPECT_EQ(log_.count("duplicate"), 0);
  EXPECT_EQ(receiver_->stats(id_).bytes, 48u * static_cast<uint64_t>(Layout().TokenBytes()));
}

TEST_F(ReceiverTest, W6_W8_CompletionCountsTokensOfEveryLayerNotMessages) {
  // As many messages as would do, but layer 2 lacks a piece.
  for (int layer = 0; layer < 3; ++layer) Deliver(Head(layer, 16, 32));
  for (int layer = 0; layer < 2; ++layer) {
    Deliver(Head(layer, 32, 47));
    Deliver(Head(layer, 47, 64));
  }
  Deliver(Head(2, 33, 64));
  EXPECT_EQ(log_.count("progress"), 2);
  EXPECT_EQ(log_.count("complete"), 0);
  EXPECT_EQ(receiver_->Missing(id_),
            (std::vector<LayerRange>{{.layer = 2, .begin = 32, .end = 33}}));
  Deliver(Head(2, 32, 33));
  EXPECT_EQ(log_.count("progress"), 3);
  EXPECT_EQ(log_.count("complete"), 1);
  EXPECT_TRUE(receiver_->Missing(id_).empty());
}

TEST_F(ReceiverTest, MissingRangesAreMerged) {
  Deliver(Head(0, 20, 30));
  Deliver(Head(0, 30, 40));
  EXPECT_EQ(receiver_->Missing(id_),
            (std::vector<LayerRange>{{0, 16, 20}, {0, 40, 64}, {1, 16, 64}, {2, 16, 64}}));
}

TEST_F(ReceiverTest, EndDuringAPayloadDrainsIntoPinnedPagesAndMarksNothing) {
  const int64_t free_before = target_pool_->free_pages();
  auto placement = Offer(Head(0, 16, 64));
  ASSERT_TRUE(placement.ok());
  std::weak_ptr<kv::KvSequence> watch = sequence_;
  receiver_->End(id_);
  receiver_->End(id_);
  sequence_.reset();
  EXPECT_FALSE(watch.expired());
  EXPECT_EQ(target_pool_->free_pages(), free_before);
  Complete(Head(0, 16, 64), *std::move(placement));
  EXPECT_TRUE(watch.expired());
  EXPECT_EQ(target_pool_->free_pages(), target_pool_->total_pages());
  EXPECT_EQ(log_.count("progress"), 0);
  ExpectRefused(Head(0, 16, 64), Refusal::kUnknownTransfer);
  EXPECT_EQ(receiver_->active(), 0);
}

TEST_F(ReceiverTest, BeginRefusesWhatItCouldNeverComplete) {
  EXPECT_TRUE(absl::IsAlreadyExists(BeginReceive(id_, sequence_, 16, 64)));
  const base::TransferId other = base::NewTransferId();
  EXPECT_TRUE(absl::IsInvalidArgument(BeginReceive(other, sequence_, 16, 16)));
  EXPECT_TRUE(absl::IsInvalidArgument(BeginReceive(other, sequence_, 16, 65)));
  EXPECT_TRUE(absl::IsInvalidArgument(BeginReceive(other, sequence_, -1, 16)));
  sequence_->MarkLocal(1, 0, 16);
  EXPECT_TRUE(absl::IsFailedPrecondition(BeginReceive(other, sequence_, 0, 16)));
}

}  // namespace
}  // namespace smartgen::transfer
