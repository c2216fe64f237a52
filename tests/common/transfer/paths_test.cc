// All paths of a transfer at once, over a loopback channel, with and without faults and threads.
#include <random>
#include <thread>

#include "tests/common/transfer/transfer_fixture.h"

namespace smartgen::transfer {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class PathsTest : public TransferFixture {
 protected:
  // As a decode side that has lost patience: everything that is not here, again.
  void RecoverUntil(const base::TransferId& id, const std::string& what, int64_t count) {
    const base::Deadline deadline = In(seconds(60));
    while (!log_.WaitFor(what, count, milliseconds(100))) {
      ASSERT_FALSE(deadline.Expired(*base::Clock::Real()));
      ASSERT_TRUE(sender_->Resend(id, receiver_->Missing(id)).ok());
    }
  }
  void ExpectEqual(kv::KvSequence& a, kv::KvSequence& b, int64_t begin, int64_t end) {
    for (int layer = 0; layer < 3; ++layer) {
      EXPECT_TRUE(b.AllLocal(layer, begin, end)) << layer;
      EXPECT_TRUE(Equal(a, b, layer, begin, end)) << layer;
    }
  }
  static std::vector<BlockId> RandomOrder(std::mt19937& random) {
    std::vector<BlockId> order;
    for (int layer = 0; layer < 3; ++layer) {
      for (int block = 0; block < kBlocks; ++block) order.push_back({layer, block});
    }
    std::shuffle(order.begin(), order.end(), random);
    return order;
  }
  static std::vector<kv::HeadRange> RandomFetch(std::mt19937& random, int layer, int64_t tokens) {
    std::vector<kv::HeadRange> ranges;
    for (int head = 0; head < Layout().layers[layer].kv_heads; ++head) {
      int64_t token = random() % 40;
      while (token < tokens) {
        const int64_t end = std::min<int64_t>(tokens, token + 1 + random() % 20);
        ranges.push_back({.head = head, .begin = token, .end = end});
        token = end + 1 + random() % 200;
      }
    }
    return ranges;
  }
};

TEST_F(PathsTest, FetchedHeadsComeAloneAndTheRestLater) {
  Connect();
  const base::TransferId id = base::NewTransferId();
  auto source = NewSequence(*source_pool_, 256);
  auto target = NewSequence(*target_pool_, 256);
  Fill(*source, 1, 256);
  ASSERT_TRUE(BeginReceive(id, target, 0, 256).ok());
  ASSERT_TRUE(
      sender_->Begin({.id = id, .sequence = source, .end = 256, .pushed = 0, .on_sent = OnSent()})
          .ok());
  SendLayers(id, 0, 256);
  ASSERT_TRUE(sender_->Fetch(id, 2, std::vector<kv::HeadRange>{{1, 10, 40}}, false).ok());
  ASSERT_TRUE(log_.WaitFor("arrival", 1));
  for (int64_t token = 0; token < 256; ++token) {
    EXPECT_EQ(target->HeadLocal(2, 1, token), token >= 10 && token < 40) << token;
    EXPECT_FALSE(target->HeadLocal(2, 0, token));
    EXPECT_FALSE(target->AllLocal(2, token, token + 1));
  }
  // Missing is about tokens: one that lacks a head is missing.
  EXPECT_EQ(receiver_->Missing(id),
            (std::vector<LayerRange>{{0, 0, 256}, {1, 0, 256}, {2, 0, 256}}));
  sender_->PromptDone(id);
  ASSERT_TRUE(log_.WaitFor("complete", 1));
  ASSERT_TRUE(log_.WaitFor("sent", 1));
  ExpectEqual(*source, *target, 0, 256);
  const uint64_t all = 256 * static_cast<uint64_t>(Layout().TokenBytes());
  const ReceiverStats stats = receiver_->stats(id);
  EXPECT_EQ(stats.bytes, all);
  EXPECT_EQ(stats.duplicate_bytes, 0u);
  EXPECT_EQ(stats.bytes_by_path.at(Path::kOnDemand), 30u * 2 * 16);
  EXPECT_EQ(stats.bytes_by_path.at(Path::kSpeculative), all - 30u * 2 * 16);
  EXPECT_EQ(sender_->stats(id).bytes_by_path, stats.bytes_by_path);
}

TEST_F(PathsTest, BornTokensAnswersAndMetadataReachTheirTakers) {
  Connect();
  const base::TransferId id = base::NewTransferId();
  auto source = NewSequence(*source_pool_, 80);
  auto target = NewSequence(*target_pool_, 80);
  Fill(*source, 1, 80);
  base::Mutex mutex;
  std::vector<std::string> events;
  const auto note = [&](std::string text) {
    base::MutexLock lock(mutex);
    events.push_back(std::move(text));
    log_.Add("event");
  };
  ReceiveSpec spec{.id = id, .sequence = target, .end = 64};
  spec.on_complete = [&] { log_.Add("complete"); };
  spec.on_reply = [&](uint64_t step, int layer, std::vector<std::byte> bytes) {
    note(fmt::format("reply {} {} {} born {}", step, layer, bytes.size(),
                     target->AllLocal(0, 64, 65)));
  };
  spec.on_metadata = [&](int layer, int64_t begin, int64_t end, bool header,
                         std::vector<std::byte> bytes) {
    note(fmt::format("metadata {} [{}, {}) {} {}", layer, begin, end, header, bytes.size()));
  };
  ASSERT_TRUE(receiver_->Begin(spec).ok());
  ASSERT_TRUE(BeginSend(id, source, 0, 64).ok());
  ASSERT_TRUE(sender_->Metadata(id, 1, 0, 0, true, std::vector<std::byte>(5)).ok());
  ASSERT_TRUE(sender_->Metadata(id, 1, 16, 64, false, std::vector<std::byte>(100'000)).ok());
  SendLayers(id, 0, 64);
  ASSERT_TRUE(log_.WaitFor("complete", 1));
  ASSERT_TRUE(log_.WaitFor("event", 2));
  ASSERT_TRUE(sender_->Born(id, 0, 64).ok());
  ASSERT_TRUE(sender_->Reply(id, 1ull << 40, 2, std::vector<std::byte>(77)).ok());
  ASSERT_TRUE(log_.WaitFor("event", 3));
  base::MutexLock lock(mutex);
  EXPECT_EQ(events, (std::vector<std::string>{"metadata 1 [0, 0) true 5",
                                              "metadata 1 [16, 64) false 100000",
                                              "reply 1099511627776 2 77 born true"}));
  ExpectEqual(*source, *target, 0, 65);
  EXPECT_EQ(receiver_->stats(id).bytes_by_path.at(Path::kMetadata), 100'005u);
  EXPECT_EQ(receiver_->stats(id).bytes_by_path.at(Path::kHandover), 77u);
}

TEST_F(PathsTest, MetadataThatComesTwiceIsHandedOnAndCountedOnce) {
  const channel::FaultOptions faults{.duplicate = 1};
  Connect({}, &faults);
  const base::TransferId id = base::NewTransferId();
  auto source = NewSequence(*source_pool_, 64);
  auto target = NewSequence(*target_pool_, 64);
  ReceiveSpec spec{.id = id, .sequence = target, .end = 64};
  spec.on_metadata = [&](int, int64_t, int64_t, bool, std::vector<std::byte>) {
    log_.Add("piece");
  };
  ASSERT_TRUE(receiver_->Begin(spec).ok());
  ASSERT_TRUE(BeginSend(id, source, 0, 64).ok());
  ASSERT_TRUE(sender_->Metadata(id, 1, 0, 0, true, std::vector<std::byte>(5)).ok());
  ASSERT_TRUE(sender_->Metadata(id, 1, 16, 64, false, std::vector<std::byte>(4800)).ok());
  ASSERT_TRUE(log_.WaitFor("piece", 4));
  const ReceiverStats stats = receiver_->stats(id);
  EXPECT_EQ(stats.bytes_by_path.at(Path::kMetadata), 4805u);
  EXPECT_EQ(stats.bytes, 4805u);
  EXPECT_EQ(stats.duplicate_bytes, 4805u);
}

// Loss, damage, duplication and reordering of 1 % each: everything arrives in the end.
TEST_F(PathsTest, AnyMixOfPathsOverABadLinkEndsInEqualBytes) {
  const channel::FaultOptions faults{
      .drop = 0.01, .corrupt = 0.01, .duplicate = 0.01, .reorder = 0.01};
  Connect({.max_message_bytes = 4096}, &faults);
  std::mt19937 random(5);
  constexpr int64_t kTokens = 3000;
  for (int round = 1; round <= 5; ++round) {
    const base::TransferId id = base::NewTransferId();
    auto source = NewSequence(*source_pool_, kTokens + 8);
    auto target = NewSequence(*target_pool_, kTokens + 8);
    Fill(*source, static_cast<uint64_t>(round), kTokens + 8);
    ASSERT_TRUE(BeginReceive(id, target, 0, kTokens).ok());
    ASSERT_TRUE(sender_
                    ->Begin({.id = id,
                             .sequence = source,
                             .end = kTokens,
                             .order = RandomOrder(random),
                             .pushed = 500,
                             .on_sent = OnSent()})
                    .ok());
    SendLayers(id, 0, kTokens);
    for (int i = 0; i < 10; ++i) {
      const int layer = static_cast<int>(random() % 3);
      ASSERT_TRUE(sender_->Fetch(id, layer, RandomFetch(random, layer, kTokens), false).ok());
    }
    sender_->PromptDone(id);
    for (int i = 0; i < 8; ++i) ASSERT_TRUE(sender_->Born(id, 0, kTokens + i).ok());
    RecoverUntil(id, "complete", round);
    const base::Deadline deadline = In(seconds(60));
    while (target->FirstNotLocal(0, kTokens, kTokens + 8) < kTokens + 8 ||
           target->FirstNotLocal(1, kTokens, kTokens + 8) < kTokens + 8 ||
           target->FirstNotLocal(2, kTokens, kTokens + 8) < kTokens + 8) {
      ASSERT_FALSE(deadline.Expired(*base::Clock::Real()));
      for (int layer = 0; layer < 3; ++layer) {
        const std::vector<kv::HeadRange> born = {{-1, kTokens, kTokens + 8}};
        ASSERT_TRUE(sender_->Fetch(id, layer, born, true).ok());
      }
      std::this_thread::sleep_for(milliseconds(20));
    }
    ExpectEqual(*source, *target, 0, kTokens + 8);
    const uint64_t all = (kTokens + 8) * static_cast<uint64_t>(Layout().TokenBytes());
    EXPECT_EQ(receiver_->stats(id).bytes, all);
    uint64_t sent = 0;
    for (const auto& [path, bytes] : sender_->stats(id).bytes_by_path) sent += bytes;
    EXPECT_EQ(sent, all);
    sender_->End(id);
    receiver_->End(id);
  }
  EXPECT_GT(faulty_->counts().dropped, 0);
  EXPECT_GT(log_.count("corrupt"), 0);
  EXPECT_EQ(log_.count("malformed") + log_.count("out_of_range"), 0);
}

// Everything that may be called is called at once, by several threads, and transfers end at random
// moments.
TEST_F(PathsTest, ManyThreadsAndEarlyEndsLeaveNothingBehind) {
  Connect({.max_message_bytes = 2048, .window = {.initial_bytes = 8192}});
  constexpr int kThreads = 4;
  constexpr int kRounds = 30;
  constexpr int64_t kTokens = 400;
  std::vector<std::thread> threads;
  std::atomic<int64_t> failures{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<uint32_t>(t));
      for (int round = 0; round < kRounds; ++round) {
        const base::TransferId id = base::NewTransferId();
        auto source = NewSequence(*source_pool_, kTokens + 8);
        auto target = NewSequence(*target_pool_, kTokens + 8);
        Fill(*source, static_cast<uint64_t>(round), kTokens + 8);
        std::atomic<bool> complete{false};
        ReceiveSpec spec{.id = id, .sequence = target, .end = kTokens};
        spec.on_complete = [&complete] { complete = true; };
        failures += !receiver_->Begin(spec).ok();
        failures += !sender_
                         ->Begin({.id = id,
                                  .sequence = source,
                                  .end = kTokens,
                                  .order = RandomOrder(random),
                                  .pushed = 300,
                                  .credits = true,
                                  .on_sent = OnSent()})
                         .ok();
        std::thread fetcher([&] {
          std::mt19937 own(static_cast<uint32_t>(round));
          for (int i = 0; i < 10; ++i) {
            const int layer = static_cast<int>(own() % 3);
            (void)sender_->Fetch(id, layer, RandomFetch(own, layer, kTokens), i % 3 == 0);
            (void)sender_->Metadata(id, layer, 0, kTokens, false, std::vector<std::byte>(1000));
            (void)receiver_->Missing(id);
          }
        });
        for (int layer = 0; layer < 3; ++layer) {
          failures += !sender_->LayerReady(id, {layer, 0, kTokens}).ok();
        }
        sender_->PromptDone(id);
        for (int i = 0; i < 8; ++i) {
          sender_->Credit(id, kTokens * 60);
          failures += !sender_->Born(id, i % 3, kTokens + i).ok();
          failures += !sender_->Reply(id, 1, 0, std::vector<std::byte>(500)).ok();
        }
        fetcher.join();
        if (random() % 4 != 0) {
          const base::Deadline deadline = In(seconds(60));
          while (!complete && !deadline.Expired(*base::Clock::Real())) {
            std::this_thread::sleep_for(milliseconds(1));
          }
          failures += !complete;
          for (int layer = 0; layer < 3; ++layer) {
            failures += !Equal(*source, *target, layer, 0, kTokens);
          }
        }
        receiver_->End(id);
        sender_->End(id);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0);
  ASSERT_TRUE(log_.WaitFor("on_sent", kThreads * kRounds));
  EXPECT_EQ(sender_->active() + receiver_->active(), 0);
  EXPECT_EQ(log_.count("sent failed"), 0);
  sender_.reset();
  sending_.reset();
  listener_.reset();
  dialler_.reset();
  EXPECT_EQ(source_pool_->free_pages(), source_pool_->total_pages());
  EXPECT_EQ(target_pool_->free_pages(), target_pool_->total_pages());
}

}  // namespace
}  // namespace smartgen::transfer
