// NCCL behind nccl.h.
#include <nccl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "common/channel/nccl/interfaces.h"
#include "common/channel/nccl/nccl.h"

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0), "want NCCL 2.28 or later");

namespace smartgen::channel {
namespace {

constexpr int kOldest = NCCL_VERSION(2, 28, 0);
static_assert(sizeof(ncclUniqueId) == sizeof(NcclUniqueId));

absl::Status Failed(const char* call, ncclResult_t result, ncclComm_t communicator) {
  const char* last = ncclGetLastError(communicator);
  return base::Unavailable("{}: {}{}{}", call, ncclGetErrorString(result),
                           last != nullptr && *last != '\0' ? ": " : "",
                           last != nullptr ? last : "");
}

class Communicator final : public NcclCommunicator {
 public:
  Communicator(ncclComm_t communicator, int rank) : communicator_(communicator), peer_(1 - rank) {}

  absl::StatusOr<State> state() override {
    ncclResult_t result = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &result);
    if (asked != ncclSuccess) return Failed("ncclCommGetAsyncError", asked, communicator_);
    if (result == ncclInProgress) return State::kInProgress;
    if (result != ncclSuccess) return Failed("NCCL", result, communicator_);
    return State::kReady;
  }
  absl::Status Send(std::span<const std::byte> bytes, device::Stream& stream) override {
    return Check("ncclSend", ncclSend(bytes.data(), bytes.size(), ncclInt8, peer_, communicator_,
                                      Native(stream)));
  }
  absl::Status Receive(std::span<std::byte> bytes, device::Stream& stream) override {
    return Check("ncclRecv", ncclRecv(bytes.data(), bytes.size(), ncclInt8, peer_, communicator_,
                                      Native(stream)));
  }
  void Abort() override {
    if (communicator_ != nullptr) ncclCommAbort(std::exchange(communicator_, nullptr));
  }

 private:
  static cudaStream_t Native(device::Stream& stream) {
    return static_cast<cudaStream_t>(stream.native());
  }
  absl::Status Check(const char* call, ncclResult_t result) const {
    if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
    return Failed(call, result, communicator_);
  }

  ncclComm_t communicator_;
  const int peer_;
};

class Library final : public Nccl {
 public:
  Library(device::Device* device, int version) : device_(device), version_(version) {}

  int version() const override { return version_; }
  absl::StatusOr<NcclUniqueId> MakeUniqueId() override {
    ncclUniqueId id;
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess) return Failed("ncclGetUniqueId", result, nullptr);
    NcclUniqueId bytes;
    std::memcpy(bytes.data(), &id, sizeof(id));
    return bytes;
  }
  absl::StatusOr<std::unique_ptr<NcclCommunicator>> Join(const NcclUniqueId& id,
                                                         int rank) override {
    ncclUniqueId native;
    std::memcpy(&native, id.data(), sizeof(native));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t communicator = nullptr;
    // The device of the calling thread, which is the engine's.
    RETURN_IF_ERROR(device_->MakeCurrent());
    const ncclResult_t result = ncclCommInitRankConfig(&communicator, 2, native, rank, &config);
    if (result != ncclSuccess && result != ncclInProgress) {
      const absl::Status status = Failed("ncclCommInitRankConfig", result, communicator);
      if (communicator != nullptr) ncclCommAbort(communicator);
      return status;
    }
    return std::make_unique<Communicator>(communicator, rank);
  }
  device::Device& device() override { return *device_; }

 private:
  device::Device* const device_;
  const int version_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Nccl>> OpenNccl(device::Device* device) {
  int version = 0;
  const ncclResult_t result = ncclGetVersion(&version);
  if (result != ncclSuccess) return Failed("ncclGetVersion", result, nullptr);
  if (version < kOldest) {
    return base::FailedPrecondition("NCCL: want {} or later, the library is {}",
                                    NcclVersionText(kOldest), NcclVersionText(version));
  }
  // A file of NCCL's may choose as well; what stands in it is NCCL's to read.
  const char* chosen = std::getenv("NCCL_SOCKET_IFNAME");
  if (chosen != nullptr || access("/etc/nccl.conf", R_OK) != 0) {
    RETURN_IF_ERROR(CheckInterfaces(NetworkInterfaces(), chosen == nullptr ? "" : chosen));
  }
  return std::make_unique<Library>(device, version);
}

}  // namespace smartgen::channel
