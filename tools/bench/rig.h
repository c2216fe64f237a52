// The daemons of a benchmark: prefill instances at one end of a Network, a decode instance at the
// other, and work that is done with them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/rpc/client.h"
#include "tools/bench/network.h"
#include "tools/supervisor.h"

namespace smartgen::tools::bench {

struct RigOptions {
  std::string model;    // a path
  std::string bin_dir;  // empty: this program's folder
  int prefills = 1;
  int prefill_threads = 1;
  int decode_threads = 1;
  std::string compute = "bf16";
  bool prefill_prefix_cache = false;   // decode's is always off
  std::vector<std::string> overrides;  // --KEY=VALUE, --DAEMON.KEY=VALUE
};

struct Rig {
  std::vector<DaemonSpec> daemons;  // to be started; empty: they run already
  std::string decode_address;
  std::string decode_metrics;  // URL; empty: not looked at
  std::vector<std::string> prefill_addresses;
  std::vector<std::string> prefill_metrics;  // URLs, reached over the link
  rpc::ClientOptions client;                 // how all of them are called
};

absl::StatusOr<Rig> MakeRig(const Network& network, const RigOptions& options);

// Tells work that it is to end. Thread-safe.
class StopSource {
 public:
  void Stop();
  bool stopped() const;
  // Calls `callback` when stopped, at once if that is so already; replaces the one before. null:
  // none any more.
  void OnStop(std::function<void()> callback);
  // False: stopped meanwhile.
  bool Sleep(base::Duration duration);

 private:
  mutable base::Mutex mutex_;
  base::CondVar wake_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> callback_ ABSL_GUARDED_BY(mutex_);
};

// Starts the daemons, runs `work` in a thread of its own, stops the daemons. Without daemons to
// start, just runs `work`. Cancelled where a stop signal ended it; else what went wrong first,
// work's own status included. Daemons' warnings go to standard error.
absl::Status RunWithDaemons(const Rig& rig, const std::function<absl::Status(StopSource&)>& work);

}  // namespace smartgen::tools::bench
