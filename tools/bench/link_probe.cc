#include "tools/bench/link_probe.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <thread>
#include <utility>
#include <vector>

namespace smartgen::tools::bench {
namespace {

constexpr size_t kPiece = 64 << 10;
constexpr base::Duration kPatience = std::chrono::seconds(5);

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

absl::Status Errno(std::string_view what) {
  return base::Unavailable("link probe: {}: {}", what, strerror(errno));
}

// False: nothing within `patience`.
bool Readable(int fd, base::Duration patience) {
  pollfd poll_fd = {fd, POLLIN, 0};
  return poll(&poll_fd, 1, static_cast<int>(patience.count() / 1'000'000)) > 0;
}

// Writes until the other end closes.
void SendAll(const sockaddr_in& to, int sender_namespace) {
  if (sender_namespace >= 0 && setns(sender_namespace, CLONE_NEWNET) != 0) return;
  const Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  timeval patience{5, 0};
  setsockopt(socket.fd(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  if (connect(socket.fd(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) return;
  const std::vector<char> piece(kPiece);
  while (send(socket.fd(), piece.data(), piece.size(), MSG_NOSIGNAL) > 0) {
  }
}

absl::StatusOr<double> Receive(const Socket& listener, base::Duration duration) {
  if (!Readable(listener.fd(), kPatience)) {
    return base::DeadlineExceeded("link probe: no connection from the prefill side");
  }
  const Socket socket(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  if (socket.fd() < 0) return Errno("accept");
  const base::Clock& clock = *base::Clock::Real();
  std::vector<char> piece(kPiece);
  const base::TimePoint start = clock.Now();
  const base::TimePoint from = start + duration / 5;
  base::TimePoint first, last;
  int64_t bytes = 0;  // after `first`
  while (last < start + duration) {
    if (!Readable(socket.fd(), kPatience)) {
      return base::DeadlineExceeded("link probe: nothing came for {:g} s",
                                    base::ToSeconds(kPatience));
    }
    const ssize_t n = recv(socket.fd(), piece.data(), piece.size(), 0);
    if (n <= 0) return Errno("receive");
    last = clock.Now();
    if (first.ns != 0) bytes += n;
    if (first.ns == 0 && last >= from) first = last;
  }
  if (last <= first || bytes == 0) {
    return base::DeadlineExceeded("link probe: too little came in {:g} s to tell the rate",
                                  base::ToSeconds(duration));
  }
  return static_cast<double>(bytes) / base::ToSeconds(last - first);
}

}  // namespace

absl::StatusOr<double> ProbeLink(const std::string& host, int sender_namespace,
                                 base::Duration duration) {
  const Socket listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) {
    return base::InvalidArgument("link probe: want an IPv4 address, got \"{}\"", host);
  }
  socklen_t size = sizeof(address);
  if (bind(listener.fd(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener.fd(), 1) != 0 ||
      getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return Errno("listen");
  }
  std::thread sender([&address, sender_namespace] { SendAll(address, sender_namespace); });
  auto rate = Receive(listener, duration);
  sender.join();
  return rate;
}

}  // namespace smartgen::tools::bench
