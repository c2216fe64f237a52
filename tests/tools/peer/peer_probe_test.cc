#include "tools/peer_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "prefill_server/server.h"
#include "tests/fakes/fake_executor.h"

namespace smartgen::tools {
namespace {

using testing::HasSubstr;

std::unique_ptr<prefill_server::PrefillServer> StartPrefill(const std::string& token = "") {
  prefill_server::Options options;
  options.listen = options.data_listen = "127.0.0.1:0";
  options.metrics_listen = "";
  options.kv_bytes = 1 << 20;
  options.security.token = token;
  prefill_server::PrefillServer::Parts parts;
  parts.executor = std::make_unique<fakes::FakeExecutor>(fakes::FakeExecutor::Options{});
  parts.model_name = "fake";
  parts.model_fingerprint = "fa4e";
  auto server = prefill_server::PrefillServer::Start(options, std::move(parts));
  EXPECT_TRUE(server.ok()) << server.status();
  return server.ok() ? *std::move(server) : nullptr;
}

TEST(PeerProbeTest, APrefilldsWayIsMeasuredAgainAndAgain) {
  const auto server = StartPrefill();
  ASSERT_NE(server, nullptr);
  for (int i = 0; i < 2; ++i) {
    absl::StatusOr<transfer::LinkPoint> link;
    // The first one's end may not have been noticed yet.
    do {
      link = ProbePeer(server->address(), {}, std::chrono::seconds(30));
    } while (absl::IsResourceExhausted(link.status()));
    ASSERT_TRUE(link.ok()) << link.status();
    EXPECT_EQ(link->peer, server->address());
    EXPECT_GT(link->bytes_per_second, 1e6);
    EXPECT_GT(link->round_trip_seconds, 0);
  }
}

TEST(PeerProbeTest, WithoutTheTokenNothingIsMeasured) {
  const auto server = StartPrefill("secret");
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(ProbePeer(server->address(), {}, std::chrono::seconds(30)).status().code(),
            absl::StatusCode::kUnauthenticated);
  rpc::Security security;
  security.token = "secret";
  EXPECT_TRUE(ProbePeer(server->address(), security, std::chrono::seconds(30)).ok());
}

TEST(PeerProbeTest, APeerThatIsAwayIsNamed) {
  const auto status = ProbePeer("127.0.0.1:1", {}, std::chrono::seconds(5)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(base::MessageOf(status)), HasSubstr("127.0.0.1:1"));
}

}  // namespace
}  // namespace smartgen::tools
