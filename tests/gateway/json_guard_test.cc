#include "gateway/openai/json_guard.h"

#include <gmock/gmock.h>

#include "common/base/clock.h"

namespace smartgen::gateway {
namespace {

using ::testing::HasSubstr;

void ExpectRefused(const std::string& body, const std::string& code) {
  const auto result = ParseJsonObject(body);
  ASSERT_FALSE(result.ok()) << body.substr(0, 80);
  EXPECT_EQ(result.error().status, 400);
  EXPECT_EQ(result.error().code, code) << body.substr(0, 80);
}

TEST(JsonGuard, AnObjectComesThrough) {
  const auto result = ParseJsonObject(R"({"a": [1, "x]}{", {"b": null}]})");
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result.value()["a"][1], "x]}{");
}

TEST(JsonGuard, C2_InvalidUtf8IsRefused) {
  ExpectRefused("{\"a\": \"\xff\"}", "invalid_utf8");
  ExpectRefused("{\"a\": \"\xc3\"}", "invalid_utf8");
}

TEST(JsonGuard, C2_TruncatedTextIsRefused) {
  const std::string whole = R"({"a": [1, {"b": "c\n"}], "d": 1.5})";
  for (size_t i = 0; i < whole.size(); ++i) ExpectRefused(whole.substr(0, i), "invalid_json");
}

TEST(JsonGuard, C2_NumbersThatJsonDoesNotHaveAreRefused) {
  for (const char* number : {"NaN", "Infinity", "-Infinity", "1e999", "0x10", "01", "+1", ".5"}) {
    ExpectRefused(std::string("{\"a\": ") + number + "}", "invalid_json");
  }
}

TEST(JsonGuard, C2_TenThousandNestedArraysAreRefused) {
  ExpectRefused("{\"a\": " + std::string(10000, '[') + std::string(10000, ']') + "}",
                "json_too_deep");
  ExpectRefused(std::string(1000000, '{'), "json_too_deep");
}

TEST(JsonGuard, TheDepthLimitIsExact) {
  const auto nested = [](int depth) {
    return "{\"a\":" + std::string(static_cast<size_t>(depth - 1), '[') +
           std::string(static_cast<size_t>(depth - 1), ']') + "}";
  };
  EXPECT_TRUE(ParseJsonObject(nested(kMaxJsonDepth)).ok());
  ExpectRefused(nested(kMaxJsonDepth + 1), "json_too_deep");
}

TEST(JsonGuard, BracketsInsideStringsDoNotCount) {
  EXPECT_TRUE(ParseJsonObject("{\"a\": \"" + std::string(10000, '[') + "\\\"[\"}").ok());
}

TEST(JsonGuard, MoreValuesThanTheLimitAreRefused) {
  std::string body = "{\"a\":[0";
  for (int64_t i = 0; i < kMaxJsonValues; ++i) body += ",0";
  ExpectRefused(body + "]}", "json_too_large");
}

std::string ObjectOf(int keys) {
  std::string body = "{";
  for (int i = 0; i < keys; ++i) body += fmt::format("{}\"{}\":0", i == 0 ? "" : ",", i);
  return body + "}";
}

TEST(JsonGuard, AnObjectOfManyKeysIsRefusedBeforeItCostsAnything) {
  const std::string body = ObjectOf(500000);
  const auto begin = base::Clock::Real()->Now();
  ExpectRefused(body, "json_too_large");
  EXPECT_LT(base::ToSeconds(base::Clock::Real()->Now() - begin), 20.0);
  EXPECT_TRUE(ParseJsonObject(ObjectOf(kMaxJsonKeys)).ok());
  ExpectRefused(ObjectOf(kMaxJsonKeys + 1), "json_too_large");
  ExpectRefused("{\"a\":[" + ObjectOf(kMaxJsonKeys + 1) + "]}", "json_too_large");
}

TEST(JsonGuard, ObjectsOfManyKeysAreLimitedInNumber) {
  const auto objects = [](int count, int keys) {
    std::string body = "{\"a\":[" + ObjectOf(keys);
    for (int i = 1; i < count; ++i) body += "," + ObjectOf(keys);
    return body + "]}";
  };
  EXPECT_TRUE(ParseJsonObject(objects(1000, kManyJsonKeys)).ok());
  EXPECT_TRUE(ParseJsonObject(objects(kMaxObjectsWithManyKeys, kManyJsonKeys + 1)).ok());
  ExpectRefused(objects(kMaxObjectsWithManyKeys + 1, kManyJsonKeys + 1), "json_too_large");
}

TEST(JsonGuard, ColonsInsideStringsAreNoKeys) {
  EXPECT_TRUE(ParseJsonObject("{\"a\": \"" + std::string(10000, ':') + "\"}").ok());
}

TEST(JsonGuard, OnlyAnObjectIsARequest) {
  for (const char* body : {"[]", "1", "\"x\"", "null", "", "{} {}", "{},"}) {
    ExpectRefused(body, "invalid_json");
  }
}

TEST(JsonGuard, ErrorsSayWhere) {
  EXPECT_THAT(ParseJsonObject("{\"a\": tru}").error().message, HasSubstr("byte"));
}

}  // namespace
}  // namespace smartgen::gateway
