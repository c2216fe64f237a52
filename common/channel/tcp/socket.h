// Thin, checked wrappers around what the system offers for sockets.
#pragma once

#include <sys/socket.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"

namespace smartgen::channel {

// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() { Reset(); }
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Reset();

 private:
  int fd_ = -1;
};

struct SocketOptions {
  int notsent_lowat_bytes = 0;
  int buffer_bytes = 0;  // 0: the system's own tuning
  // What was sent and stays unacknowledged for so long ends the connection.
  base::Duration user_timeout{0};
};

// "strerror(errno)", for messages.
std::string ErrnoText(int error);

// Non-blocking, no delay, keep-alive, and the options above. For a connected socket.
absl::Status ConfigureSocket(int fd, const SocketOptions& options);

// `address` is "host:port" or "[v6]:port"; an empty host means every interface.
absl::StatusOr<Fd> ListenOn(const std::string& address, int buffer_bytes);
// Port that a socket is bound to.
absl::StatusOr<int> LocalPort(int fd);
// "10.0.0.3:7102" or "[::1]:7102".
std::string PeerName(int fd);

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
};
// Names are asked of the system's resolver, which has its own timeouts. Not empty if OK.
absl::StatusOr<std::vector<Address>> Resolve(const std::string& host, int port);
// A connected, non-blocking socket to the first address that answers.
absl::StatusOr<Fd> Dial(std::span<const Address> addresses, int buffer_bytes,
                        const base::Clock& clock, base::Deadline deadline);
// On a non-blocking socket, waiting where need be. Unavailable if the peer closes.
absl::Status WriteFully(int fd, std::span<const std::byte> bytes, const base::Clock& clock,
                        base::Deadline deadline);
absl::Status ReadFully(int fd, std::span<std::byte> bytes, const base::Clock& clock,
                       base::Deadline deadline);

}  // namespace smartgen::channel
