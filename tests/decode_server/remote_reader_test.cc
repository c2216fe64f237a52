#include "decode_server/remote_reader.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/decode_server/engine_fixture.h"

namespace smartgen::decode_server {
namespace {

using std::chrono::milliseconds;

class RemoteReaderTest : public testing::Test {
 protected:
  static constexpr int64_t kTokens = 320;
  RemoteReaderTest() {
    kv::KvLayout layout;
    layout.layers.assign(1, {.kv_heads = 2, .head_dim = 4});
    layout.token_capacity = kTokens;
    pool_ = *kv::KvPool::Create(layout, {.bytes = 64 * layout.PageBytesTotal()});
    sequence_ = std::make_shared<kv::KvSequence>(pool_.get());
    EXPECT_TRUE(sequence_->Reserve(kTokens).ok());
    attempt_ = std::make_shared<FakeAttempt>();
    attempt_->on_fetch = [this](int, std::span<const kv::HeadRange>) { ++asked_; };
    reader_ = std::make_unique<RemoteReader>(
        RemoteReader::Options{.stall = milliseconds(1000), .max_retries = 1}, attempt_, sequence_,
        &clock_);
    reader_->BeginStep(kTokens);
  }
  void FetchAll() {
    const kv::HeadRange all[] = {{0, 0, kTokens}, {1, 0, kTokens}};
    ASSERT_TRUE(reader_->Fetch(0, all).ok());
    ASSERT_EQ(asked_, 1);
  }
  bool WaitsAfter(base::Duration time) {
    clock_.Advance(time);
    const auto here = reader_->Fetched(0);
    return here.ok() && !*here;
  }

  base::SimulatedClock clock_;
  std::unique_ptr<kv::KvPool> pool_;
  std::shared_ptr<kv::KvSequence> sequence_;
  std::shared_ptr<FakeAttempt> attempt_;
  std::unique_ptr<RemoteReader> reader_;
  int asked_ = 0;
};

TEST_F(RemoteReaderTest, WhatDoesNotComeIsAskedForAgainAndThenGivenUp) {
  FetchAll();
  EXPECT_TRUE(WaitsAfter(milliseconds(1001)));
  EXPECT_EQ(asked_, 2);
  clock_.Advance(milliseconds(1001));
  EXPECT_FALSE(reader_->Fetched(0).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(reader_->failure()));
}

// One message may be a whole layer, of which nothing counts before its last byte is here.
TEST_F(RemoteReaderTest, AThinLinkHasTheTimeThatItsBytesTake) {
  const auto bytes = static_cast<double>(kTokens * pool_->layout().TokenBytes(0));
  attempt_->now.link.bytes_per_second = bytes / 10;
  FetchAll();
  for (int second = 0; second < 10; ++second) {
    EXPECT_TRUE(WaitsAfter(milliseconds(1000))) << second;
  }
  EXPECT_EQ(asked_, 1);
  EXPECT_TRUE(WaitsAfter(milliseconds(1001)));
  EXPECT_EQ(asked_, 2);
}

TEST_F(RemoteReaderTest, WhatOthersAskedForStandsInTheSameQueue) {
  const auto shared = std::make_shared<int64_t>(0);
  const RemoteReader::Options options{
      .stall = milliseconds(1000), .max_retries = 1, .asked_bytes = shared};
  RemoteReader other(options, attempt_, sequence_, &clock_);
  reader_ = std::make_unique<RemoteReader>(options, attempt_, sequence_, &clock_);
  const auto bytes = static_cast<double>(kTokens * pool_->layout().TokenBytes(0));
  attempt_->now.link.bytes_per_second = bytes / 10;
  const kv::HeadRange half[] = {{0, 0, kTokens}};
  ASSERT_TRUE(other.Fetch(0, half).ok());
  ASSERT_TRUE(reader_->Fetch(0, half).ok());
  asked_ = 0;
  EXPECT_TRUE(WaitsAfter(milliseconds(10'900)));  // 5 s for each
  EXPECT_EQ(asked_, 0);
  other.BeginStep(1);  // its answers came, or are not wanted
  EXPECT_TRUE(WaitsAfter(milliseconds(1)));
  EXPECT_EQ(asked_, 1);
  reader_.reset();
  EXPECT_EQ(*shared, 0);
}

// At long contexts a layer's selection is very many ranges: the prefill side takes no more than so
// many in a message.
TEST_F(RemoteReaderTest, ManyRangesAreSplitAndKnownOnesAreNotAskedForAgain) {
  constexpr int64_t kRanges = 200'000;
  std::vector<kv::HeadRange> ranges;
  for (int64_t i = 0; i < kRanges; ++i) ranges.push_back({0, 2 * i, 2 * i + 1});
  size_t most = 0;
  size_t all = 0;
  attempt_->on_fetch = [&](int, std::span<const kv::HeadRange> asked) {
    most = std::max(most, asked.size());
    all += asked.size();
  };
  ASSERT_TRUE(reader_->Fetch(0, ranges).ok());
  EXPECT_LE(most, RemoteReader::kRangesPerMessage);
  EXPECT_EQ(all, static_cast<size_t>(kRanges));
  ASSERT_TRUE(reader_->Fetch(0, ranges).ok());
  EXPECT_EQ(all, static_cast<size_t>(kRanges));
}

TEST_F(RemoteReaderTest, AQueryThatWaitsForItsTurnThereIsNotLost) {
  const std::vector<float> queries(8);
  ASSERT_TRUE(reader_->Attend(0, 0, kTokens, queries).ok());
  std::vector<float> out(8), lse(2);
  for (int i = 0; i < 40; ++i) {
    clock_.Advance(milliseconds(500));
    reader_->OnDeferred();
    EXPECT_TRUE(reader_->Attended(0, out, lse).ok());
  }
  EXPECT_EQ(reader_->retries(), 0);
}

TEST_F(RemoteReaderTest, AnAnswerThatIsNoNumberIsThePeersFault) {
  const std::vector<float> queries(8);
  ASSERT_TRUE(reader_->Attend(0, 0, kTokens, queries).ok());
  std::vector<float> answer(10, 1);
  answer[9] = std::numeric_limits<float>::quiet_NaN();
  reader_->OnReply(kTokens, 0, std::as_bytes(std::span<const float>(answer)));
  std::vector<float> out(8), lse(2);
  EXPECT_FALSE(reader_->Attended(0, out, lse).ok());
  EXPECT_TRUE(absl::IsDataLoss(reader_->failure()));
}

}  // namespace
}  // namespace smartgen::decode_server
