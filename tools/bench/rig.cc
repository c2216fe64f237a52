#include "tools/bench/rig.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <thread>
#include <utility>

#include "tools/overrides.h"
#include "tools/ports.h"
#include "tools/process.h"

namespace smartgen::tools::bench {
namespace {

constexpr base::Duration kStopTimeout = std::chrono::seconds(15);
// In namespaces of our own every port is free.
constexpr int kFirstPort = 7100;

// A slow link takes its time, and nothing here is a fault before the run's own deadline.
const std::vector<std::string>& PatienceOfPrefilld() {
  static const std::vector<std::string> flags = {"--request_timeout=4h", "--drain_timeout=1s",
                                                 "--watchdog=10m", "--log.level=warn"};
  return flags;
}

const std::vector<std::string>& PatienceOfDecoded() {
  // No fallback: a run that took another way than the one asked for would be compared as if it had.
  static const std::vector<std::string> flags = {"--request_timeout=4h",  "--prefill_timeout=4h",
                                                 "--transfer_timeout=4h", "--drain_timeout=1s",
                                                 "--watchdog=10m",        "--log.level=warn",
                                                 "--prefix_cache=false",  "--local_fallback=false"};
  return flags;
}

}  // namespace

absl::StatusOr<Rig> MakeRig(const Network& network, const RigOptions& options) {
  std::string folder = options.bin_dir;
  if (folder.empty()) {
    ASSIGN_OR_RETURN(folder, OwnFolder());
  }
  const int per_prefill = 3;
  std::vector<int> ports;
  if (network.shaped()) {
    for (int i = 0; i < options.prefills * per_prefill + 2; ++i) ports.push_back(kFirstPort + i);
  } else {
    ASSIGN_OR_RETURN(ports, FreePorts(options.prefills * per_prefill + 2));
  }
  auto next = ports.begin();
  const auto take = [&next](const std::string& host) {
    return fmt::format("{}:{}", host, *next++);
  };
  const auto url = [](const std::string& address) { return "http://" + address; };
  const std::string insecure = fmt::format("--allow_insecure={}", network.shaped());
  Rig rig;
  for (int i = 0; i < options.prefills; ++i) {
    const std::string listen = take(network.prefill_host());
    const std::string data = take(network.prefill_host());
    const std::string metrics = take(network.prefill_host());
    rig.prefill_addresses.push_back(listen);
    rig.prefill_metrics.push_back(url(metrics));
    DaemonSpec spec;
    spec.name = options.prefills == 1 ? "prefilld" : fmt::format("prefilld-{}", i + 1);
    spec.network_namespace = network.prefill_namespace();
    spec.argv = {folder + "/prefilld",
                 "--model=" + options.model,
                 "--listen=" + listen,
                 "--data.listen=" + data,
                 "--metrics.listen=" + metrics,
                 insecure,
                 "--compute=" + options.compute,
                 fmt::format("--threads={}", options.prefill_threads),
                 fmt::format("--prefix_cache={}", options.prefill_prefix_cache)};
    spec.argv.insert(spec.argv.end(), PatienceOfPrefilld().begin(), PatienceOfPrefilld().end());
    rig.daemons.push_back(std::move(spec));
  }
  rig.decode_address = take("127.0.0.1");
  const std::string decode_metrics = take("127.0.0.1");
  rig.decode_metrics = url(decode_metrics);
  DaemonSpec spec;
  spec.name = "decoded";
  spec.argv = {folder + "/decoded",
               "--model=" + options.model,
               "--listen=" + rig.decode_address,
               "--metrics.listen=" + decode_metrics,
               fmt::format("--prefill={}", fmt::join(rig.prefill_addresses, ",")),
               "--compute=" + options.compute,
               fmt::format("--threads={}", options.decode_threads)};
  spec.argv.insert(spec.argv.end(), PatienceOfDecoded().begin(), PatienceOfDecoded().end());
  rig.daemons.push_back(std::move(spec));
  RETURN_IF_ERROR(ApplyOverrides(options.overrides, rig.daemons));
  return rig;
}

void StopSource::Stop() {
  std::function<void()> callback;
  {
    base::MutexLock lock(mutex_);
    if (stopped_) return;
    stopped_ = true;
    callback = callback_;
  }
  wake_.NotifyAll();
  if (callback) callback();
}

bool StopSource::stopped() const {
  base::MutexLock lock(mutex_);
  return stopped_;
}

void StopSource::OnStop(std::function<void()> callback) {
  bool now = false;
  {
    base::MutexLock lock(mutex_);
    callback_ = callback;
    now = stopped_;
  }
  if (now && callback) callback();
}

bool StopSource::Sleep(base::Duration duration) {
  const base::Clock& clock = *base::Clock::Real();
  const base::Deadline deadline = base::Deadline::After(clock, duration);
  base::MutexLock lock(mutex_);
  while (!stopped_ && !deadline.Expired(clock)) wake_.WaitFor(mutex_, deadline.Remaining(clock));
  return !stopped_;
}

absl::Status RunWithDaemons(const Rig& rig, const std::function<absl::Status(StopSource&)>& work) {
  StopSource stop;
  if (rig.daemons.empty()) return work(stop);
  std::atomic<bool> done{false};
  bool interrupted = false;
  absl::Status result;
  Supervisor::Options options;
  options.stop_timeout = kStopTimeout;
  options.colours = isatty(STDERR_FILENO) != 0;
  // What daemons say on their way out (that the other one has gone) is no news.
  options.write_line = [&](const std::string& line) {
    if (!stop.stopped()) std::fputs(line.c_str(), stderr);
  };
  options.on_tick = [&]() -> std::optional<absl::Status> {
    if (!done) return std::nullopt;
    return absl::OkStatus();
  };
  options.on_stop = [&](bool signal) {
    interrupted = signal;
    stop.Stop();
  };
  Supervisor supervisor(rig.daemons, options);
  RETURN_IF_ERROR(supervisor.Start());
  // After the forks, which must find one thread only.
  std::thread worker([&] {
    result = work(stop);
    done = true;
  });
  const absl::Status daemons = supervisor.RunUntilStopped();
  worker.join();
  if (interrupted) return base::Cancelled("stopped by a signal");
  // A daemon's death is the cause, the work's broken call the effect.
  RETURN_IF_ERROR(daemons);
  return result;
}

}  // namespace smartgen::tools::bench
