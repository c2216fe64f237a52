// What the system tells of a TCP connection.
#pragma once

#include <cstdint>

namespace smartgen::channel {

struct TcpInfo {
  uint64_t acked_bytes = 0;    // of ours, that the peer's system has acknowledged
  double min_rtt_seconds = 0;  // the smallest seen
};
// Zeros for what the system does not know.
TcpInfo QueryTcpInfo(int fd);

// Bytes that were written and that the peer's system has not acknowledged, whether they are still
// in our system or on the way. 0 if the system does not say.
uint64_t UnacknowledgedBytes(int fd);

}  // namespace smartgen::channel
