// The CUDA runtime behind device.h.
#include <cuda_runtime_api.h>

#include <utility>

#include "common/device/device.h"

namespace smartgen::device {
namespace {

// Of a CUDA call that failed.
absl::Status Failed(const char* call, cudaError_t error) {
  return base::Internal("{}: {} ({})", call, cudaGetErrorString(error), cudaGetErrorName(error));
}

#define RETURN_IF_CUDA_ERROR(call)                         \
  do {                                                     \
    const cudaError_t error = (call);                      \
    if (error != cudaSuccess) return Failed(#call, error); \
  } while (false)

class CudaMemory final : public Memory {
 public:
  CudaMemory(void* data, size_t size, bool pinned, int device) : pinned_(pinned), device_(device) {
    bytes_ = {static_cast<std::byte*>(data), size};
  }
  ~CudaMemory() override {
    // What a destructor cannot report, the next call on the device does.
    cudaSetDevice(device_);
    if (pinned_) {
      cudaFreeHost(bytes_.data());
    } else {
      cudaFree(bytes_.data());
    }
  }

 private:
  const bool pinned_;
  const int device_;
};

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(cudaEvent_t event) : event_(event) {}
  ~CudaEvent() override { cudaEventDestroy(event_); }
  cudaEvent_t get() const { return event_; }

 private:
  const cudaEvent_t event_;
};

class CudaStream final : public Stream {
 public:
  CudaStream(cudaStream_t stream, int device) : stream_(stream), device_(device) {}
  ~CudaStream() override { cudaStreamDestroy(stream_); }

  absl::Status CopyIn(std::byte* to, std::span<const std::byte> from) override {
    RETURN_IF_CUDA_ERROR(cudaSetDevice(device_));
    RETURN_IF_CUDA_ERROR(
        cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, stream_));
    return absl::OkStatus();
  }
  absl::Status CopyOut(std::span<std::byte> to, const std::byte* from) override {
    RETURN_IF_CUDA_ERROR(cudaSetDevice(device_));
    RETURN_IF_CUDA_ERROR(
        cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, stream_));
    return absl::OkStatus();
  }
  absl::Status Record(Event& event) override {
    RETURN_IF_CUDA_ERROR(cudaSetDevice(device_));
    RETURN_IF_CUDA_ERROR(cudaEventRecord(static_cast<CudaEvent&>(event).get(), stream_));
    return absl::OkStatus();
  }
  absl::Status Wait(Event& event) override {
    RETURN_IF_CUDA_ERROR(cudaSetDevice(device_));
    RETURN_IF_CUDA_ERROR(cudaStreamWaitEvent(stream_, static_cast<CudaEvent&>(event).get(), 0));
    return absl::OkStatus();
  }
  void* native() const override { return stream_; }

 private:
  const cudaStream_t stream_;
  const int device_;
};

absl::StatusOr<DeviceInfo> Describe(int index) {
  cudaDeviceProp properties;
  RETURN_IF_CUDA_ERROR(cudaGetDeviceProperties(&properties, index));
  DeviceInfo info;
  info.index = index;
  info.name = properties.name;
  for (const char byte : properties.uuid.bytes) {
    info.uuid += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  info.compute_major = properties.major;
  info.compute_minor = properties.minor;
  info.multiprocessors = properties.multiProcessorCount;
  info.total_bytes = properties.totalGlobalMem;
  return info;
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(DeviceInfo info) : info_(std::move(info)) {}

  DeviceInfo info() const override {
    DeviceInfo info = info_;
    size_t free = 0;
    size_t total = 0;
    if (cudaSetDevice(info_.index) == cudaSuccess && cudaMemGetInfo(&free, &total) == cudaSuccess) {
      info.free_bytes = free;
    }
    return info;
  }
  absl::StatusOr<std::unique_ptr<Memory>> Allocate(size_t bytes) override {
    RETURN_IF_CUDA_ERROR(cudaSetDevice(info_.index));
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, bytes);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // not a sticky one
      return base::ResourceExhausted("device {} ({}): {} bytes were asked for, {} are free",
                                     info_.index, info_.name, bytes, info().free_bytes);
    }
    if (error != cudaSuccess) return Failed("cudaMalloc", error);
    return std::make_unique<CudaMemory>(data, bytes, false, info_.index);
  }
  absl::StatusOr<std::unique_ptr<Memory>> AllocatePinned(size_t bytes) override {
    RETURN_IF_CUDA_ERROR(cudaSetDevice(info_.index));
    void* data = nullptr;
    const cudaError_t error = cudaHostAlloc(&data, bytes, cudaHostAllocDefault);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return base::ResourceExhausted(
          "{} bytes of pinned host memory were asked for: too many "
          "(ulimit -l, or less memory for KV)",
          bytes);
    }
    if (error != cudaSuccess) return Failed("cudaHostAlloc", error);
    return std::make_unique<CudaMemory>(data, bytes, true, info_.index);
  }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override {
    RETURN_IF_CUDA_ERROR(cudaSetDevice(info_.index));
    cudaStream_t stream = nullptr;
    RETURN_IF_CUDA_ERROR(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return std::make_unique<CudaStream>(stream, info_.index);
  }
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override {
    RETURN_IF_CUDA_ERROR(cudaSetDevice(info_.index));
    cudaEvent_t event = nullptr;
    RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return std::make_unique<CudaEvent>(event);
  }
  absl::StatusOr<bool> Reached(const Event& event) override {
    const cudaError_t error = cudaEventQuery(static_cast<const CudaEvent&>(event).get());
    if (error == cudaSuccess) return true;
    if (error == cudaErrorNotReady) return false;
    return Failed("cudaEventQuery", error);
  }
  absl::Status MakeCurrent() override {
    RETURN_IF_CUDA_ERROR(cudaSetDevice(info_.index));
    return absl::OkStatus();
  }

 private:
  const DeviceInfo info_;
};

}  // namespace

absl::StatusOr<std::vector<DeviceInfo>> ListDevices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice) return std::vector<DeviceInfo>();
  if (error == cudaErrorInsufficientDriver) {
    return base::FailedPrecondition(
        "CUDA: no driver, or one that is older than this build's CUDA: {} (nvidia-smi shows it)",
        cudaGetErrorString(error));
  }
  if (error != cudaSuccess) return Failed("cudaGetDeviceCount", error);
  std::vector<DeviceInfo> devices;
  for (int i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(DeviceInfo info, Describe(i));
    devices.push_back(std::move(info));
  }
  return devices;
}

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(int index) {
  ASSIGN_OR_RETURN(std::vector<DeviceInfo> devices, ListDevices());
  std::vector<std::string> names;
  for (DeviceInfo& info : devices) {
    if (info.index == index) {
      RETURN_IF_CUDA_ERROR(cudaSetDevice(index));
      return std::unique_ptr<Device>(std::make_unique<CudaDevice>(std::move(info)));
    }
    names.push_back(fmt::format("{} ({})", info.index, info.name));
  }
  return base::NotFound("CUDA device {}: there is {}", index,
                        names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
}

}  // namespace smartgen::device
