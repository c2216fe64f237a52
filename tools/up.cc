// up: prefilld, decoded and gateway on this machine, as one program.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "common/base/mutex.h"
#include "common/model/model.h"
#include "tools/command.h"
#include "tools/http_client.h"
#include "tools/overrides.h"
#include "tools/ports.h"
#include "tools/process.h"
#include "tools/supervisor.h"

namespace smartgen::tools {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string model = "smollm2-135m";
  int prefill = 1;
  int port = 0;
  std::string ready_file;
  std::string bin_dir;
  base::Duration start_timeout = std::chrono::minutes(5);
  base::Duration stop_timeout = std::chrono::seconds(35);

  void Bind(config::Binder& b) {
    b.Field("model", &model, "GGUF file, safetensors folder or known name");
    b.Field("prefill", &prefill, "prefill daemons to start");
    b.Field("port", &port, "the gateway's port; 0: a free one");
    b.Field("ready-file", &ready_file,
            "written with URLs and pids as JSON once requests are served");
    b.Field("bin-dir", &bin_dir, "folder of the daemons; empty: this program's own");
    b.Time("start-timeout", &start_timeout, "until the gateway must be ready");
    b.Time("stop-timeout", &stop_timeout, "until daemons that do not stop are killed");
    b.Check([this]() -> absl::Status {
      if (prefill < 0 || prefill > 64) {
        return base::InvalidArgument("prefill: want 0 to 64, got {}", prefill);
      }
      if (port < 0 || port > 65535) {
        return base::InvalidArgument("port: want 0 to 65535, got {}", port);
      }
      return absl::OkStatus();
    });
  }
};

// Addresses, and the daemons' command lines made of them.
struct Plan {
  std::string url;
  std::map<std::string, std::string> metrics;  // daemon -> URL
  std::vector<DaemonSpec> daemons;
};

std::string Local(int port) { return fmt::format("127.0.0.1:{}", port); }

absl::StatusOr<Plan> MakePlan(const Options& options, const std::vector<std::string>& overrides) {
  ASSIGN_OR_RETURN(const std::string model, model::ResolveModelPath(options.model));
  std::string folder = options.bin_dir;
  if (folder.empty()) {
    ASSIGN_OR_RETURN(folder, OwnFolder());
  }
  ASSIGN_OR_RETURN(const std::vector<int> ports, FreePorts(3 * options.prefill + 3));
  auto next = ports.begin();
  const auto take = [&] { return Local(*next++); };
  Plan plan;
  const auto metrics_url = [](const std::string& address) {
    return fmt::format("http://{}/metrics", address);
  };
  std::vector<std::string> prefill_addresses;
  for (int i = 0; i < options.prefill; ++i) {
    const std::string name = options.prefill == 1 ? "prefilld" : fmt::format("prefilld-{}", i + 1);
    const std::string listen = take();
    const std::string data = take();
    const std::string metrics = take();
    prefill_addresses.push_back(listen);
    plan.metrics[name] = metrics_url(metrics);
    plan.daemons.push_back({name,
                            {folder + "/prefilld", "--model=" + model, "--listen=" + listen,
                             "--data.listen=" + data, "--metrics.listen=" + metrics}});
  }
  const std::string prefill = fmt::format("{}", fmt::join(prefill_addresses, ","));
  const std::string decode = take();
  const std::string decode_metrics = take();
  plan.metrics["decoded"] = metrics_url(decode_metrics);
  plan.daemons.push_back({"decoded",
                          {folder + "/decoded", "--model=" + model, "--listen=" + decode,
                           "--metrics.listen=" + decode_metrics, "--prefill=" + prefill}});
  const std::string free = take();
  const std::string gateway = options.port == 0 ? free : Local(options.port);
  plan.url = "http://" + gateway;
  plan.metrics["gateway"] = metrics_url(gateway);
  plan.daemons.push_back({"gateway",
                          {folder + "/gateway", "--model=" + model, "--listen=" + gateway,
                           "--decode=" + decode, "--prefill=" + prefill}});
  RETURN_IF_ERROR(ApplyOverrides(overrides, plan.daemons));
  return plan;
}

// Asks the gateway whether it is ready, beside the supervisor's loop.
class ReadyProbe {
 public:
  explicit ReadyProbe(const std::string& url) {
    thread_ = std::thread([this, url] { Loop(url); });
  }
  ~ReadyProbe() {
    {
      base::MutexLock lock(mutex_);
      stop_ = true;
    }
    wake_.NotifyAll();
    thread_.join();
  }
  bool ready() const { return ready_; }

 private:
  void Loop(const std::string& url) {
    HttpRequest request;
    request.url = *ParseUrl(url);
    request.path = "/health/ready";
    request.connect_timeout = std::chrono::seconds(1);
    request.silence_timeout = std::chrono::seconds(5);
    while (true) {
      const auto response = Send(request);
      if (response.ok() && response->status == 200) {
        ready_ = true;
        return;
      }
      base::MutexLock lock(mutex_);
      if (!stop_) wake_.WaitFor(mutex_, std::chrono::milliseconds(100));
      if (stop_) return;
    }
  }

  std::atomic<bool> ready_{false};
  base::Mutex mutex_;
  base::CondVar wake_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

absl::Status WriteReadyFile(const std::string& path, const Plan& plan,
                            const Supervisor& supervisor) {
  if (path.empty()) return absl::OkStatus();
  const Json json = {
      {"url", plan.url}, {"pid", getpid()}, {"pids", supervisor.Pids()}, {"metrics", plan.metrics}};
  const std::string temporary = path + ".tmp";
  {
    std::ofstream out(temporary);
    out << json.dump(2) << "\n";
    if (!out.flush()) return base::Unavailable("ready-file: cannot write {}", temporary);
  }
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) return base::Unavailable("ready-file: cannot write {}: {}", path, error.message());
  return absl::OkStatus();
}

void Announce(const Plan& plan) {
  std::printf(
      "\nReady: %s\n\n"
      "  curl %s/v1/chat/completions -H 'Content-Type: application/json' \\\n"
      "    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}], \"stream\": "
      "true}'\n\n"
      "Ctrl-C stops everything.\n\n",
      plan.url.c_str(), plan.url.c_str());
  std::fflush(stdout);
}

absl::Status Supervise(const Options& options, const Plan& plan) {
  const base::Clock& clock = *base::Clock::Real();
  const base::Deadline start = base::Deadline::After(clock, options.start_timeout);
  std::optional<ReadyProbe> probe;
  Supervisor* running = nullptr;
  bool announced = false;
  Supervisor::Options supervisor_options;
  supervisor_options.stop_timeout = options.stop_timeout;
  supervisor_options.colours = isatty(STDERR_FILENO) != 0;
  supervisor_options.write_line = [](const std::string& line) { std::fputs(line.c_str(), stderr); };
  supervisor_options.on_tick = [&]() -> std::optional<absl::Status> {
    if (announced) return std::nullopt;
    if (!probe->ready()) {
      if (!start.Expired(clock)) return std::nullopt;
      return base::DeadlineExceeded("not ready after {:g} s; the log above says why",
                                    base::ToSeconds(options.start_timeout));
    }
    announced = true;
    const absl::Status written = WriteReadyFile(options.ready_file, plan, *running);
    if (!written.ok()) return written;
    Announce(plan);
    return std::nullopt;
  };
  Supervisor supervisor(plan.daemons, supervisor_options);
  running = &supervisor;
  RETURN_IF_ERROR(supervisor.Start());
  probe.emplace(plan.url);  // after the forks: they must find one thread only
  return supervisor.RunUntilStopped();
}

}  // namespace

int Up(const Args& args) {
  Options options;
  const Parsed parsed = ParseFlags(
      "up", args, [&](config::Binder& b) { options.Bind(b); }, 0, 1000);
  if (!parsed.go_on) return parsed.exit_code;
  std::error_code ignored;
  if (!options.ready_file.empty()) std::filesystem::remove(options.ready_file, ignored);
  const auto plan = MakePlan(options, parsed.positional);
  if (!plan.ok()) return Fail("up", plan.status());
  const absl::Status status = Supervise(options, *plan);
  if (!options.ready_file.empty()) std::filesystem::remove(options.ready_file, ignored);
  return status.ok() ? 0 : Fail("up", status);
}

}  // namespace smartgen::tools
