#include "tools/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/fakes/temp_folder.h"
#include "tools/overrides.h"
#include "tools/process.h"

namespace smartgen::tools {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

DaemonSpec Shell(const std::string& name, const std::string& script) {
  return {name, {"/bin/sh", "-c", script}};
}

// Ends cleanly when asked to, and says so.
constexpr const char* kPolite =
    "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done";

class SupervisorTest : public ::testing::Test {
 protected:
  Supervisor::Options Options() {
    Supervisor::Options options;
    options.write_line = [this](const std::string& line) { log_ += line; };
    return options;
  }
  std::string log_;
};

TEST_F(SupervisorTest, AStopSignalEndsAllAndIsNoError) {
  Supervisor::Options options = Options();
  options.on_tick = [this]() -> std::optional<absl::Status> {
    // Both are up: now the signal that Ctrl-C would be. Names are padded to the longest.
    if (log_.find("one   | up") != std::string::npos &&
        log_.find("three | up") != std::string::npos) {
      kill(getpid(), SIGINT);
    }
    return std::nullopt;
  };
  Supervisor supervisor({Shell("one", kPolite), Shell("three", kPolite)}, options);
  ASSERT_TRUE(supervisor.Start().ok());
  EXPECT_TRUE(supervisor.Pids().contains("one"));
  EXPECT_TRUE(supervisor.RunUntilStopped().ok());
  EXPECT_THAT(log_, HasSubstr("one   | bye\n"));
  EXPECT_THAT(log_, HasSubstr("three | bye\n"));
}

TEST_F(SupervisorTest, TheLastStartedIsStoppedFirstAndTheNextWhenItHasGone) {
  // Each takes a while over its end, so that the order shows.
  const char* slow =
      "trap 'echo asked; sleep 0.2; echo gone; exit 0' TERM; echo up; "
      "while :; do sleep 0.02; done";
  Supervisor::Options options = Options();
  options.on_tick = [this]() -> std::optional<absl::Status> {
    if (log_.find("a | up") == std::string::npos || log_.find("b | up") == std::string::npos) {
      return std::nullopt;
    }
    return absl::OkStatus();
  };
  Supervisor supervisor({Shell("a", slow), Shell("b", slow)}, options);
  ASSERT_TRUE(supervisor.Start().ok());
  EXPECT_TRUE(supervisor.RunUntilStopped().ok());
  EXPECT_THAT(log_, HasSubstr("b | asked\nb | gone\na | asked\na | gone\n"));
}

TEST_F(SupervisorTest, ASecondStopSignalGoesToAll) {
  // The second one refuses the first request, as one that is busy would.
  Supervisor::Options options = Options();
  int signals = 0;
  options.write_line = [&](const std::string& line) {
    log_ += line;
    const bool up =
        log_.find("a | up") != std::string::npos && log_.find("b | up") != std::string::npos;
    const bool asked = log_.find("b | asked") != std::string::npos;
    if ((up && signals == 0) || (asked && signals == 1)) {
      ++signals;
      kill(getpid(), SIGINT);
    }
  };
  Supervisor supervisor(
      {Shell("a", kPolite), Shell("b",
                                  "trap 'trap \"exit 0\" TERM; echo asked' TERM; echo up; "
                                  "while :; do sleep 0.02; done")},
      options);
  ASSERT_TRUE(supervisor.Start().ok());
  EXPECT_TRUE(supervisor.RunUntilStopped().ok());
  EXPECT_EQ(signals, 2);
  EXPECT_THAT(log_, HasSubstr("a | bye\n"));
}

TEST_F(SupervisorTest, ADeadDaemonIsReportedWithItsLastLinesAndEndsTheRest) {
  Supervisor supervisor(
      {Shell("good", kPolite),
       Shell("bad",
             "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25; do "
             "echo line $i; done; exit 3")},
      Options());
  ASSERT_TRUE(supervisor.Start().ok());
  const absl::Status status = supervisor.RunUntilStopped();
  const std::string message(base::MessageOf(status));
  EXPECT_THAT(message, HasSubstr("bad (pid "));
  EXPECT_THAT(message, HasSubstr("ended with exit status 3; its last lines:"));
  EXPECT_THAT(message, Not(HasSubstr("line 5\n")));
  EXPECT_THAT(message, HasSubstr("  line 6\n"));
  EXPECT_THAT(message, HasSubstr("  line 25"));
}

TEST_F(SupervisorTest, ADaemonKilledBySignalIsReportedAsSuch) {
  Supervisor supervisor({Shell("bad", "kill -9 $$")}, Options());
  ASSERT_TRUE(supervisor.Start().ok());
  EXPECT_THAT(std::string(base::MessageOf(supervisor.RunUntilStopped())),
              HasSubstr("signal 9 (Killed)"));
}

TEST_F(SupervisorTest, WhoDoesNotStopIsKilled) {
  Supervisor::Options options = Options();
  options.stop_timeout = 300ms;
  options.on_tick = [this]() -> std::optional<absl::Status> {
    if (log_.find("up") == std::string::npos) return std::nullopt;
    return absl::OkStatus();
  };
  Supervisor supervisor({Shell("deaf", "trap '' TERM; echo up; while :; do sleep 0.05; done")},
                        options);
  ASSERT_TRUE(supervisor.Start().ok());
  EXPECT_THAT(std::string(base::MessageOf(supervisor.RunUntilStopped())),
              HasSubstr("did not stop within 0.3 s"));
}

TEST_F(SupervisorTest, AProgramThatIsNotThereIsNamed) {
  Supervisor supervisor({{"ghost", {"/none/such"}}}, Options());
  EXPECT_THAT(std::string(base::MessageOf(supervisor.Start())),
              HasSubstr("ghost: cannot run /none/such"));
}

TEST_F(SupervisorTest, ALastLineWithoutItsEndIsShown) {
  Supervisor supervisor({Shell("bad", "printf 'no newline'; exit 1")}, Options());
  ASSERT_TRUE(supervisor.Start().ok());
  EXPECT_FALSE(supervisor.RunUntilStopped().ok());
  EXPECT_THAT(log_, HasSubstr("bad | no newline\n"));
}

TEST(ProcessTest, OutputAndExitStatusAreCaptured) {
  const auto result = Capture({"/bin/sh", "-c", "echo out; echo err >&2; exit 7"});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->first, 7);
  EXPECT_EQ(result->second, "out\nerr\n");
}

class OverridesTest : public ::testing::Test {
 protected:
  DaemonSpec Fake(const std::string& name, const std::string& program, const std::string& flags) {
    const std::string path = dir_ + "/" + program;
    std::ofstream(path) << "#!/bin/sh\ncat <<'X'\n" << flags << "X\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return {name, {path}};
  }
  fakes::TempFolder folder_;
  std::string dir_ = folder_.path();
};

TEST_F(OverridesTest, AFlagGoesToAllThatHaveIt) {
  std::vector<DaemonSpec> daemons = {Fake("prefilld-1", "prefilld", "  --kv_bytes=BYTES\n"),
                                     Fake("decoded", "decoded", "  --kv_bytes=BYTES\n"),
                                     Fake("gateway", "gateway", "  --listen=TEXT\n")};
  ASSERT_TRUE(ApplyOverrides({"--kv-bytes=1GiB"}, daemons).ok());
  EXPECT_THAT(daemons[0].argv, Contains("--kv-bytes=1GiB"));
  EXPECT_THAT(daemons[1].argv, Contains("--kv-bytes=1GiB"));
  EXPECT_THAT(daemons[2].argv, Not(Contains("--kv-bytes=1GiB")));
}

TEST_F(OverridesTest, ADaemonsNameInFrontSendsItThereAlone) {
  std::vector<DaemonSpec> daemons = {Fake("prefilld", "prefilld", "  --log.level=a|b\n"),
                                     Fake("decoded", "decoded", "  --log.level=a|b\n")};
  ASSERT_TRUE(ApplyOverrides({"--decoded.log.level=b"}, daemons).ok());
  EXPECT_EQ(daemons[0].argv.size(), 1u);
  EXPECT_THAT(daemons[1].argv, Contains("--log.level=b"));
}

TEST_F(OverridesTest, WhatNoDaemonHasIsRefused) {
  std::vector<DaemonSpec> daemons = {Fake("decoded", "decoded", "  --a=X\n")};
  EXPECT_THAT(std::string(base::MessageOf(ApplyOverrides({"--b=1"}, daemons))),
              HasSubstr("no daemon has the flag --b"));
  EXPECT_THAT(std::string(base::MessageOf(ApplyOverrides({"b"}, daemons))),
              HasSubstr("want --KEY=VALUE"));
}

}  // namespace
}  // namespace smartgen::tools
