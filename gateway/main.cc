// The gateway daemon: OpenAI-style HTTP in front of decode instances.
#include <csignal>
#include <cstdio>
#include <thread>

#include "common/base/log.h"
#include "common/config/daemon.h"
#include "gateway/gateway.h"

namespace smartgen::gateway {
namespace {

constexpr const char* kProgram = "gateway";

// Signals are taken by one thread that waits for them; no code runs inside a handler.
void BlockSignals(sigset_t& set) {
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

absl::StatusOr<bool> Serve(const Options& options, const sigset_t& signals) {
  const base::Clock* clock = base::Clock::Real();
  ASSIGN_OR_RETURN(ServedModel model,
                   ServedModel::Load(options.model, options.model_name, options.trust_user_text,
                                     clock->UnixSeconds()));
  const auto metrics = metrics::Metrics::Create(kProgram);
  ASSIGN_OR_RETURN(const auto gateway,
                   Gateway::Start(options, std::move(model), metrics.get(), clock));
  std::atomic<bool> aborted{false};
  std::atomic<bool> done{false};
  std::thread watcher([&] {
    const timespec tick{0, 100'000'000};
    for (int count = 0; !done;) {
      if (sigtimedwait(&signals, nullptr, &tick) < 0) continue;
      if (++count == 1) {
        gateway->BeginDrain();
      } else {
        aborted = true;
        gateway->Abort();
      }
    }
  });
  gateway->Wait();
  done = true;
  watcher.join();
  return !aborted;
}

int Main(int argc, char** argv) {
  sigset_t signals;
  BlockSignals(signals);
  Options options;
  const auto bind = [&](config::Binder& binder) { options.Bind(binder); };
  if (const auto status = config::LoadDaemonOptions(
          kProgram, "OpenAI-compatible HTTP API in front of decode instances", argc, argv, bind)) {
    return *status;
  }
  if (auto status = base::InitLogging(kProgram, options.log_level, options.log_format);
      !status.ok()) {
    return config::Complain(kProgram, status);
  }
  if (auto status = options.Check(); !status.ok()) return config::Complain(kProgram, status);
  const auto clean = Serve(options, signals);
  if (!clean.ok()) return config::Complain(kProgram, clean.status());
  return *clean ? 0 : 1;
}

}  // namespace
}  // namespace smartgen::gateway

int main(int argc, char** argv) { return smartgen::gateway::Main(argc, argv); }
