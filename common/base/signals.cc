#include "common/base/signals.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "common/base/log.h"

namespace smartgen::base {
namespace {

std::atomic<bool> stopping = false;

sigset_t StopSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

void BlockStopSignals() {
  const sigset_t set = StopSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

void ExitNow(int status) {
  spdlog::shutdown();
  _exit(status);
}

void RunUntilSignal(const std::function<void()>& drain) {
  const sigset_t set = StopSignals();
  int signal_number = 0;
  while (sigwait(&set, &signal_number) != 0) {
  }
  stopping = true;
  SMARTGEN_LOG(info, "server", "got {}: stopping; a second one aborts",
               signal_number == SIGTERM ? "SIGTERM" : "SIGINT");
  // Polls instead of blocking in sigwait, so that it ends with the drain.
  std::atomic<bool> done{false};
  std::thread second([&] {
    while (!done) {
      const timespec poll = {.tv_sec = 0, .tv_nsec = 50'000'000};
      if (sigtimedwait(&set, nullptr, &poll) > 0) {
        SMARTGEN_LOG(error, "server", "a second signal: aborting");
        ExitNow(130);
      }
    }
  });
  drain();
  done = true;
  second.join();
}

void RequestStop() {
  if (!stopping) kill(getpid(), SIGTERM);
}

}  // namespace smartgen::base
