// Runs several daemons as one: one merged log, one end.
//
//   starting --> running --> stopping --> (all gone)
//      \_____________________^
//
// Stopping begins with a stop signal, a daemon's death, or OnTick saying so; then the daemon that
// was started last gets SIGTERM, and each of the others when the one after it has gone, so that
// nobody loses those it needs. A second stop signal is a SIGTERM to all (which daemons that were
// asked before take for "at once"), and when stop_timeout is over, for all together, SIGKILL
// follows. Not thread-safe; one at a time in a process (it takes its signals).
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"

namespace smartgen::tools {

struct DaemonSpec {
  std::string name;  // "prefilld"; leads its log lines
  std::vector<std::string> argv;
  int network_namespace = -1;  // as SpawnOptions has it
};

class Supervisor {
 public:
  struct Options {
    base::Duration stop_timeout = std::chrono::seconds(35);
    size_t kept_lines = 20;  // shown again when a daemon dies
    bool colours = false;
    // Called each 100 ms until all are gone. A value ends the run: OK as a stop signal would.
    std::function<std::optional<absl::Status>()> on_tick;
    // Called once, when stopping begins; may be empty. `signal`: by a stop signal.
    std::function<void(bool signal)> on_stop;
    // Where merged log lines go, each with its end of line.
    std::function<void(const std::string& line)> write_line;
  };

  Supervisor(std::vector<DaemonSpec> specs, Options options);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Starts all; on an error those that run are ended.
  absl::Status Start();
  // Until all are gone. OK: a stop signal came, and every daemon ended with status 0. Otherwise
  // what went wrong first.
  absl::Status RunUntilStopped();
  std::map<std::string, int> Pids() const;

 private:
  struct Daemon {
    DaemonSpec spec;
    int pid = -1;
    int output = -1;
    bool running = false;
    bool told_to_stop = false;
    std::string partial;  // of a line
    std::deque<std::string> last_lines;
  };

  void BeginStop(const absl::Status& why, bool signal = false);
  void StopNext();
  void SignalAll(int signal);
  void HandleSignals();
  void Reap();
  void Read(Daemon& daemon);
  void TakeLine(Daemon& daemon, std::string line);
  bool AnyLeft() const;
  void CheckTimeouts();

  std::vector<Daemon> daemons_;
  const Options options_;
  size_t name_width_ = 0;
  int signals_ = -1;
  bool stopping_ = false;
  bool killed_ = false;
  base::TimePoint stop_began_;
  absl::Status result_;
};

}  // namespace smartgen::tools
