// The link between a prefill and a decode machine, on one machine.
//
// Two network namespaces joined by a veth pair, a token-bucket filter (tc tbf) at either end:
//
//   "prefill side" 192.0.2.1 [tbf] ===== veth ===== [tbf] 192.0.2.2 "decode side" (this process)
//
// The namespaces have no names: this process and its children alone hold them, so that nothing is
// left behind however it ends, SIGKILL included. As root, or, where the kernel lets users have
// namespaces of their own, as anybody. The loopback kind has no namespaces and no shaping, and a
// link between other machines is taken as it is.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"

namespace smartgen::tools::bench {

// A full TCP segment with timestamps on Ethernet carries 1448 bytes in a frame of 1514, which is
// what tbf counts.
inline constexpr double kFrameBytes = 1514;
inline constexpr double kPayloadBytes = 1448;

// Arguments of the filter for a payload rate (what TCP users see). The bucket holds a millisecond,
// at least 16 KiB. The queue is longer than what TCP keeps in it (it stops at a few hundred KiB a
// connection), so that nothing is dropped.
struct TokenBucket {
  int64_t rate_bits_per_second = 0;  // on the wire
  int64_t burst_bytes = 0;
  int64_t limit_bytes = 0;
};
TokenBucket BucketFor(double payload_bytes_per_second);

// Not thread-safe, but SetRate, MeasureRate and Drops may be called by another thread than the
// creator's, one at a time.
class Network {
 public:
  enum class Kind { kAuto, kNamespaces, kLoopback };
  static absl::StatusOr<Kind> ParseKind(std::string_view name);  // auto, namespaces, loopback

  // Moves the calling thread, which must be the process's only one, into the decode side's
  // namespace. kAuto: loopback where namespaces cannot be had (note() says why); kNamespaces:
  // FailedPrecondition there.
  static absl::StatusOr<std::unique_ptr<Network>> Create(Kind kind);
  // Between machines that are there already.
  static std::unique_ptr<Network> AsItIs();
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  bool shaped() const { return prefill_namespace_ >= 0; }
  bool ours() const { return ours_; }  // false: AsItIs
  // For reports: what the link is made of, and in a few words for plots.
  std::string Describe() const;
  std::string ShortName() const;
  const std::string& note() const { return note_; }  // why it is not shaped; empty: it is

  int prefill_namespace() const { return prefill_namespace_; }  // descriptor; -1: ours
  const std::string& prefill_host() const { return prefill_host_; }

  // Payload bytes per second in both directions; 0: as fast as it goes. FailedPrecondition where
  // the link cannot be shaped.
  absl::Status SetRate(double payload_bytes_per_second);
  // What one TCP connection from the prefill to the decode side carries, over `duration`. Not for
  // AsItIs.
  absl::StatusOr<double> MeasureRate(base::Duration duration) const;
  // Packets dropped by the filters since SetRate; 0 without a filter.
  absl::StatusOr<int64_t> Drops() const;

 private:
  Network() = default;
  absl::Status Join();
  absl::Status RunIn(int network_namespace, const std::vector<std::string>& argv) const;

  std::string ip_;
  std::string tc_;
  std::string note_;
  std::string prefill_host_ = "127.0.0.1";
  std::string decode_host_ = "127.0.0.1";
  int prefill_namespace_ = -1;
  bool filtered_ = false;
  bool ours_ = true;
};

}  // namespace smartgen::tools::bench
