// What the mains of the daemons have in common: options, logging, and a server until a signal.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "common/base/log.h"
#include "common/base/signals.h"
#include "common/base/status.h"
#include "common/config/binder.h"

namespace smartgen::config {

// "prefilld: what is wrong" on standard error; the exit status for it.
int Complain(std::string_view program, const absl::Status& status);

// Reads a daemon's options from file, environment and flags. A value: main is to end with it,
// because the text that was asked for is printed (0) or something is wrong (1).
std::optional<int> LoadDaemonOptions(std::string_view program, std::string_view about, int argc,
                                     char** argv, const std::function<void(Binder&)>& bind);

// Runs a daemon until SIGTERM or SIGINT, then drains it; the exit status, which is
// base::kStartAnew where its executor had failed. Server has
//   static absl::StatusOr<std::unique_ptr<Server>> FromModel(const Options&);
//   void Drain();
//   absl::Status health() const;
// and Options has Bind, log_level and log_format.
template <typename Options, typename Server>
int RunDaemon(std::string_view program, std::string_view about, int argc, char** argv) {
  base::BlockStopSignals();
  Options options;
  const auto bind = [&](Binder& b) { options.Bind(b); };
  if (const auto status = LoadDaemonOptions(program, about, argc, argv, bind)) return *status;
  const auto logging = base::InitLogging(program, options.log_level, options.log_format);
  if (!logging.ok()) return Complain(program, logging);
  auto server = Server::FromModel(options);
  if (!server.ok()) return Complain(program, server.status());
  base::RunUntilSignal([&] {
    (*server)->Drain();
    // A device that hangs would be waited for.
    if (!(*server)->health().ok()) base::ExitNow(base::kStartAnew);
    server->reset();
  });
  return 0;
}

}  // namespace smartgen::config
