#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/tools/one_shot_server.h"
#include "tools/command.h"

namespace smartgen::tools {
namespace {

using ::testing::HasSubstr;

struct Result {
  int code;
  std::string out;
  std::string err;
};

// Types `input` into a chat with the server.
Result ChatWith(const OneShotServer& server, const std::string& input, Args more = {}) {
  std::istringstream typed(input);
  std::streambuf* const terminal = std::cin.rdbuf(typed.rdbuf());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Args args = {"--url", fmt::format("http://127.0.0.1:{}", server.port()), "--model", "m"};
  args.insert(args.end(), more.begin(), more.end());
  Result result;
  result.code = Chat(args);
  result.out = ::testing::internal::GetCapturedStdout();
  result.err = ::testing::internal::GetCapturedStderr();
  std::cin.rdbuf(terminal);
  std::cin.clear();
  return result;
}

std::string Stream(const std::vector<std::string>& events) {
  std::string body;
  for (const std::string& event : events) body += "data: " + event + "\n\n";
  return fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", body.size(), body);
}

TEST(ChatTest, AnAnswerIsStreamedAndTimed) {
  OneShotServer server(
      Stream({R"({"choices":[{"delta":{"role":"assistant","content":""}}]})",
              R"({"choices":[{"delta":{"content":"Hel"}}]})",
              R"({"choices":[{"delta":{"content":"lo"}}]})",
              R"({"choices":[{"delta":{},"finish_reason":"stop"}]})",
              R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}})", "[DONE]"}));
  const Result result =
      ChatWith(server, "hi there\n", {"--system=be brief", "--seed=5", "--json-timings"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("Hello\n"));
  const auto timings = nlohmann::json::parse(result.err);
  EXPECT_EQ(timings["prompt_tokens"], 7);
  EXPECT_EQ(timings["completion_tokens"], 3);
  EXPECT_EQ(timings["finish_reason"], "stop");
  EXPECT_GE(timings["ttst_e2e_seconds"], timings["ttft_seconds"]);
  const std::string asked = server.Asked();
  const auto body = nlohmann::json::parse(asked.substr(asked.find("\r\n\r\n") + 4));
  EXPECT_EQ(body["messages"], nlohmann::json::parse(R"([{"role":"system","content":"be brief"},
      {"role":"user","content":"hi there"}])"));
  EXPECT_EQ(body["seed"], 5);
  EXPECT_EQ(body["stream"], true);
  EXPECT_EQ(body["stream_options"]["include_usage"], true);
}

TEST(ChatTest, TheGatewaysErrorIsShown) {
  const std::string body = R"({"error":{"message":"max_tokens: too many"}})";
  OneShotServer server(
      fmt::format("HTTP/1.1 400 Bad Request\r\nContent-Length: {}\r\n\r\n{}", body.size(), body));
  const Result result = ChatWith(server, "hi\n");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("HTTP 400: max_tokens: too many"));
}

TEST(ChatTest, AStreamThatEndsWithoutItsEndIsAnError) {
  OneShotServer server(Stream({R"({"choices":[{"delta":{"content":"Hel"}}]})"}));
  const Result result = ChatWith(server, "hi\n");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("the answer was cut off"));
}

TEST(ChatTest, AnErrorWithinTheStreamIsShown) {
  OneShotServer server(Stream({R"({"error":{"message":"decode instance lost"}})"}));
  const Result result = ChatWith(server, "hi\n");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("decode instance lost"));
}

TEST(ChatTest, BytesThatAreNoEventAreAnErrorNotACrash) {
  OneShotServer server(Stream({"\xff{{{"}));
  const Result result = ChatWith(server, "hi\n");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("not JSON"));
}

}  // namespace
}  // namespace smartgen::tools
