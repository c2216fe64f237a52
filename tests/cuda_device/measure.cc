#include "tests/cuda_device/measure.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "common/device/device.h"
#include "common/executor/cuda/cublaslt_gemm.h"

namespace smartgen::executor::cuda {
namespace {

constexpr size_t kCopied = size_t{256} << 20;  // more than any L2 cache
constexpr int64_t kRows = 4096;

absl::Status Synchronize() {
  const cudaError_t error = cudaDeviceSynchronize();
  if (error == cudaSuccess) return absl::OkStatus();
  return base::Internal("cudaDeviceSynchronize: {}", cudaGetErrorString(error));
}

// Seconds of one run of `work`: the best of a few series.
absl::StatusOr<double> Seconds(const std::function<absl::Status()>& work) {
  constexpr int kSeries = 5;
  constexpr int kRuns = 10;
  const base::Clock& clock = *base::Clock::Real();
  double best = 1e9;
  for (int series = 0; series < kSeries; ++series) {
    RETURN_IF_ERROR(Synchronize());
    const base::TimePoint begin = clock.Now();
    for (int run = 0; run < kRuns; ++run) RETURN_IF_ERROR(work());
    RETURN_IF_ERROR(Synchronize());
    best = std::min(best, base::ToSeconds(clock.Now() - begin) / kRuns);
  }
  return best;
}

absl::StatusOr<double> CopyBytesPerSecond(device::Device& device) {
  ASSIGN_OR_RETURN(const auto from, device.Allocate(kCopied));
  ASSIGN_OR_RETURN(const auto to, device.Allocate(kCopied));
  ASSIGN_OR_RETURN(const double seconds, Seconds([&] {
                     const cudaError_t error = cudaMemcpyAsync(to->data(), from->data(), kCopied,
                                                               cudaMemcpyDeviceToDevice, nullptr);
                     return error == cudaSuccess
                                ? absl::OkStatus()
                                : base::Internal("cudaMemcpyAsync: {}", cudaGetErrorString(error));
                   }));
  return 2.0 * kCopied / seconds;  // read and written
}

absl::StatusOr<double> ProductFlops(device::Device& device, Gemm& gemm, Element element) {
  const auto bytes = static_cast<size_t>(kRows * kRows * ElementBytes(element));
  ASSIGN_OR_RETURN(const auto x, device.Allocate(bytes));
  ASSIGN_OR_RETURN(const auto w, device.Allocate(bytes));
  ASSIGN_OR_RETURN(const auto y, device.Allocate(kRows * kRows * sizeof(float)));
  // Zeros would be multiplied with less power, and so faster. Any byte of these is a small number.
  for (const auto* memory : {x.get(), w.get()}) {
    if (cudaMemset(memory->data(), 0x3c, memory->size()) != cudaSuccess) {
      return base::Internal("cudaMemset failed");
    }
  }
  const GemmArgs args{.x = x->data(),
                      .x_element = element,
                      .ldx = kRows,
                      .w = w->data(),
                      .w_element = element,
                      .ldw = kRows,
                      .y = y->data(),
                      .ldy = kRows,
                      .m = kRows,
                      .n = kRows,
                      .k = kRows};
  ASSIGN_OR_RETURN(const double seconds, Seconds([&] { return gemm.Run(args, nullptr); }));
  return 2.0 * kRows * kRows * kRows / seconds;
}

absl::StatusOr<nlohmann::ordered_json> MeasureDevice() {
  int index = 0;
  cudaGetDevice(&index);
  ASSIGN_OR_RETURN(const auto device, device::OpenDevice(index));
  const device::DeviceInfo info = device->info();
  int clock_khz = 0;
  int bus_bits = 0;
  cudaDeviceGetAttribute(&clock_khz, cudaDevAttrMemoryClockRate, index);
  cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, index);
  nlohmann::ordered_json json = {
      {"name", info.name},
      {"compute_capability", fmt::format("{}.{}", info.compute_major, info.compute_minor)},
      {"multiprocessors", info.multiprocessors},
      {"memory_bytes", info.total_bytes},
      // Two transfers a clock; 0 where the driver does not say.
      {"bus_bytes_per_second", 2.0 * 1000 * clock_khz * bus_bits / 8}};
  ASSIGN_OR_RETURN(json["copy_bytes_per_second"], CopyBytesPerSecond(*device));
  ASSIGN_OR_RETURN(const auto gemm, CreateCublasLtGemm(device.get()));
  ASSIGN_OR_RETURN(json["product_bf16_flops"], ProductFlops(*device, *gemm, Element::kBF16));
  ASSIGN_OR_RETURN(json["product_f32_flops"], ProductFlops(*device, *gemm, Element::kF32));
  return json;
}

}  // namespace

int Measure() {
  const auto json = MeasureDevice();
  if (!json.ok()) {
    std::fprintf(stderr, "cuda_device_check: %s\n", json.status().ToString().c_str());
    return 1;
  }
  std::printf("%s\n", json->dump().c_str());
  return 0;
}

}  // namespace smartgen::executor::cuda
