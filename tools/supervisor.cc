#include "tools/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "tools/process.h"

namespace smartgen::tools {
namespace {

constexpr int kTickMilliseconds = 100;
constexpr size_t kMaxLine = 64 << 10;  // longer ones are cut up
constexpr std::array<const char*, 6> kColours = {"\x1b[36m", "\x1b[33m", "\x1b[35m",
                                                 "\x1b[32m", "\x1b[34m", "\x1b[31m"};

sigset_t OurSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&set, signal);
  return set;
}

}  // namespace

Supervisor::Supervisor(std::vector<DaemonSpec> specs, Options options)
    : options_(std::move(options)) {
  for (DaemonSpec& spec : specs) {
    name_width_ = std::max(name_width_, spec.name.size());
    daemons_.emplace_back().spec = std::move(spec);
  }
  const sigset_t set = OurSignals();
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signals_ = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

Supervisor::~Supervisor() {
  SignalAll(SIGKILL);
  for (Daemon& daemon : daemons_) {
    if (daemon.running) WaitFor(daemon.pid);
    if (daemon.output >= 0) close(daemon.output);
  }
  close(signals_);
  const sigset_t set = OurSignals();
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

absl::Status Supervisor::Start() {
  for (Daemon& daemon : daemons_) {
    int out[2];
    if (pipe2(out, O_CLOEXEC) != 0) return base::Unavailable("pipe: errno {}", errno);
    // Its own group: Ctrl-C reaches this process alone, which then asks the daemons in good order.
    const auto pid = Spawn(daemon.spec.argv, {.output_fd = out[1],
                                              .own_group = true,
                                              .network_namespace = daemon.spec.network_namespace});
    close(out[1]);
    if (!pid.ok()) {
      close(out[0]);
      return base::Annotate(pid.status(), daemon.spec.name);
    }
    fcntl(out[0], F_SETFL, O_NONBLOCK);
    daemon.pid = *pid;
    daemon.output = out[0];
    daemon.running = true;
  }
  return absl::OkStatus();
}

std::map<std::string, int> Supervisor::Pids() const {
  std::map<std::string, int> pids;
  for (const Daemon& daemon : daemons_) pids[daemon.spec.name] = daemon.pid;
  return pids;
}

absl::Status Supervisor::RunUntilStopped() {
  while (AnyLeft()) {
    std::vector<pollfd> fds = {{signals_, POLLIN, 0}};
    for (const Daemon& daemon : daemons_) {
      if (daemon.output >= 0) fds.push_back({daemon.output, POLLIN, 0});
    }
    poll(fds.data(), fds.size(), kTickMilliseconds);
    for (Daemon& daemon : daemons_) Read(daemon);
    HandleSignals();
    Reap();
    CheckTimeouts();
    if (!stopping_ && options_.on_tick) {
      if (const std::optional<absl::Status> end = options_.on_tick()) BeginStop(*end);
    }
    StopNext();
  }
  return result_;
}

bool Supervisor::AnyLeft() const {
  return std::any_of(daemons_.begin(), daemons_.end(), [](const Daemon& d) { return d.running; });
}

void Supervisor::BeginStop(const absl::Status& why, bool signal) {
  result_.Update(why);
  if (stopping_) return;
  stopping_ = true;
  stop_began_ = base::Clock::Real()->Now();
  if (options_.on_stop) options_.on_stop(signal);
}

void Supervisor::StopNext() {
  const auto last =
      std::find_if(daemons_.rbegin(), daemons_.rend(), [](const Daemon& d) { return d.running; });
  if (!stopping_ || last == daemons_.rend() || last->told_to_stop) return;
  last->told_to_stop = true;
  kill(last->pid, SIGTERM);
}

void Supervisor::SignalAll(int signal) {
  for (Daemon& daemon : daemons_) {
    daemon.told_to_stop = true;
    if (daemon.running) kill(daemon.pid, signal);
  }
}

void Supervisor::HandleSignals() {
  signalfd_siginfo info;
  while (read(signals_, &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo == SIGCHLD) continue;
    if (stopping_) {
      SignalAll(SIGTERM);
    } else {
      BeginStop(absl::OkStatus(), /*signal=*/true);
    }
  }
}

void Supervisor::Reap() {
  for (Daemon& daemon : daemons_) {
    int status = 0;
    if (!daemon.running || waitpid(daemon.pid, &status, WNOHANG) != daemon.pid) continue;
    daemon.running = false;
    Read(daemon);  // what it said last
    if (!daemon.partial.empty()) TakeLine(daemon, std::move(daemon.partial));
    daemon.partial.clear();
    const bool clean = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (stopping_ && clean) continue;
    std::string message = fmt::format("{} (pid {}) ended with {}", daemon.spec.name, daemon.pid,
                                      DescribeExit(status));
    if (killed_)
      message +=
          fmt::format(": it did not stop within {:g} s", base::ToSeconds(options_.stop_timeout));
    if (!stopping_) {
      message += "; its last lines:";
      for (const std::string& line : daemon.last_lines) message += "\n  " + line;
    }
    BeginStop(base::Unavailable("{}", message));
  }
}

void Supervisor::Read(Daemon& daemon) {
  char buffer[8192];
  while (daemon.output >= 0) {
    const ssize_t n = read(daemon.output, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return;
    if (n == 0) {
      close(daemon.output);
      daemon.output = -1;
      return;
    }
    for (ssize_t i = 0; i < n; ++i) {
      if (buffer[i] != '\n') daemon.partial += buffer[i];
      if (buffer[i] != '\n' && daemon.partial.size() < kMaxLine) continue;
      TakeLine(daemon, std::move(daemon.partial));
      daemon.partial.clear();
    }
  }
}

void Supervisor::TakeLine(Daemon& daemon, std::string line) {
  const auto index = static_cast<size_t>(&daemon - daemons_.data());
  const std::string name = fmt::format("{:<{}}", daemon.spec.name, name_width_);
  options_.write_line(options_.colours ? fmt::format("{}{}\x1b[0m | {}\n",
                                                     kColours[index % kColours.size()], name, line)
                                       : fmt::format("{} | {}\n", name, line));
  daemon.last_lines.push_back(std::move(line));
  if (daemon.last_lines.size() > options_.kept_lines) daemon.last_lines.pop_front();
}

void Supervisor::CheckTimeouts() {
  if (!stopping_ || killed_) return;
  if (base::Clock::Real()->Now() - stop_began_ < options_.stop_timeout) return;
  killed_ = true;
  SignalAll(SIGKILL);
}

}  // namespace smartgen::tools
