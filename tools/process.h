// Child processes.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"

namespace smartgen::tools {

// Starts `argv` (looked up in PATH) with standard output and error on `output_fd` (-1: standard
// output goes to our standard error, so that our own output stays clean). The child dies with this
// process. `own_group`: Ctrl-C of the terminal does not reach it. Returns the pid; NotFound if the
// program cannot be run.
struct SpawnOptions {
  int output_fd = -1;
  bool own_group = false;
  int network_namespace = -1;  // an open one's descriptor: the child runs in it; -1: in ours
};
absl::StatusOr<int> Spawn(const std::vector<std::string>& argv, const SpawnOptions& options);

// Waits for a child's end: its exit status as a shell has it (128 + signal).
int WaitFor(int pid);
// "exit status 3", "signal 9 (Killed)" from waitpid's status.
std::string DescribeExit(int wait_status);

// Runs to the end. A program that cannot be run is NotFound.
absl::StatusOr<int> RunToEnd(const std::vector<std::string>& argv);
// As RunToEnd, standard output and error captured (at most 1 MiB).
absl::StatusOr<std::pair<int, std::string>> Capture(const std::vector<std::string>& argv,
                                                    int network_namespace = -1);

// The folder that this program's file lies in.
absl::StatusOr<std::string> OwnFolder();

}  // namespace smartgen::tools
