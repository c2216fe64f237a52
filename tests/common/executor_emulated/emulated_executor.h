// The CUDA executor on doubles: a device whose streams are threads, kernels on the emulator,
// products in plain loops. All work is queued, so that a wait that is missing shows.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "common/executor/cuda/cuda_executor.h"
#include "common/executor/cuda/emulate.h"
#include "tests/fakes/fake_device.h"
#include "tests/fakes/fake_gemm.h"

namespace smartgen::executor {

class QueuedGemm final : public cuda::Gemm {
 public:
  explicit QueuedGemm(fakes::FakeDevice* device) : device_(device) {}
  absl::Status Run(const cuda::GemmArgs& args, cuda::Stream stream) override {
    RETURN_IF_ERROR(CheckGemm(args));
    device_->QueueKernel(stream, [args] {
      fakes::FakeGemm gemm;
      EXPECT_EQ(gemm.Run(args, nullptr), absl::OkStatus());
    });
    return absl::OkStatus();
  }

 private:
  fakes::FakeDevice* const device_;
};

struct EmulatedExecutor {
  // `device`, if not null, is set to the double, which the executor owns.
  static absl::StatusOr<std::unique_ptr<Executor>> Make(const model::Model& model,
                                                        const ExecutorOptions& options,
                                                        const CudaOptions& cuda_options = {},
                                                        fakes::FakeDevice::Options of_device = {},
                                                        fakes::FakeDevice** device = nullptr) {
    auto made = std::make_unique<fakes::FakeDevice>(of_device);
    fakes::FakeDevice* const raw = made.get();
    if (device != nullptr) *device = raw;
    cuda::emulate::SetQueue([](void* stream, cuda::emulate::QueuedLaunch launch) {
      fakes::FakeDevice::QueueKernel(stream, [launch = std::move(launch)] {
        const char* const error = launch();
        EXPECT_EQ(error, nullptr) << error;
      });
    });
    auto gemm = std::make_unique<QueuedGemm>(raw);
    return NewCudaExecutor(model, options, cuda_options, std::move(made), std::move(gemm));
  }
};

}  // namespace smartgen::executor
