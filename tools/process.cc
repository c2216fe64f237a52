#include "tools/process.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

namespace smartgen::tools {
namespace {

// In the child: only async-signal-safe calls until exec. Reports a failed exec through `report`.
[[noreturn]] void BecomeChild(char* const* argv, const SpawnOptions& options, int report,
                              pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(127);  // the parent died before the line above
  if (options.own_group) setpgid(0, 0);
  if (options.network_namespace >= 0 && setns(options.network_namespace, CLONE_NEWNET) != 0) {
    const int error = errno;
    if (write(report, &error, sizeof(error)) < 0) _exit(126);
    _exit(127);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (options.output_fd >= 0) {
    dup2(options.output_fd, STDOUT_FILENO);
    dup2(options.output_fd, STDERR_FILENO);
  } else {
    dup2(STDERR_FILENO, STDOUT_FILENO);
  }
  execvp(argv[0], argv);
  const int error = errno;
  if (write(report, &error, sizeof(error)) < 0) _exit(126);
  _exit(127);
}

}  // namespace

absl::StatusOr<int> Spawn(const std::vector<std::string>& argv, const SpawnOptions& options) {
  std::vector<char*> pointers;
  for (const std::string& arg : argv) pointers.push_back(const_cast<char*>(arg.c_str()));
  pointers.push_back(nullptr);
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0) return base::Unavailable("pipe: {}", strerror(errno));
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) BecomeChild(pointers.data(), options, report[1], parent);
  close(report[1]);
  int error = 0;
  const bool failed = pid > 0 && read(report[0], &error, sizeof(error)) == sizeof(error);
  close(report[0]);
  if (pid < 0) return base::Unavailable("fork: {}", strerror(errno));
  if (failed) {
    WaitFor(pid);
    return base::NotFound("cannot run {}: {}", argv[0], strerror(error));
  }
  return pid;
}

int WaitFor(int pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

std::string DescribeExit(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    return fmt::format("signal {} ({})", WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)));
  }
  return fmt::format("exit status {}", WEXITSTATUS(wait_status));
}

absl::StatusOr<int> RunToEnd(const std::vector<std::string>& argv) {
  ASSIGN_OR_RETURN(const int pid, Spawn(argv, {}));
  return WaitFor(pid);
}

absl::StatusOr<std::pair<int, std::string>> Capture(const std::vector<std::string>& argv,
                                                    int network_namespace) {
  constexpr size_t kMaxOutput = 1 << 20;
  int out[2];
  if (pipe2(out, O_CLOEXEC) != 0) return base::Unavailable("pipe: {}", strerror(errno));
  const auto pid = Spawn(argv, {.output_fd = out[1], .network_namespace = network_namespace});
  close(out[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; pid.ok() && (n = read(out[0], buffer, sizeof(buffer))) != 0;) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    if (text.size() < kMaxOutput) text.append(buffer, static_cast<size_t>(n));
  }
  close(out[0]);
  RETURN_IF_ERROR(pid.status());
  return std::pair(WaitFor(*pid), std::move(text));
}

absl::StatusOr<std::string> OwnFolder() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return base::Unavailable("/proc/self/exe: {}", error.message());
  return path.parent_path().string();
}

}  // namespace smartgen::tools
