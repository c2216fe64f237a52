#include "common/rpc/reactors.h"

#include <gtest/gtest.h>

#include "common/rpc/client.h"
#include "common/rpc/open_calls.h"
#include "proto/transfer.grpc.pb.h"

namespace smartgen::rpc {
namespace {

using namespace std::chrono_literals;

TEST(ReactorsTest, AnAnswerThatItsOwnerHoldsIsFreedWithItsOwner) {
  using Stream = ServerEventStream<v1::ControlMessage>;
  struct Owner {
    std::shared_ptr<Stream> stream;
  };
  OpenCalls open;
  auto owner = std::make_shared<Owner>();
  owner->stream = Stream::Create([owner] {}, &open);
  Stream* const stream = owner->stream.get();
  const std::weak_ptr<Owner> watch = std::exchange(owner, nullptr);
  EXPECT_FALSE(open.WaitForNone(0s));
  stream->OnDone();
  EXPECT_TRUE(watch.expired());
  EXPECT_TRUE(open.WaitForNone(0s));
}

TEST(ReactorsTest, ADuplexThatItsOwnerHoldsIsFreedWithItsOwner) {
  using Stream = ServerDuplex<v1::ControlMessage, v1::ControlMessage>;
  struct Owner {
    std::shared_ptr<Stream> stream;
  };
  auto owner = std::make_shared<Owner>();
  Stream::Events events;
  events.on_message = [owner](Stream&, const v1::ControlMessage&) {};
  events.on_closed = [owner] {};
  owner->stream = Stream::Create(std::move(events));
  Stream* const stream = owner->stream.get();
  const std::weak_ptr<Owner> watch = std::exchange(owner, nullptr);
  stream->OnDone();
  EXPECT_TRUE(watch.expired());
}

TEST(ReleaseChannelsTest, AChannelThatNobodyElseHoldsIsClosed) {
  auto channel = *Connect("127.0.0.1:1", {});
  const std::weak_ptr<grpc::Channel> watch = channel;
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  channels.push_back(std::move(channel));
  EXPECT_TRUE(ReleaseChannels(std::move(channels), 1s));
  EXPECT_TRUE(watch.expired());
}

TEST(ReleaseChannelsTest, AChannelInUseIsLeftOpenSoThatItsLastUserClosesNothing) {
  auto user = *Connect("127.0.0.1:1", {});
  const std::weak_ptr<grpc::Channel> watch = user;
  EXPECT_FALSE(ReleaseChannels({user}, 0s));
  user.reset();
  EXPECT_FALSE(watch.expired());
}

}  // namespace
}  // namespace smartgen::rpc
