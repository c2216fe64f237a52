#include "common/channel/tcp/tcp_info.h"

// The system's own header: glibc's copy of tcp_info ends before what is needed here, and the two
// cannot be included together.
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>

namespace smartgen::channel {

TcpInfo QueryTcpInfo(int fd) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  TcpInfo found;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return found;
  // An older system fills in less.
  if (length >= offsetof(tcp_info, tcpi_bytes_acked) + sizeof(info.tcpi_bytes_acked)) {
    found.acked_bytes = info.tcpi_bytes_acked;
  }
  if (length >= offsetof(tcp_info, tcpi_min_rtt) + sizeof(info.tcpi_min_rtt) &&
      info.tcpi_min_rtt != UINT32_MAX) {
    found.min_rtt_seconds = info.tcpi_min_rtt * 1e-6;
  }
  return found;
}

uint64_t UnacknowledgedBytes(int fd) {
  int bytes = 0;
  if (ioctl(fd, SIOCOUTQ, &bytes) != 0 || bytes < 0) return 0;
  return static_cast<uint64_t>(bytes);
}

}  // namespace smartgen::channel
