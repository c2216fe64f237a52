#include "tools/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/tools/one_shot_server.h"
#include "tools/ports.h"

namespace smartgen::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ParseUrlTest, UrlsAreTakenApart) {
  const auto full = ParseUrl("http://localhost:8000/v1/");
  ASSERT_TRUE(full.ok());
  EXPECT_EQ(full->host, "localhost");
  EXPECT_EQ(full->port, "8000");
  EXPECT_EQ(full->target, "/v1");
  const auto bare = ParseUrl("http://example.org");
  ASSERT_TRUE(bare.ok());
  EXPECT_EQ(bare->port, "80");
  EXPECT_EQ(bare->target, "");
  const auto six = ParseUrl("http://[::1]:9");
  ASSERT_TRUE(six.ok());
  EXPECT_EQ(six->host, "::1");
  EXPECT_EQ(six->port, "9");
}

TEST(ParseUrlTest, WhatIsNoUrlIsRefused) {
  for (const char* bad : {"", "localhost:8000", "http://", "http://:80", "http://x:y", "ftp://x"}) {
    EXPECT_EQ(ParseUrl(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_EQ(ParseUrl("https://x").status().code(), absl::StatusCode::kUnimplemented);
}

TEST(HttpClientTest, ABodyComesWhole) {
  OneShotServer server("HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nnope!");
  HttpRequest request = server.Request();
  request.headers.emplace_back("Authorization", "Bearer t");
  const auto response = Send(request);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->status, 404);
  EXPECT_EQ(response->body, "nope!");
  const std::string asked = server.Asked();
  EXPECT_THAT(asked, HasSubstr("GET /base/x HTTP/1.1\r\n"));
  EXPECT_THAT(asked, HasSubstr("Authorization: Bearer t\r\n"));
}

TEST(HttpClientTest, ChunksAreStreamed) {
  OneShotServer server(
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n");
  std::string got;
  const auto response = Send(server.Request(), [&](std::string_view bytes) {
    got += bytes;
    return true;
  });
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(got, "abcdefg");
  EXPECT_EQ(response->body, "");
}

TEST(HttpClientTest, AnErrorsBodyIsNotStreamed) {
  OneShotServer server("HTTP/1.1 500 Oops\r\nContent-Length: 3\r\n\r\nbad");
  const auto response = Send(server.Request(), [&](std::string_view) {
    ADD_FAILURE();
    return true;
  });
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->body, "bad");
}

TEST(HttpClientTest, ABrokenOffAnswerIsAnError) {
  OneShotServer server("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort");
  EXPECT_EQ(Send(server.Request()).status().code(), absl::StatusCode::kUnavailable);
}

TEST(HttpClientTest, SilenceEndsInATimeout) {
  OneShotServer server("HTTP/1.1 200 OK\r\n", /*hang=*/true);
  HttpRequest request = server.Request();
  request.silence_timeout = std::chrono::milliseconds(50);
  EXPECT_EQ(Send(request).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(HttpClientTest, NobodyThereIsUnavailable) {
  const auto ports = FreePorts(1);
  ASSERT_TRUE(ports.ok());
  HttpRequest request;
  request.url = *ParseUrl(fmt::format("http://127.0.0.1:{}", (*ports)[0]));
  request.path = "/";
  const auto response = Send(request);
  EXPECT_EQ(response.status().code(), absl::StatusCode::kUnavailable);
}

std::vector<std::string> Events(const std::vector<std::string>& pieces) {
  EventParser parser;
  std::vector<std::string> events;
  for (const std::string& piece : pieces) {
    parser.Push(piece, [&](std::string_view data) {
      events.emplace_back(data);
      return true;
    });
  }
  return events;
}

TEST(EventParserTest, EventsMayBeCutAnywhere) {
  EXPECT_THAT(Events({"da", "ta: {\"a\"", ":1}\n", "\nda", "ta:x\r\n\r", "\n"}),
              ElementsAre("{\"a\":1}", "x"));
}

TEST(EventParserTest, CommentsAndOtherFieldsArePassedOver) {
  EXPECT_THAT(Events({": keepalive\n\nevent: e\nid: 1\ndata: y\n\n"}), ElementsAre("y"));
}

TEST(EventParserTest, SeveralDataLinesAreOneEvent) {
  EXPECT_THAT(Events({"data: a\ndata: b\n\n"}), ElementsAre("a\nb"));
}

TEST(EventParserTest, AnEventThatNothingEndsDoesNotCount) {
  EXPECT_THAT(Events({"data: a\n"}), ElementsAre());
}

TEST(PortsTest, FreePortsDiffer) {
  const auto ports = FreePorts(20);
  ASSERT_TRUE(ports.ok());
  EXPECT_EQ(std::set<int>(ports->begin(), ports->end()).size(), 20u);
}

}  // namespace
}  // namespace smartgen::tools
