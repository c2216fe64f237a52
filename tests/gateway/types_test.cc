#include "gateway/http/types.h"

#include <gmock/gmock.h>

namespace smartgen::gateway {
namespace {

TEST(HttpTypes, PathsAreDecodedWithoutTheQuery) {
  EXPECT_EQ(DecodePath("/v1/models/a%2Fb?x=1"), "/v1/models/a/b");
  EXPECT_EQ(DecodePath("/x#y"), "/x");
  EXPECT_EQ(DecodePath("/%"), std::nullopt);
  EXPECT_EQ(DecodePath("/%4"), std::nullopt);
  EXPECT_EQ(DecodePath("/%zz"), std::nullopt);
  EXPECT_EQ(DecodePath("/a%00b"), std::nullopt);
}

TEST(HttpTypes, AddressesAreParsed) {
  EXPECT_EQ(ParseHostPort("127.0.0.1:80")->port, 80);
  EXPECT_EQ(ParseHostPort("[::1]:0")->host, "::1");
  for (const char* bad : {"", ":80", "host", "host:", "host:x", "host:65536", "::1:80", "[::1]",
                          "[]:80", "host:-1"}) {
    EXPECT_FALSE(ParseHostPort(bad).ok()) << bad;
  }
}

TEST(HttpTypes, ErrorsHaveOpenAisShape) {
  const HttpResponse response = ErrorResponse(BadRequest("n", "n is wrong"));
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(response.body,
            R"({"error":{"message":"n is wrong","type":"invalid_request_error","param":"n",)"
            R"("code":null}})");
}

TEST(HttpTypes, BackendCodesBecomeStatuses) {
  EXPECT_EQ(FromBackendStatus(base::InvalidArgument("x")).status, 400);
  EXPECT_EQ(FromBackendStatus(base::ResourceExhausted("x")).status, 429);
  EXPECT_GT(FromBackendStatus(base::ResourceExhausted("x")).retry_after_seconds, 0);
  EXPECT_EQ(FromBackendStatus(base::Unavailable("x")).status, 503);
  EXPECT_EQ(FromBackendStatus(base::DeadlineExceeded("x")).status, 504);
  EXPECT_EQ(FromBackendStatus(base::FailedPrecondition("x")).status, 502);
  EXPECT_EQ(FromBackendStatus(base::Internal("x")).status, 500);
}

}  // namespace
}  // namespace smartgen::gateway
