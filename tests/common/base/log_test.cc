#include "common/base/log.h"

#include <gtest/gtest.h>

#include <string>

namespace smartgen::base {
namespace {

class LogTest : public ::testing::Test {
 protected:
  // Other tests go on with what they had.
  ~LogTest() override { spdlog::set_default_logger(before_); }
  const std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
};

TEST_F(LogTest, AJsonLineStaysOneObjectWhateverTheMessageHolds) {
  ASSERT_TRUE(InitLogging("decoded", "info", "json").ok());
  ::testing::internal::CaptureStderr();
  SMARTGEN_LOG(info, "test", "{}", "a \"quoted\" C:\\path\nand \x01 \xc3\xa9");
  const std::string line = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(line.substr(line.find("\"level\"")),
            R"("level":"info","program":"decoded",)"
            R"("msg":"test: a \"quoted\" C:\\path\u000aand \u0001 )"
            "\xc3\xa9\"}\n");
}

TEST_F(LogTest, TextIsLeftAsItIs) {
  ASSERT_TRUE(InitLogging("decoded", "info", "text").ok());
  ::testing::internal::CaptureStderr();
  SMARTGEN_LOG(warn, "test", "a \"b\"");
  const std::string line = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(line.find(" W decoded test: a \"b\"\n"), std::string::npos) << line;
}

TEST_F(LogTest, UnknownLevelsAndFormatsAreRefused) {
  EXPECT_FALSE(InitLogging("x", "loud", "text").ok());
  EXPECT_FALSE(InitLogging("x", "info", "xml").ok());
}

}  // namespace
}  // namespace smartgen::base
