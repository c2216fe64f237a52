// TCP channels. One engine a process: one I/O thread (epoll) serves the listener and all channels.
//
// A channel is kNumLanes sockets. Each opens with a preamble {magic, wire version, lane, key}; a
// socket whose key nobody expects is closed. What is unsent stays in user space: TCP_NOTSENT_LOWAT
// keeps the kernel's unsent queue short, and a lower lane writes nothing while a higher one has
// bytes to write, so a small on-demand answer never waits behind megabytes of background data.
// TCP's window is the credit: the receiver drains into final memory.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/channel/channel.h"

namespace smartgen::channel {

class TcpEngine {
 public:
  struct Options {
    // "host:port"; port 0 lets the system choose; empty: no listener (the decode side dials).
    std::string listen;
    // Unsent bytes that the kernel may hold for a socket.
    int notsent_lowat_bytes = 128 << 10;
    // Send and receive buffer of a socket; 0: the system's own tuning.
    int socket_buffer_bytes = 0;
    // Queue limit of a lane, in payload bytes and messages.
    uint64_t max_queued_bytes = 1ull << 30;
    int max_queued_messages = 1 << 16;
    // A payload that has begun must make progress; a connection or preamble must finish.
    base::Duration stall_timeout = std::chrono::seconds(30);
    base::Duration connect_timeout = std::chrono::seconds(5);
  };
  // Unavailable if the address cannot be bound (named in the message).
  static absl::StatusOr<std::unique_ptr<TcpEngine>> Create(Options options,
                                                           const base::Clock* clock);
  // Closes all channels and joins the thread.
  virtual ~TcpEngine() = default;

  // Host and port really bound; port 0 if none.
  virtual int listen_port() const = 0;

  using OnChannel = std::function<void(absl::StatusOr<std::shared_ptr<Channel>>)>;
  // The listening side: waits for the peer's sockets that present `key`. `on_channel` is called
  // once, from the I/O thread: with the channel when all lanes have come, or DeadlineExceeded.
  // `receiver` must outlive OnClosed.
  virtual void Expect(const base::ChannelKey& key, std::shared_ptr<Receiver> receiver,
                      base::Duration timeout, OnChannel on_channel) = 0;
  // The dialling side. Blocks until all lanes are connected or the deadline.
  virtual absl::StatusOr<std::shared_ptr<Channel>> Connect(const std::string& host, int port,
                                                           const base::ChannelKey& key,
                                                           std::shared_ptr<Receiver> receiver,
                                                           base::Deadline deadline) = 0;
};

}  // namespace smartgen::channel
