#include "decode_server/remote_reader.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace smartgen::decode_server
