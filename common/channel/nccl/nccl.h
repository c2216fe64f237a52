// What the channel needs of NCCL, and nothing else: non-blocking communicators of two ranks.
// nccl_library.cc is the library behind it; tests put a double there that is strict about its rules
// (tests/fakes/fake_nccl.h).
//
// The rules (NCCL user guide: communicators, point-to-point, fault tolerance):
//   - One thread issues all operations of a device.
//   - A call returns before its work is done. While State is kInProgress only State and Abort may
//     be called.
//   - A send ends when the peer's receive of the same size, the same number in order, is there. The
//     device may run one operation at a time, in the order of issue, whatever streams they are on.
//   - After an error (of a call or of State) only State and Abort may be called.
//   - Abort may hang. So may destroying a communicator that was not aborted.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "common/base/status.h"
#include "common/device/device.h"

namespace smartgen::channel {

// ncclUniqueId.
using NcclUniqueId = std::array<std::byte, 128>;

class NcclCommunicator {
 public:
  enum class State { kReady, kInProgress };

  virtual ~NcclCommunicator() = default;
  // Unavailable with the library's words after an asynchronous error (the peer is gone, a network
  // error).
  virtual absl::StatusOr<State> state() = 0;
  // `bytes` is memory of the communicator's device and stays until an event recorded on `stream`
  // after the call was reached. InvalidArgument, FailedPrecondition: the call broke a rule.
  virtual absl::Status Send(std::span<const std::byte> bytes, device::Stream& stream) = 0;
  virtual absl::Status Receive(std::span<std::byte> bytes, device::Stream& stream) = 0;
  // Ends what runs and frees everything; nothing may be called afterwards. May hang for as long as
  // the library likes: never from a thread that others wait for.
  virtual void Abort() = 0;
};

class Nccl {
 public:
  virtual ~Nccl() = default;
  virtual int version() const = 0;  // 22809 is 2.28.9
  virtual absl::StatusOr<NcclUniqueId> MakeUniqueId() = 0;
  // Begins to join a communicator of two; `rank` 0 or 1. Its state is kInProgress until the other
  // rank has joined with the same id.
  virtual absl::StatusOr<std::unique_ptr<NcclCommunicator>> Join(const NcclUniqueId& id,
                                                                 int rank) = 0;
  // The device that communicators belong to.
  virtual device::Device& device() = 0;
};

// "2.28.9"
std::string NcclVersionText(int version);

// NCCL on `device`, which must outlive it. FailedPrecondition if this build has no NCCL, if the
// library is older than 2.28, or if the machine has several network interfaces and none was chosen
// (NCCL_SOCKET_IFNAME; the message lists them).
absl::StatusOr<std::unique_ptr<Nccl>> OpenNccl(device::Device* device);

}  // namespace smartgen::channel
