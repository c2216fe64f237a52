// How a daemon's process ends.
#include "common/config/daemon.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <thread>

namespace smartgen::config {
namespace {

struct Options {
  std::string log_level = "off";
  std::string log_format = "text";
  void Bind(Binder&) {}
};

// Asks for its own end at once, and once more while it drains.
struct Server {
  static inline absl::Status health_then;
  static inline bool from_outside = false;

  static absl::StatusOr<std::unique_ptr<Server>> FromModel(const Options&) {
    if (from_outside) {
      kill(getpid(), SIGTERM);
    } else {
      base::RequestStop();
    }
    return std::make_unique<Server>();
  }
  void Drain() {
    base::RequestStop();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  absl::Status health() const { return health_then; }
  // What a lost device would do to the process that frees its memory.
  ~Server() {
    if (!health_then.ok()) std::this_thread::sleep_for(std::chrono::minutes(5));
  }
};

[[noreturn]] void RunServer() {
  std::string program = "serverd";
  char* argv[] = {program.data(), nullptr};
  _exit(RunDaemon<Options, Server>("serverd", "a test's daemon", 1, argv));
}

TEST(RunDaemonDeathTest, AnOrderlyStopEndsWithZeroAndAFailedExecutorWithStartAnew) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  for (const bool from_outside : {true, false}) {
    Server::from_outside = from_outside;
    Server::health_then = absl::OkStatus();
    EXPECT_EXIT(RunServer(), testing::ExitedWithCode(0), "");
    Server::health_then = absl::InternalError("the device is lost");
    EXPECT_EXIT(RunServer(), testing::ExitedWithCode(base::kStartAnew), "");
  }
}

}  // namespace
}  // namespace smartgen::config
