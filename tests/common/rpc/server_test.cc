#include "common/rpc/server.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <future>

#include "common/rpc/client.h"
#include "common/rpc/health_check.h"
#include "common/rpc/status.h"
#include "proto/prefill.grpc.pb.h"
#include "proto/transfer.grpc.pb.h"
#include "tests/common/rpc/test_certificates.h"

namespace smartgen::rpc {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

class PrefillService final : public v1::Prefill::CallbackService {
 public:
  grpc::ServerUnaryReactor* Info(grpc::CallbackServerContext* context, const v1::InfoRequest*,
                                 v1::DaemonInfo* info) override {
    ++calls;
    info->set_daemon("prefilld");
    deadline = FromSystemTime(context->deadline(), *base::Clock::Real());
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpc(answer));
    return reactor;
  }
  absl::Status answer;
  std::atomic<int> calls{0};
  base::Deadline deadline = base::Deadline::Infinite();
};

// Accepts the stream and ends it when the client has nothing more to say.
class TransferService final : public v1::Transfer::CallbackService {
 public:
  grpc::ServerBidiReactor<v1::ControlMessage, v1::ControlMessage>* Connect(
      grpc::CallbackServerContext*) override {
    ++calls;
    class Reactor final : public grpc::ServerBidiReactor<v1::ControlMessage, v1::ControlMessage> {
     public:
      Reactor() { StartRead(&message_); }
      void OnReadDone(bool ok) override {
        if (ok) {
          StartRead(&message_);
        } else {
          Finish(grpc::Status::OK);
        }
      }
      void OnDone() override { delete this; }

     private:
      v1::ControlMessage message_;
    };
    return new Reactor;
  }
  std::atomic<int> calls{0};
};

class ServerTest : public ::testing::Test {
 protected:
  void Start(ServerOptions options) {
    auto server = Server::Start(
        options, {{"smartgen.v1.Prefill", &prefill_}, {"smartgen.v1.Transfer", &transfer_}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = std::move(server).value();
  }

  std::shared_ptr<grpc::Channel> Open(const Security& security,
                                      const std::string& host = "127.0.0.1") {
    ClientOptions options;
    options.security = security;
    auto channel = Connect(fmt::format("{}:{}", host, server_->port()), options);
    EXPECT_TRUE(channel.ok()) << channel.status();
    return channel.value();
  }

  absl::Status Info(const std::shared_ptr<grpc::Channel>& channel, v1::DaemonInfo* info = nullptr) {
    v1::DaemonInfo local;
    grpc::ClientContext context;
    SetTimeout(context, 10s);
    return FromGrpc(
        v1::Prefill::NewStub(channel)->Info(&context, {}, info != nullptr ? info : &local));
  }

  PrefillService prefill_;
  TransferService transfer_;
  std::unique_ptr<Server> server_;
};

Security WithToken(const std::string& token) {
  Security security;
  security.token = token;
  return security;
}

TEST_F(ServerTest, AnswersCallsOnThePortThatItBound) {
  Start({});
  EXPECT_GT(server_->port(), 0);
  EXPECT_EQ(server_->address(), fmt::format("127.0.0.1:{}", server_->port()));
  v1::DaemonInfo info;
  ASSERT_TRUE(Info(Open({}), &info).ok());
  EXPECT_EQ(info.daemon(), "prefilld");
}

TEST_F(ServerTest, StatusesArriveWithCodeAndMessage) {
  Start({});
  prefill_.answer = base::ResourceExhausted("no room for 3 pages");
  EXPECT_EQ(Info(Open({})), base::ResourceExhausted("no room for 3 pages"));
}

TEST_F(ServerTest, ADeadlineReachesTheHandler) {
  Start({});
  ASSERT_TRUE(Info(Open({})).ok());
  const base::Duration left = prefill_.deadline.Remaining(*base::Clock::Real());
  EXPECT_GT(left, 1s);
  EXPECT_LE(left, 11s);  // gRPC rounds up, and its clock is another one
}

TEST_F(ServerTest, HealthSaysNotServingUntilTold) {
  Start({});
  const auto channel = Open({});
  EXPECT_EQ(CheckHealth(channel, "", 10s).code(), absl::StatusCode::kUnavailable);
  server_->SetServing(true);
  EXPECT_TRUE(CheckHealth(channel, "", 10s).ok());
  EXPECT_TRUE(CheckHealth(channel, "smartgen.v1.Prefill", 10s).ok());
  EXPECT_EQ(CheckHealth(channel, "no.such.Service", 10s).code(), absl::StatusCode::kNotFound);
  server_->SetServing(false);
  EXPECT_EQ(CheckHealth(channel, "smartgen.v1.Prefill", 10s).code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(ServerTest, WaitUntilServingReturnsOnceItIs) {
  Start({});
  const auto channel = Open({});
  auto waiting = std::async(std::launch::async, [&] { return WaitUntilServing(channel, 30s); });
  server_->SetServing(true);
  EXPECT_TRUE(waiting.get().ok());
}

TEST_F(ServerTest, TheRightTokenIsLetInWithoutTls) {
  Start({.security = WithToken("s3cret")});
  EXPECT_TRUE(Info(Open(WithToken("s3cret"))).ok());
}

TEST_F(ServerTest, AMissingOrWrongTokenNeverReachesAHandler) {
  Start({.security = WithToken("s3cret")});
  for (const char* token : {"", "wrong", "s3cre", "s3crett"}) {
    const absl::Status status = Info(Open(WithToken(token)));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
    EXPECT_THAT(std::string(base::MessageOf(status)), HasSubstr("bearer token"));
  }
  EXPECT_EQ(prefill_.calls, 0);
}

TEST_F(ServerTest, StreamsNeedTheTokenToo) {
  Start({.security = WithToken("s3cret")});
  for (const char* token : {"wrong", "s3cret"}) {
    grpc::ClientContext context;
    SetTimeout(context, 10s);
    auto stream = v1::Transfer::NewStub(Open(WithToken(token)))->Connect(&context);
    stream->WritesDone();
    v1::ControlMessage message;
    EXPECT_FALSE(stream->Read(&message));
    EXPECT_EQ(stream->Finish().error_code(), std::string_view(token) == "s3cret"
                                                 ? grpc::StatusCode::OK
                                                 : grpc::StatusCode::UNAUTHENTICATED);
  }
  EXPECT_EQ(transfer_.calls, 1);
}

TEST_F(ServerTest, HealthNeedsNoToken) {
  Start({.security = WithToken("s3cret")});
  server_->SetServing(true);
  EXPECT_TRUE(CheckHealth(Open({}), "", 10s).ok());
}

class TlsTest : public ServerTest {
 protected:
  Security ServerSide() const {
    Security security;
    security.tls_cert = certificates_.Pem("server");
    security.tls_key = certificates_.KeyFile("server");
    return security;
  }
  Security ClientSide() const {
    Security security;
    security.tls_ca = certificates_.Pem("ca");
    return security;
  }
  TestCertificates certificates_;
};

TEST_F(TlsTest, TlsClientsAreServedAndPlainOnesAreNot) {
  Start({.security = ServerSide()});
  EXPECT_TRUE(Info(Open(ClientSide())).ok());
  EXPECT_EQ(Info(Open({})).code(), absl::StatusCode::kUnavailable);
}

TEST_F(TlsTest, TokensAreCheckedUnderTls) {
  Security server = ServerSide();
  server.token = "s3cret";
  Start({.security = server});
  Security client = ClientSide();
  EXPECT_EQ(Info(Open(client)).code(), absl::StatusCode::kUnauthenticated);
  client.token = "s3cret";
  EXPECT_TRUE(Info(Open(client)).ok());
}

TEST_F(TlsTest, ClientsMustShowACertificateWhereOneIsAsked) {
  Security server = ServerSide();
  server.tls_client_ca = certificates_.Pem("ca");
  Start({.security = server});
  EXPECT_EQ(Info(Open(ClientSide())).code(), absl::StatusCode::kUnavailable);
  Security client = ClientSide();
  client.tls_cert = certificates_.Pem("client");
  client.tls_key = certificates_.KeyFile("client");
  EXPECT_TRUE(Info(Open(client)).ok());
}

TEST_F(TlsTest, AServerOfAnotherAuthorityIsNotTrusted) {
  Start({.security = ServerSide()});
  const TestCertificates others;
  Security client;
  client.tls_ca = others.Pem("ca");
  EXPECT_EQ(Info(Open(client)).code(), absl::StatusCode::kUnavailable);
}

TEST(ServerStartTest, ATakenPortIsReported) {
  const auto first = Server::Start({}, {});
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = Server::Start({.listen = (*first)->address()}, {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
}

TEST(ServerStartTest, NothingIsExposedByAccident) {
  const auto exposed = Server::Start({.listen = "0.0.0.0:0"}, {});
  EXPECT_EQ(exposed.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(base::MessageOf(exposed.status())),
              HasSubstr("listen 0.0.0.0:0 can be reached from other machines"));
  EXPECT_TRUE(Server::Start({.listen = "0.0.0.0:0", .security = WithToken("x")}, {}).ok());
  Security insecure;
  insecure.allow_insecure = true;
  EXPECT_TRUE(Server::Start({.listen = "0.0.0.0:0", .security = insecure}, {}).ok());
}

TEST(ServerStartTest, AMissingCertificateIsNamed) {
  Security security;
  security.tls_cert = "/none/such.pem";
  security.tls_key = "/none/such.key";
  const auto server = Server::Start({.security = security}, {});
  EXPECT_EQ(server.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(base::MessageOf(server.status())), HasSubstr("tls.cert"));
}

TEST(ServerStartTest, ShutdownLetsRunningCallsFinishAndIsIdempotent) {
  TransferService transfer;
  const auto server = Server::Start({}, {{"smartgen.v1.Transfer", &transfer}});
  ASSERT_TRUE(server.ok());
  auto channel = Connect((*server)->address(), {});
  ASSERT_TRUE(channel.ok());
  grpc::ClientContext context;
  SetTimeout(context, 30s);
  auto stream = v1::Transfer::NewStub(*channel)->Connect(&context);
  ASSERT_TRUE(stream->Write({}));
  while (transfer.calls == 0) std::this_thread::yield();
  auto down = std::async(std::launch::async, [&] { (*server)->Shutdown(20s); });
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
  down.get();
  (*server)->Shutdown(20s);
}

TEST(SecurityTest, LoopbackIsRecognised) {
  for (const char* address : {"127.0.0.1:1", "127.8.9.1:0", "localhost:7", "[::1]:7", "unix:/x"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  for (const char* address : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "127.evil.example:1", "*:1"}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

TEST(SecurityTest, ContradictionsAreRefused) {
  Security half;
  half.tls_cert = "x";
  EXPECT_THAT(std::string(base::MessageOf(half.Check())), HasSubstr("tls.key is missing"));
  Security orphan;
  orphan.tls_client_ca = "x";
  EXPECT_FALSE(orphan.Check().ok());
  EXPECT_FALSE(WithToken("two words").Check().ok());
  EXPECT_FALSE(WithToken("line\nbreak").Check().ok());
}

TEST(ClientTest, AnAddressThatIsNoneIsRefused) {
  for (const char* address : {"", "host", "host:", ":1", "host:http"}) {
    EXPECT_EQ(Connect(address, {}).status().code(), absl::StatusCode::kInvalidArgument) << address;
  }
}

TEST(ClientTest, DeadlinesSurviveTheWayThroughWallClockTime) {
  const base::Clock& clock = *base::Clock::Real();
  EXPECT_TRUE(FromSystemTime(ToSystemTime(base::Deadline::Infinite(), clock), clock).IsInfinite());
  const base::Deadline there = base::Deadline::After(clock, 5s);
  const base::Deadline back = FromSystemTime(ToSystemTime(there, clock), clock);
  EXPECT_LT(std::abs((back.at() - there.at()).count()), std::chrono::nanoseconds(1s).count());
  EXPECT_TRUE(FromSystemTime(std::chrono::system_clock::now() - 1s, clock).Expired(clock));
}

}  // namespace
}  // namespace smartgen::rpc
