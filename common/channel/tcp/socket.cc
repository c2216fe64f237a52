#include "common/channel/tcp/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

namespace smartgen::channel {
namespace {

// An idle peer whose machine vanished is noticed after 10 s + 3 * 5 s.
constexpr int kKeepAliveIdleSeconds = 10;
constexpr int kKeepAliveIntervalSeconds = 5;
constexpr int kKeepAliveProbes = 3;
constexpr int kListenBacklog = 128;
// Waits look at the clock this often, because it may be a simulated one.
constexpr int kPollMilliseconds = 50;

absl::Status SetOption(int fd, int level, int name, int value, const char* what) {
  if (setsockopt(fd, level, name, &value, sizeof(value)) == 0) return absl::OkStatus();
  return base::Unavailable("setting {} to {}: {}", what, value, ErrnoText(errno));
}

absl::Status SetBuffers(int fd, int bytes) {
  if (bytes <= 0) return absl::OkStatus();
  RETURN_IF_ERROR(SetOption(fd, SOL_SOCKET, SO_SNDBUF, bytes, "SO_SNDBUF"));
  return SetOption(fd, SOL_SOCKET, SO_RCVBUF, bytes, "SO_RCVBUF");
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};

absl::StatusOr<std::vector<Address>> Lookup(const std::string& host, const std::string& port,
                                            int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* raw = nullptr;
  const int rc = getaddrinfo(host.empty() ? nullptr : host.c_str(), port.c_str(), &hints, &raw);
  if (rc != 0) {
    return base::Unavailable("resolving {}:{}: {}", host, port,
                             rc == EAI_SYSTEM ? ErrnoText(errno) : gai_strerror(rc));
  }
  const std::unique_ptr<addrinfo, FreeAddresses> list(raw);
  std::vector<Address> found;
  for (const addrinfo* a = raw; a != nullptr; a = a->ai_next) {
    if (a->ai_addrlen > sizeof(sockaddr_storage)) continue;
    Address address;
    std::memcpy(&address.storage, a->ai_addr, a->ai_addrlen);
    address.length = a->ai_addrlen;
    found.push_back(address);
  }
  if (found.empty()) return base::Unavailable("resolving {}:{}: no address", host, port);
  return found;
}

const sockaddr* Raw(const Address& address) {
  return reinterpret_cast<const sockaddr*>(&address.storage);
}

std::string NameOf(const Address& address) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getnameinfo(Raw(address), address.length, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "unknown";
  }
  const bool v6 = address.storage.ss_family == AF_INET6;
  return v6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

// Splits "host:port"; the port is checked to be a number up to 65535.
absl::Status SplitAddress(const std::string& address, std::string* host, std::string* port) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon + 1 == address.size()) {
    return base::InvalidArgument("address \"{}\": want host:port", address);
  }
  *host = address.substr(0, colon);
  *port = address.substr(colon + 1);
  if (host->size() >= 2 && host->front() == '[' && host->back() == ']') {
    *host = host->substr(1, host->size() - 2);
  }
  const bool digits = port->size() <= 5 && std::all_of(port->begin(), port->end(),
                                                       [](char c) { return c >= '0' && c <= '9'; });
  if (!digits || std::stoi(*port) > 65535) {
    return base::InvalidArgument("address \"{}\": port: want 0 to 65535", address);
  }
  return absl::OkStatus();
}

// Waits until `events` or the deadline.
absl::Status Await(int fd, short events, const base::Clock& clock, base::Deadline deadline,
                   const char* what) {
  while (!deadline.Expired(clock)) {
    pollfd p{.fd = fd, .events = events, .revents = 0};
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline.Remaining(clock)).count();
    const int rc = poll(&p, 1, static_cast<int>(std::min<int64_t>(left + 1, kPollMilliseconds)));
    if (rc > 0) return absl::OkStatus();
    if (rc < 0 && errno != EINTR) return base::Unavailable("{}: {}", what, ErrnoText(errno));
  }
  return base::DeadlineExceeded("{}: the deadline has passed", what);
}

absl::StatusOr<Fd> DialOne(const Address& address, int buffer_bytes, const base::Clock& clock,
                           base::Deadline deadline) {
  Fd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return base::Unavailable("socket: {}", ErrnoText(errno));
  RETURN_IF_ERROR(SetBuffers(fd.get(), buffer_bytes));
  if (connect(fd.get(), Raw(address), address.length) == 0) return fd;
  if (errno != EINPROGRESS && errno != EINTR) {
    return base::Unavailable("connecting to {}: {}", NameOf(address), ErrnoText(errno));
  }
  RETURN_IF_ERROR(
      base::Annotate(Await(fd.get(), POLLOUT, clock, deadline, "connecting"), NameOf(address)));
  int error = 0;
  socklen_t length = sizeof(error);
  getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error == 0) return fd;
  return base::Unavailable("connecting to {}: {}", NameOf(address), ErrnoText(error));
}

}  // namespace

void Fd::Reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

std::string ErrnoText(int error) { return std::generic_category().message(error); }

absl::Status ConfigureSocket(int fd, const SocketOptions& options) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) {
    return base::Unavailable("setting O_NONBLOCK: {}", ErrnoText(errno));
  }
  RETURN_IF_ERROR(SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"));
  RETURN_IF_ERROR(SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE"));
  RETURN_IF_ERROR(SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveIdleSeconds, "TCP_KEEPIDLE"));
  RETURN_IF_ERROR(
      SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveIntervalSeconds, "TCP_KEEPINTVL"));
  RETURN_IF_ERROR(SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepAliveProbes, "TCP_KEEPCNT"));
  if (options.notsent_lowat_bytes > 0) {
    RETURN_IF_ERROR(SetOption(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, options.notsent_lowat_bytes,
                              "TCP_NOTSENT_LOWAT"));
  }
  if (options.user_timeout.count() > 0) {
    const auto ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(options.user_timeout).count();
    RETURN_IF_ERROR(SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT,
                              static_cast<int>(std::clamp<int64_t>(ms, 1, 1 << 30)),
                              "TCP_USER_TIMEOUT"));
  }
  return SetBuffers(fd, options.buffer_bytes);
}

absl::StatusOr<Fd> ListenOn(const std::string& address, int buffer_bytes) {
  std::string host;
  std::string port;
  RETURN_IF_ERROR(SplitAddress(address, &host, &port));
  ASSIGN_OR_RETURN(const std::vector<Address> candidates, Lookup(host, port, AI_PASSIVE));
  absl::Status last;
  for (const Address& candidate : candidates) {
    Fd fd(socket(candidate.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (fd.valid() && SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR").ok() &&
        SetBuffers(fd.get(), buffer_bytes).ok() &&
        bind(fd.get(), Raw(candidate), candidate.length) == 0 &&
        listen(fd.get(), kListenBacklog) == 0) {
      return fd;
    }
    last =
        base::Unavailable("listening on {} ({}): {}", address, NameOf(candidate), ErrnoText(errno));
  }
  return last;
}

absl::StatusOr<int> LocalPort(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) {
    return base::Unavailable("getsockname: {}", ErrnoText(errno));
  }
  if (storage.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(storage).sin6_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

std::string PeerName(int fd) {
  Address address;
  address.length = sizeof(address.storage);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0) {
    return "unknown";
  }
  return NameOf(address);
}

absl::StatusOr<std::vector<Address>> Resolve(const std::string& host, int port) {
  if (host.empty() || port < 1 || port > 65535) {
    return base::InvalidArgument("peer {}:{}: want a host and a port of 1 to 65535", host, port);
  }
  const bool bracketed = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  return Lookup(bracketed ? host.substr(1, host.size() - 2) : host, std::to_string(port), 0);
}

absl::StatusOr<Fd> Dial(std::span<const Address> addresses, int buffer_bytes,
                        const base::Clock& clock, base::Deadline deadline) {
  absl::Status last = base::InvalidArgument("dialling: no address");
  for (const Address& address : addresses) {
    absl::StatusOr<Fd> fd = DialOne(address, buffer_bytes, clock, deadline);
    if (fd.ok()) return fd;
    last = fd.status();
  }
  return last;
}

absl::Status WriteFully(int fd, std::span<const std::byte> bytes, const base::Clock& clock,
                        base::Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n > 0) {
      bytes = bytes.subspan(static_cast<size_t>(n));
    } else if (n < 0 && errno == EAGAIN) {
      RETURN_IF_ERROR(Await(fd, POLLOUT, clock, deadline, "writing"));
    } else if (n < 0 && errno != EINTR) {
      return base::Unavailable("writing: {}", ErrnoText(errno));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadFully(int fd, std::span<std::byte> bytes, const base::Clock& clock,
                       base::Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t n = recv(fd, bytes.data(), bytes.size(), 0);
    if (n > 0) {
      bytes = bytes.subspan(static_cast<size_t>(n));
    } else if (n == 0) {
      return base::Unavailable("reading: the peer closed the connection");
    } else if (errno == EAGAIN) {
      RETURN_IF_ERROR(Await(fd, POLLIN, clock, deadline, "reading"));
    } else if (errno != EINTR) {
      return base::Unavailable("reading: {}", ErrnoText(errno));
    }
  }
  return absl::OkStatus();
}

}  // namespace smartgen::channel
