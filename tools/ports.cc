#include "tools/ports.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace smartgen::tools {

absl::StatusOr<std::vector<int>> FreePorts(int count) {
  std::vector<int> sockets;  // all open till the end, so that no port comes twice
  std::vector<int> ports;
  absl::Status status;
  for (int i = 0; i < count && status.ok(); ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockets.push_back(fd);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      status = base::Unavailable("no free port on 127.0.0.1: {}",
                                 std::generic_category().message(errno));
    }
    ports.push_back(ntohs(address.sin_port));
  }
  for (const int fd : sockets) {
    if (fd >= 0) close(fd);
  }
  RETURN_IF_ERROR(status);
  return ports;
}

}  // namespace smartgen::tools
