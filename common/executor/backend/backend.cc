#include "common/executor/backend/backend.h"

#include <algorithm>

#include "common/base/cpu.h"
#include "common/device/device.h"
#include "common/executor/cuda/cuda_executor.h"
#include "common/kv/pool.h"

namespace smartgen::executor {

void BackendOptions::Bind(config::Binder& b) {
  b.Choice("executor", &executor, {"cpu", "cuda"},
           "what runs the model; cuda: a GPU, in builds of the cuda preset");
  b.Section("cuda", [&](config::Binder& s) {
    s.Field("device", &device, "executor cuda: the GPU's number");
    s.Choice("kv_location", &kv_location, {"auto", "device", "host"},
             "executor cuda: where it reads KV from; auto: on the device where it fits");
    s.Bytes("memory", &memory_bytes,
            "executor cuda: memory of the device for all it holds; 0: what is free, less a "
            "twentieth");
  });
}

absl::Status BackendOptions::Check() const {
  if (executor != "cpu" && executor != "cuda") {
    return base::InvalidArgument("executor: want cpu or cuda, got \"{}\"", executor);
  }
  if (device < 0) return base::InvalidArgument("cuda.device: want at least 0, got {}", device);
  if (memory_bytes < 0) {
    return base::InvalidArgument("cuda.memory: want at least 0, got {}", memory_bytes);
  }
  return ParseKvLocation(kv_location).status();
}

absl::StatusOr<std::unique_ptr<Executor>> CreateExecutor(const model::Model& model,
                                                         const ExecutorOptions& options,
                                                         const BackendOptions& backend,
                                                         int64_t kv_bytes) {
  RETURN_IF_ERROR(backend.Check());
  if (!backend.UsesCuda()) return CreateCpuExecutor(model, options);
  CudaOptions cuda;
  cuda.device = backend.device;
  ASSIGN_OR_RETURN(cuda.kv_location, ParseKvLocation(backend.kv_location));
  cuda.memory_bytes = static_cast<uint64_t>(backend.memory_bytes);
  cuda.kv_bytes = static_cast<uint64_t>(std::max<int64_t>(kv_bytes, 0));
  return CreateCudaExecutor(model, options, cuda);
}

int64_t KvBytesAtMost(const model::ModelConfig& config, int64_t tokens) {
  int64_t values = 0;  // of K and V of a token
  for (const model::LayerConfig& layer : config.layers) {
    values += 2LL * layer.num_kv_heads * layer.head_dim;
  }
  return kv::KvPool::PagesFor(tokens) * kv::kPageTokens * values *
         static_cast<int64_t>(sizeof(float));
}

absl::StatusOr<std::string> HardwareName(const BackendOptions& backend) {
  if (!backend.UsesCuda()) return base::CpuName();
  ASSIGN_OR_RETURN(const auto device, device::OpenDevice(backend.device));
  return device->info().name;
}

}  // namespace smartgen::executor
