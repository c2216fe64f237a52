// Whether a daemon serves, by the state of its executor and its engine.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/rpc/server.h"

namespace smartgen::rpc {

// Not while the engine is stuck, and never again once the executor has failed. One thread uses it.
class ServingWatch {
 public:
  struct Parts {
    Server* server = nullptr;
    std::function<absl::Status()> health;  // of the executor
    std::function<bool()> stuck;           // the engine
    std::function<bool()> draining;        // the daemon, which does not serve then either
    std::function<void()> on_failed;       // called once
    std::string stuck_text;                // what the log says of a stuck engine
  };
  explicit ServingWatch(Parts parts) : parts_(std::move(parts)) {}

  // Tells the server and the log what has changed since the last call.
  void Look();

 private:
  const Parts parts_;
  bool stuck_ = false;
  bool failed_ = false;
};

}  // namespace smartgen::rpc
