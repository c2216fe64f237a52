// How other threads reach the I/O thread. Outlives the engine, because channels hold it.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "common/base/mutex.h"
#include "common/channel/tcp/socket.h"

namespace smartgen::channel {

class TcpChannel;

// Thread-safe.
class Waker {
 public:
  struct Posted {
    std::vector<std::function<void()>> commands;        // to run first
    std::vector<std::shared_ptr<TcpChannel>> channels;  // to look at
  };

  static absl::StatusOr<std::shared_ptr<Waker>> Create();

  // False after Stop: the command was not taken.
  bool PostCommand(std::function<void()> command);
  void PostChannel(std::shared_ptr<TcpChannel> channel);
  void Stop();

  // I/O thread. False if there is something to do: do not sleep.
  bool PrepareSleep();
  // After the sleep, or instead of it.
  Posted Take();
  // Nothing is taken any more.
  bool stopped() const;
  int fd() const { return event_.get(); }

 private:
  explicit Waker(Fd event) : event_(std::move(event)) {}
  void WakeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Fd event_;
  mutable base::Mutex mutex_;
  Posted posted_ ABSL_GUARDED_BY(mutex_);
  // A wake-up costs a system call, so that it is made only for a thread that sleeps.
  bool sleeping_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace smartgen::channel
