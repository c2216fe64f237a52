#include "common/channel/tcp/waker.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/channel/tcp/tcp_channel.h"

namespace smartgen::channel {

absl::StatusOr<std::shared_ptr<Waker>> Waker::Create() {
  Fd event(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!event.valid()) return base::Unavailable("eventfd: {}", ErrnoText(errno));
  return std::shared_ptr<Waker>(new Waker(std::move(event)));
}

void Waker::WakeLocked() {
  if (!sleeping_) return;
  sleeping_ = false;
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the thread is awake anyway.
  [[maybe_unused]] const ssize_t n = write(event_.get(), &one, sizeof(one));
}

bool Waker::PostCommand(std::function<void()> command) {
  base::MutexLock lock(mutex_);
  if (stop_) return false;
  posted_.commands.push_back(std::move(command));
  WakeLocked();
  return true;
}

void Waker::PostChannel(std::shared_ptr<TcpChannel> channel) {
  base::MutexLock lock(mutex_);
  if (stop_) return;
  posted_.channels.push_back(std::move(channel));
  WakeLocked();
}

void Waker::Stop() {
  base::MutexLock lock(mutex_);
  stop_ = true;
  WakeLocked();
}

bool Waker::stopped() const {
  base::MutexLock lock(mutex_);
  return stop_;
}

bool Waker::PrepareSleep() {
  base::MutexLock lock(mutex_);
  if (stop_ || !posted_.commands.empty() || !posted_.channels.empty()) return false;
  sleeping_ = true;
  return true;
}

Waker::Posted Waker::Take() {
  base::MutexLock lock(mutex_);
  sleeping_ = false;
  return std::exchange(posted_, {});
}

}  // namespace smartgen::channel
