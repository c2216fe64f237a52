// The HTTP side: bad input of all kinds, tokens, disconnects, shutdown.
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "tests/gateway/gateway_fixture.h"

namespace smartgen::gateway {
namespace {

using namespace testing;  // NOLINT: fixtures and the tiny model
using ::testing::HasSubstr;

using HttpTest = GatewayFixture;

void ExpectError(const RawResponse& response, int status, const std::string& code) {
  ASSERT_EQ(response.status, status) << response.body;
  const auto error = response.Json()["error"];
  EXPECT_FALSE(error["message"].get<std::string>().empty());
  EXPECT_TRUE(error.contains("type") && error.contains("param"));
  EXPECT_EQ(error["code"], code);
}

TEST_F(HttpTest, C2_BrokenBodiesAre400AndTheProcessLives) {
  Start();
  for (const std::string& body :
       {std::string("{"), std::string("\"\xff\""), std::string("{\"a\":\"\xff\"}"),
        std::string("{\"temperature\": NaN}"), std::string(10000, '['), std::string(),
        std::string("{\"a\":") + std::string(10000, '[') + std::string(10000, ']') + "}"}) {
    for (const char* path : {"/v1/chat/completions", "/v1/completions"}) {
      EXPECT_EQ(Post(port(), path, body).status, 400) << body.substr(0, 40);
    }
  }
  EXPECT_EQ(Chat().status, 200);
}

TEST_F(HttpTest, UnknownRoutesAre404AndWrongMethods405) {
  Start();
  ExpectError(Get(port(), "/v2/x"), 404, "not_found");
  const auto wrong = Get(port(), "/v1/chat/completions");
  ExpectError(wrong, 405, "method_not_allowed");
  EXPECT_THAT(wrong.headers.at("allow"), HasSubstr("POST"));
  ExpectError(Post(port(), "/v1/models", "{}"), 405, "method_not_allowed");
}

TEST_F(HttpTest, HeadHasTheHeadersOnly) {
  Start();
  RawClient client(port());
  client.Send(
      "HEAD /v1/models HTTP/1.1\r\nHost: x\r\n\r\nGET /health/live HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto head = client.Read(/*head_request=*/true);
  EXPECT_EQ(head.status, 200);
  EXPECT_NE(head.headers.at("content-length"), "0");
  EXPECT_EQ(client.Read().body, R"({"status":"alive"})");
}

TEST_F(HttpTest, CorsIsAnsweredWhereConfigured) {
  options_.cors_allow_origin = "https://example.org";
  options_.api_key = "secret";
  Start();
  RawClient client(port());
  client.Send("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto response = client.Read();
  EXPECT_EQ(response.status, 204);
  EXPECT_EQ(response.headers.at("access-control-allow-origin"), "https://example.org");
  EXPECT_THAT(response.headers.at("access-control-allow-methods"), HasSubstr("POST"));
  EXPECT_EQ(response.headers.at("access-control-allow-headers"), "*, Authorization, Content-Type");
  EXPECT_EQ(response.headers.at("vary"), "Origin");
}

TEST_F(HttpTest, C11_EveryRouteButHealthWantsTheToken) {
  options_.api_key = "secret";
  Start();
  for (const char* path : {"/v1/models", "/v1/models/tiny", "/metrics", "/nowhere",
                           "/v1/chat/completions", "/v1/completions"}) {
    ExpectError(Get(port(), path), 401, "invalid_api_key");
    ExpectError(Get(port(), path, "Authorization: Bearer wrong\r\n"), 401, "invalid_api_key");
    ExpectError(Get(port(), path, "Authorization: Bearer secretx\r\n"), 401, "invalid_api_key");
    ExpectError(Get(port(), path, "Authorization: Basic secret\r\n"), 401, "invalid_api_key");
  }
  for (const char* path : {"/v1/chat/completions", "/v1/completions"}) {
    ExpectError(Post(port(), path, "{}"), 401, "invalid_api_key");
  }
  EXPECT_EQ(Get(port(), "/v1/models", "Authorization: Bearer secret\r\n").status, 200);
  EXPECT_EQ(Get(port(), "/v1/models", "Authorization: bearer secret\r\n").status, 200);
  EXPECT_EQ(Get(port(), "/health/live").status, 200);
  EXPECT_NE(Get(port(), "/health/ready").status, 401);
}

TEST_F(HttpTest, TooLargeABodyIs413BeforeItIsRead) {
  options_.max_body_bytes = 2000;
  Start();
  RawClient client(port());
  client.Send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2001\r\n\r\n");
  ExpectError(client.Read(), 413, "body_too_large");
}

TEST_F(HttpTest, TooLargeAChunkedBodyIs413) {
  options_.max_body_bytes = 2000;
  Start();
  RawClient client(port());
  client.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 3; ++i) client.Send("400\r\n" + std::string(1024, ' ') + "\r\n");
  ExpectError(client.Read(), 413, "body_too_large");
}

TEST_F(HttpTest, ChunkedBodiesAreRead) {
  Start();
  RawClient client(port());
  client.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n");
  for (const char c : std::string(R"({"prompt":"a"})")) {
    client.Send(std::string("1\r\n") + c + "\r\n");
  }
  client.Send("0\r\n\r\n");
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(HttpTest, TooLargeAHeaderIs431) {
  options_.max_header_bytes = 2048;
  Start();
  RawClient client(port());
  client.Send("GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Big: " + std::string(8000, 'a') +
              "\r\n\r\n");
  ExpectError(client.Read(), 431, "headers_too_large");
}

TEST_F(HttpTest, WhatIsNotHttpIs400) {
  Start();
  for (const char* bytes :
       {"nonsense\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
        "GET /v1/models HTTP/1.1\r\nBad Header\r\n\r\n", "GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /v1/models HTTP/1.1\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: "
        "4\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"}) {
    RawClient client(port());
    client.Send(bytes);
    EXPECT_EQ(client.Read().status, 400) << bytes;
  }
}

TEST_F(HttpTest, OnlyJsonIsTakenAndTheErrorSaysHowToSendIt) {
  Start();
  for (const char* header : {"", "Content-Type: text/plain\r\n",
                             "Content-Type: application/x-www-form-urlencoded\r\n"}) {
    RawClient client(port());
    client.Send(std::string("POST /v1/completions HTTP/1.1\r\nHost: x\r\n") + header +
                "Content-Length: 2\r\n\r\n{}");
    const auto response = client.Read();
    ExpectError(response, 415, "unsupported_media_type");
    EXPECT_THAT(response.body, HasSubstr("-H 'Content-Type: application/json'"));
  }
}

TEST_F(HttpTest, AChunkedBodyHoldsWhatItTookAndNotWhatItMightHave) {
  options_.max_body_bytes = 1024;
  options_.max_body_bytes_in_flight = 1500;
  AddDecode().SetScript([](const auto&, FakeStream& stream) {
    stream.AwaitCancel();
    return grpc::Status::CANCELLED;
  });
  Start();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int64_t i = 1; i <= 3; ++i) {
    clients.push_back(std::make_unique<RawClient>(port()));
    clients.back()->Send(
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\n\r\ne\r\n{\"prompt\":\"a\"}\r\n0\r\n\r\n");
    ASSERT_TRUE(Eventually([&] { return decode().running() == i; }));
  }
}

TEST_F(HttpTest, ExpectContinueIsAnswered) {
  Start();
  RawClient client(port());
  client.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Expect: 100-continue\r\n"
      "Content-Length: 14\r\n\r\n");
  ASSERT_TRUE(client.ReadUntil("100 Continue\r\n\r\n"));
  EXPECT_EQ(client.Read().status, 100);
  client.Send(R"({"prompt":"a"})");
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(HttpTest, AConnectionServesManyRequestsAlsoPipelined) {
  Start();
  RawClient client(port());
  const std::string one = PostText("/v1/completions", R"({"prompt":"a"})");
  client.Send(one + one + "GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.Read().Json()["choices"][0]["text"], "ok");
  EXPECT_EQ(client.Read().Json()["choices"][0]["text"], "ok");
  EXPECT_EQ(client.Read().body, R"({"status":"alive"})");
  client.Send(PostText("/v1/completions", R"({"prompt":"a","stream":true})"));
  EXPECT_EQ(client.Read().Events().back(), "[DONE]");
  client.Send(one);
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(HttpTest, ConnectionCloseIsHonoured) {
  Start();
  RawClient client(port());
  client.Send("GET /health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(client.Read().status, 200);
  EXPECT_TRUE(client.AtEnd());
}

TEST_F(HttpTest, Http10StreamsEndWithTheConnection) {
  Start();
  RawClient client(port());
  const std::string body = R"({"prompt":"a","stream":true})";
  client.Send(
      "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body);
  const auto response = client.Read();
  EXPECT_FALSE(response.headers.contains("transfer-encoding"));
  EXPECT_EQ(response.Events().back(), "[DONE]");
}

TEST_F(HttpTest, ASlowHeaderIs408) {
  options_.header_timeout = std::chrono::milliseconds(100);
  Start();
  RawClient client(port());
  client.Send("GET /v1/models HTTP/1.1\r\nHo");
  ExpectError(client.Read(), 408, "request_timeout");
  EXPECT_TRUE(client.AtEnd());
}

TEST_F(HttpTest, ASlowBodyIs408) {
  options_.body_timeout = std::chrono::milliseconds(100);
  Start();
  RawClient client(port());
  client.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Content-Length: 100\r\n\r\n{");
  ExpectError(client.Read(), 408, "request_timeout");
}

TEST_F(HttpTest, SilentAndIdleConnectionsAreClosed) {
  options_.header_timeout = std::chrono::milliseconds(100);
  options_.idle_timeout = std::chrono::milliseconds(100);
  Start();
  RawClient silent(port());
  EXPECT_TRUE(silent.AtEnd());
  RawClient idle(port());
  idle.Send("GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(idle.Read().status, 200);
  EXPECT_TRUE(idle.AtEnd());
}

TEST_F(HttpTest, BeyondMaxConnectionsIs503) {
  options_.max_connections = 2;
  Start();
  RawClient first(port());
  RawClient second(port());
  for (RawClient* client : {&first, &second}) {
    client->Send("GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_EQ(client->Read().status, 200);
  }
  RawClient third(port());
  ExpectError(third.Read(), 503, "too_many_connections");
}

TEST_F(HttpTest, AClientThatDoesNotReadIsDropped) {
  options_.write_timeout = std::chrono::milliseconds(200);
  options_.probe_interval = std::chrono::hours(1);
  AddDecode();
  Start();
  ASSERT_TRUE(Eventually([&] { return gateway_->ready(); }));
  decode().SetScript([](const auto&, FakeStream& stream) {
    stream.Admit();
    for (int i = 0; i < 10'000'000 && !stream.context().IsCancelled(); ++i) stream.Token('a');
    return grpc::Status::OK;
  });
  RawClient client(port());
  client.Send(PostText("/v1/completions", R"({"prompt":"a","stream":true,"max_tokens":500})"));
  EXPECT_TRUE(Eventually([&] { return decode().cancelled() == 1; }));
  EXPECT_TRUE(Eventually([&] { return gateway_->running() == 0; }));
}

// --- S5: the client goes in each state

class Disconnect : public GatewayFixture, public ::testing::WithParamInterface<const char*> {
 protected:
  void StartStuck(FakeDaemon::Script script) {
    options_.probe_interval = std::chrono::hours(1);
    AddDecode();
    Start();
    ASSERT_TRUE(Eventually([&] { return gateway_->ready(); }));
    decode().SetScript(std::move(script));
  }
  void ExpectFreed() {
    const auto begin = base::Clock::Real()->Now();
    EXPECT_TRUE(Eventually([&] { return decode().running() == 0 && gateway_->running() == 0; }));
    EXPECT_LT(base::ToSeconds(base::Clock::Real()->Now() - begin), 5.0);
    EXPECT_EQ(decode().cancelled(), 1);
  }
};

TEST_P(Disconnect, S5_WhileQueued) {
  StartStuck([](const auto&, FakeStream& stream) {
    stream.AwaitCancel();
    return grpc::Status::CANCELLED;
  });
  RawClient client(port());
  client.Send(PostText("/v1/chat/completions", ChatBody(GetParam())));
  ASSERT_TRUE(Eventually([&] { return decode().running() == 1; }));
  client.Close();
  ExpectFreed();
  EXPECT_EQ(metrics_->GetCounter("requests_total", {{"code", "499"}}).value(), 1);
}

TEST_P(Disconnect, S5_H13_WhileInPrefill) {
  StartStuck([](const auto&, FakeStream& stream) {
    stream.Admit();
    stream.AwaitCancel();
    return grpc::Status::CANCELLED;
  });
  RawClient client(port());
  client.Send(PostText("/v1/chat/completions", ChatBody(GetParam())));
  ASSERT_TRUE(Eventually([&] { return decode().running() == 1; }));
  client.Close();
  ExpectFreed();
}

TEST_P(Disconnect, S5_WhileDecoding) {
  StartStuck([](const auto&, FakeStream& stream) {
    stream.Admit();
    stream.Tokens({'a', 'b', 'c'});
    stream.AwaitCancel();
    return grpc::Status::CANCELLED;
  });
  RawClient client(port());
  client.Send(PostText("/v1/chat/completions", ChatBody(GetParam())));
  ASSERT_TRUE(Eventually([&] { return decode().running() == 1; }));
  if (std::string(GetParam()).find("true") != std::string::npos) {
    ASSERT_TRUE(client.ReadUntil("\"c\""));
  }
  client.Close();
  ExpectFreed();
}

TEST_P(Disconnect, S5_WithRequestsSentAhead) {
  StartStuck([](const auto&, FakeStream& stream) {
    stream.AwaitCancel();
    return grpc::Status::CANCELLED;
  });
  RawClient client(port());
  const std::string text = PostText("/v1/chat/completions", ChatBody(GetParam()));
  std::string ahead;
  while (ahead.size() < 200000) ahead += text;
  client.Send(text + ahead);
  ASSERT_TRUE(Eventually([&] { return decode().running() == 1; }));
  client.Close();
  ExpectFreed();
}

INSTANTIATE_TEST_SUITE_P(StreamedAndNot, Disconnect,
                         ::testing::Values(R"("stream":false)", R"("stream":true)"));

// --- shutdown

class Shutdown : public GatewayFixture {
 protected:
  // Streams stay open until Release.
  void StartHeld() {
    options_.probe_interval = std::chrono::hours(1);
    AddDecode();
    Start();
    ASSERT_TRUE(Eventually([&] { return gateway_->ready(); }));
    decode().SetScript([this](const auto& request, FakeStream& stream) {
      stream.Admit();
      stream.Token('o');
      Eventually([&] { return released_.load() || stream.context().IsCancelled(); });
      if (stream.context().IsCancelled()) return grpc::Status::CANCELLED;
      v1::GenerateRequest rest = request;
      rest.add_generated_ids('o');
      return Says("ok")(rest, stream);
    });
  }
  std::atomic<bool> released_{false};
};

TEST_F(Shutdown, G8_RunningStreamsFinishAndNewOnesAre503) {
  StartHeld();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 10; ++i) {
    clients.push_back(std::make_unique<RawClient>(port()));
    clients.back()->Send(PostText("/v1/chat/completions", ChatBody(R"("stream":true)")));
  }
  for (auto& client : clients) ASSERT_TRUE(client->ReadUntil("\"o\""));
  gateway_->BeginDrain();
  ExpectError(Chat(), 503, "shutting_down");
  EXPECT_EQ(Get(port(), "/health/ready").status, 503);
  EXPECT_EQ(Get(port(), "/health/live").status, 200);
  released_ = true;
  for (auto& client : clients) {
    EXPECT_EQ(client->Read().Events().back(), "[DONE]");
    EXPECT_TRUE(client->AtEnd());
  }
  EXPECT_TRUE(gateway_->Wait());
}

TEST_F(Shutdown, AfterTheGraceStreamsAreToldAndCut) {
  options_.shutdown_grace = std::chrono::milliseconds(50);
  StartHeld();
  RawClient streaming(port());
  streaming.Send(PostText("/v1/chat/completions", ChatBody(R"("stream":true)")));
  ASSERT_TRUE(streaming.ReadUntil("\"o\""));
  RawClient whole(port());
  whole.Send(PostText("/v1/chat/completions", ChatBody()));
  ASSERT_TRUE(Eventually([&] { return decode().running() == 2; }));
  gateway_->BeginDrain();
  EXPECT_FALSE(gateway_->Wait());
  EXPECT_THAT(streaming.Read().Events().back(), HasSubstr("shutting_down"));
  ExpectError(whole.Read(), 503, "shutting_down");
  EXPECT_TRUE(Eventually([&] { return decode().cancelled() == 2; }));
}

TEST_F(Shutdown, AbortDoesNotWaitForTheGrace) {
  StartHeld();
  RawClient client(port());
  client.Send(PostText("/v1/chat/completions", ChatBody(R"("stream":true)")));
  ASSERT_TRUE(client.ReadUntil("\"o\""));
  gateway_->BeginDrain();
  gateway_->Abort();
  const auto begin = base::Clock::Real()->Now();
  EXPECT_FALSE(gateway_->Wait());
  EXPECT_LT(base::ToSeconds(base::Clock::Real()->Now() - begin), 5.0);
}

TEST_F(Shutdown, IdleConnectionsDoNotHoldItUp) {
  StartHeld();
  RawClient idle(port());
  idle.Send("GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(idle.Read().status, 200);
  gateway_->BeginDrain();
  EXPECT_TRUE(idle.AtEnd());
  EXPECT_TRUE(gateway_->Wait());
}

TEST_F(Shutdown, ABodyThatIsStillArrivingIsWaitedFor) {
  StartHeld();
  released_ = true;
  RawClient client(port());
  client.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Expect: 100-continue\r\nContent-Length: 14\r\n\r\n");
  ASSERT_TRUE(client.ReadUntil("100 Continue\r\n\r\n"));
  EXPECT_EQ(client.Read().status, 100);
  gateway_->BeginDrain();
  std::atomic<bool> clean{false};
  std::thread waiting([&] { clean = gateway_->Wait(); });
  // Nobody accepts any longer once the wait is over, which it must not be yet.
  EXPECT_EQ(Get(port(), "/health/live").status, 200);
  client.Send(R"({"prompt":"a"})");
  EXPECT_EQ(client.Read().status, 200);
  waiting.join();
  EXPECT_TRUE(clean);
}

TEST_F(Shutdown, ABodyThatDoesNotArriveIsToldAndCut) {
  options_.shutdown_grace = std::chrono::milliseconds(50);
  StartHeld();
  RawClient client(port());
  client.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Expect: 100-continue\r\nContent-Length: 14\r\n\r\n");
  ASSERT_TRUE(client.ReadUntil("100 Continue\r\n\r\n"));
  EXPECT_EQ(client.Read().status, 100);
  gateway_->BeginDrain();
  EXPECT_FALSE(gateway_->Wait());
  ExpectError(client.Read(), 503, "shutting_down");
}

TEST_F(Shutdown, ConnectionsThatComeMeanwhileDoNotHoldItUp) {
  Start();
  const int at = port();
  std::atomic<bool> stop{false};
  std::thread comers([&] {
    std::vector<std::unique_ptr<RawClient>> clients;
    while (!stop) {
      clients.push_back(std::make_unique<RawClient>(at));
      if (clients.size() > 500) clients.clear();
    }
  });
  const auto begin = base::Clock::Real()->Now();
  gateway_->Abort();
  gateway_->Wait();
  EXPECT_LT(base::ToSeconds(base::Clock::Real()->Now() - begin), 5.0);
  stop = true;
  comers.join();
}

// --- start

TEST_F(HttpTest, ATakenAddressIsAnErrorThatSaysSo) {
  Start();
  Options options = options_;
  options.listen = "127.0.0.1:" + std::to_string(port());
  const auto second = Gateway::Start(options, TinyModel(), metrics_.get(), base::Clock::Real());
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(options.listen));
}

TEST_F(HttpTest, BeyondLoopbackATokenIsNeeded) {
  Options options;
  options.listen = "0.0.0.0:0";
  EXPECT_FALSE(options.Check().ok());
  options.api_key = "k";
  EXPECT_TRUE(options.Check().ok());
  options.api_key = "";
  options.security.allow_insecure = true;
  EXPECT_TRUE(options.Check().ok());
}

}  // namespace
}  // namespace smartgen::gateway
