// GET /metrics over a plain socket. Not prometheus::Exposer: it adds metrics of its own, which no
// catalogue names, and its web server takes two seconds to stop.
//
// One thread, one connection at a time: scrapers are few and polite. One that stalls is cut off
// after kConnectionSeconds, so that it cannot keep others out for longer.
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "common/metrics/metrics.h"

namespace smartgen::metrics {
namespace {

constexpr auto kConnectionSeconds = std::chrono::seconds(5);
constexpr size_t kMaxRequestBytes = 16 << 10;

class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

std::string Answer(std::string_view status, std::string_view type, std::string_view body) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
      status, type, body.size(), body);
}

std::string AnswerTo(std::string_view request, Metrics& metrics) {
  const std::string_view line = request.substr(0, request.find("\r\n"));
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) {
    return Answer("400 Bad Request", "text/plain", "want an HTTP request\n");
  }
  if (line.substr(0, space) != "GET") {
    return Answer("405 Method Not Allowed", "text/plain", "only GET is served here\n");
  }
  std::string_view path = line.substr(space + 1);
  path = path.substr(0, path.find_first_of(" ?"));
  if (path != "/metrics") {
    return Answer("404 Not Found", "text/plain", "metrics are at /metrics\n");
  }
  return Answer("200 OK", "text/plain; version=0.0.4; charset=utf-8", metrics.Serialize());
}

absl::StatusOr<Socket> Listen(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) {
    return base::InvalidArgument("metrics address: want host:port, got \"{}\"", address);
  }
  std::string host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &found);
  if (error != 0) {
    return base::InvalidArgument("metrics address {}: {}", address, gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  Socket socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(socket.fd(), found->ai_addr, found->ai_addrlen) != 0 || listen(socket.fd(), 16) != 0) {
    return base::Unavailable("cannot serve metrics at {}: {}", address, std::strerror(errno));
  }
  return socket;
}

int PortOf(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size);
  // The port stands at the same place in both families.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

class ServerImpl final : public MetricsServer {
 public:
  ServerImpl(Socket listener, Metrics* metrics)
      : listener_(std::move(listener)),
        stop_(eventfd(0, EFD_CLOEXEC)),
        port_(PortOf(listener_)),
        metrics_(metrics),
        thread_([this] { Loop(); }) {}
  ~ServerImpl() override {
    // An eventfd of our own takes eight bytes without fail; poll sees it in every wait.
    const uint64_t one = 1;
    while (write(stop_.fd(), &one, sizeof(one)) < 0 && errno == EINTR) {
    }
    thread_.join();
  }
  int port() const override { return port_; }

 private:
  // False: stopping, or the deadline is over.
  bool WaitFor(int fd, short events, base::Deadline deadline) const {
    pollfd fds[] = {{fd, events, 0}, {stop_.fd(), POLLIN, 0}};
    while (true) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline.Remaining(*base::Clock::Real()));
      const int timeout = deadline.IsInfinite() ? -1 : static_cast<int>(left.count());
      const int ready = poll(fds, 2, timeout);
      if (ready < 0 && errno == EINTR) continue;
      return ready > 0 && fds[1].revents == 0;
    }
  }

  void Loop() {
    while (WaitFor(listener_.fd(), POLLIN, base::Deadline::Infinite())) {
      const Socket connection(
          accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (connection.fd() >= 0) Serve(connection.fd());
    }
  }

  void Serve(int fd) {
    const base::Deadline deadline = base::Deadline::After(*base::Clock::Real(), kConnectionSeconds);
    std::string request;
    char buffer[4096];
    while (request.find("\r\n\r\n") == std::string::npos) {
      if (request.size() > kMaxRequestBytes || !WaitFor(fd, POLLIN, deadline)) return;
      const ssize_t n = recv(fd, buffer, sizeof(buffer), 0);
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return;
      if (n > 0) request.append(buffer, static_cast<size_t>(n));
    }
    const std::string answer = AnswerTo(request, *metrics_);
    for (size_t sent = 0; sent < answer.size();) {
      if (!WaitFor(fd, POLLOUT, deadline)) return;
      const ssize_t n = send(fd, answer.data() + sent, answer.size() - sent, MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN && errno != EINTR) return;
      if (n > 0) sent += static_cast<size_t>(n);
    }
  }

  const Socket listener_;
  const Socket stop_;
  const int port_;
  Metrics* const metrics_;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& address,
                                                                    Metrics* metrics) {
  ASSIGN_OR_RETURN(Socket listener, Listen(address));
  return std::make_unique<ServerImpl>(std::move(listener), metrics);
}

}  // namespace smartgen::metrics
