#include "common/rpc/serving_watch.h"

#include "common/base/log.h"

namespace smartgen::rpc {

void ServingWatch::Look() {
  if (failed_) return;
  if (const absl::Status health = parts_.health(); !health.ok()) {
    failed_ = true;
    parts_.server->SetServing(false);
    SMARTGEN_LOG(error, "server", "the executor has failed for good, stopping: {}",
                 health.ToString());
    parts_.on_failed();
    return;
  }
  const bool now = parts_.stuck();
  if (now == stuck_) return;
  stuck_ = now;
  parts_.server->SetServing(!stuck_ && !parts_.draining());
  if (stuck_) {
    SMARTGEN_LOG(error, "server", "{}: not serving", parts_.stuck_text);
  } else {
    SMARTGEN_LOG(info, "server", "the engine moves again");
  }
}

}  // namespace smartgen::rpc
