// A build without CUDA.
#include "common/device/device.h"

namespace smartgen::device {
namespace {

absl::Status NoCuda() {
  return base::FailedPrecondition(
      "this build has no CUDA: build the cuda preset (README, \"GPU\") to use a GPU");
}

}  // namespace

absl::StatusOr<std::vector<DeviceInfo>> ListDevices() { return NoCuda(); }
absl::StatusOr<std::unique_ptr<Device>> OpenDevice(int) { return NoCuda(); }

}  // namespace smartgen::device
