// The gateway as one object: what main runs and tests start in-process.
#pragma once

#include <memory>

#include "common/metrics/metrics.h"
#include "gateway/model.h"
#include "gateway/options.h"

namespace smartgen::gateway {

// Thread-safe after Start.
//
//   running --BeginDrain--> draining --(streams ended, or grace over)--> stopped
//       \________________________Abort_________________________________/
class Gateway {
 public:
  // Checks the options, listens and serves. The model comes from outside so that tests need no
  // file.
  static absl::StatusOr<std::unique_ptr<Gateway>> Start(Options options, ServedModel model,
                                                        metrics::Metrics* metrics,
                                                        const base::Clock* clock);
  virtual ~Gateway() = default;  // as Abort

  virtual int port() const = 0;
  virtual bool ready() const = 0;
  virtual int64_t running() const = 0;  // generation requests not answered to the end
  // SIGTERM: not ready, 503 for new generations, running ones may finish.
  virtual void BeginDrain() = 0;
  // Second SIGTERM: running ones are told and cut.
  virtual void Abort() = 0;
  // Blocks until BeginDrain or Abort has been called and their work is done; everything is closed
  // then. True: all streams ended by themselves.
  virtual bool Wait() = 0;
};

}  // namespace smartgen::gateway
