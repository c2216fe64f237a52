// A queue from any thread into one coroutine: gRPC's threads, the worker pool and the socket watch
// all talk to a request's coroutine through its mailbox.
//
// Push is thread-safe. Pop and TryPop belong to one coroutine that runs on the executor given (a
// strand, or a context with one thread). Bounded by its producers: each has a quota of its own.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace smartgen::gateway {

template <typename T>
class Mailbox : public std::enable_shared_from_this<Mailbox<T>> {
 public:
  explicit Mailbox(boost::asio::any_io_executor executor) : executor_(executor), timer_(executor) {}

  void Push(T item) {
    {
      base::MutexLock lock(mutex_);
      items_.push_back(std::move(item));
      if (!waiting_) return;
      waiting_ = false;
    }
    // Runs after the coroutine has gone to sleep: it is on the same strand.
    boost::asio::post(executor_, [self = this->shared_from_this()] { self->timer_.cancel(); });
  }

  std::optional<T> TryPop() {
    base::MutexLock lock(mutex_);
    return PopLocked();
  }

  // nullopt when `patience` has passed without an item.
  boost::asio::awaitable<std::optional<T>> Pop(base::Duration patience) {
    const auto until = std::chrono::steady_clock::now() + patience;
    for (;;) {
      {
        base::MutexLock lock(mutex_);
        if (!items_.empty() || std::chrono::steady_clock::now() >= until) {
          waiting_ = false;
          co_return PopLocked();
        }
        waiting_ = true;
      }
      timer_.expires_at(until);
      co_await timer_.async_wait(boost::asio::as_tuple(boost::asio::use_awaitable));
    }
  }

 private:
  std::optional<T> PopLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    return item;
  }

  boost::asio::any_io_executor executor_;
  boost::asio::steady_timer timer_;
  base::Mutex mutex_;
  std::deque<T> items_ ABSL_GUARDED_BY(mutex_);
  bool waiting_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace smartgen::gateway
