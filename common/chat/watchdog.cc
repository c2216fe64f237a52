#include "common/chat/watchdog.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace smartgen::chat {
namespace {

constexpr base::Duration kIdleWait = std::chrono::seconds(60);
// What was fired at may be in the middle of something that swallows it.
constexpr base::Duration kRepeat = std::chrono::milliseconds(100);

}  // namespace

Watchdog::Watchdog(WithOuterLock outer, Fire fire)
    : outer_(std::move(outer)), fire_(std::move(fire)) {
  std::thread([this] { Run(); }).detach();
}

uint64_t Watchdog::Start(base::Duration limit, uint64_t thread) {
  base::MutexLock lock(mutex_);
  const uint64_t id = next_id_++;
  watched_[id] = {base::Clock::Real()->Now() + limit, thread};
  changed_.NotifyOne();
  return id;
}

void Watchdog::Stop(uint64_t id) {
  base::MutexLock lock(mutex_);
  watched_.erase(id);
}

base::Duration Watchdog::UntilNext() {
  base::Duration wait = kIdleWait;
  const base::TimePoint now = base::Clock::Real()->Now();
  for (const auto& [id, watched] : watched_) wait = std::min(wait, watched.due - now);
  return wait;
}

void Watchdog::FireDue() {
  base::MutexLock lock(mutex_);
  const base::TimePoint now = base::Clock::Real()->Now();
  for (auto& [id, watched] : watched_) {
    if (watched.due > now) continue;
    fire_(watched.thread);
    watched.due = now + kRepeat;
  }
}

void Watchdog::Run() {
  while (true) {
    bool due = false;
    {
      base::MutexLock lock(mutex_);
      const base::Duration wait = UntilNext();
      due = wait.count() <= 0;
      if (!due) changed_.WaitFor(mutex_, wait);
    }
    if (due) outer_([this] { FireDue(); });
  }
}

}  // namespace smartgen::chat
