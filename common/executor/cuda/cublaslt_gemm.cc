#include "common/executor/cuda/cublaslt_gemm.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <utility>

#include "common/executor/cuda/layer_kernels.h"

namespace smartgen::executor::cuda {
namespace {

#define RETURN_IF_CUBLAS_ERROR(call)                                                       \
  do {                                                                                     \
    const cublasStatus_t cublas_status = (call);                                           \
    if (cublas_status != CUBLAS_STATUS_SUCCESS) return CublasFailed(#call, cublas_status); \
  } while (false)

absl::Status CublasFailed(std::string_view call, cublasStatus_t status) {
  return base::Internal("{}: {} ({})", call.substr(0, call.find('(')),
                        cublasLtGetStatusString(status), cublasLtGetStatusName(status));
}

absl::Status CudaFailed(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  return base::Internal("{}: {} ({})", call, cudaGetErrorString(error), cudaGetErrorName(error));
}

absl::Status Launched(const char* kernel, LaunchError error) {
  if (error == nullptr) return absl::OkStatus();
  return base::Internal("{}: {}", kernel, error);
}

const char* ElementName(Element element) {
  switch (element) {
    case Element::kF32:
      return "f32";
    case Element::kBF16:
      return "bf16";
    case Element::kF16:
      return "f16";
  }
  return "?";
}

cudaDataType_t DataType(Element element) {
  switch (element) {
    case Element::kF32:
      return CUDA_R_32F;
    case Element::kBF16:
      return CUDA_R_16BF;
    case Element::kF16:
      return CUDA_R_16F;
  }
  return CUDA_R_32F;
}

// The library has faster algorithms for rows that are aligned further than to their type, and asks
// how far.
uint32_t Alignment(const void* rows, int64_t stride, Element element) {
  constexpr uintptr_t kMost = 256;  // that it tells apart
  const uintptr_t bits = reinterpret_cast<uintptr_t>(rows) |
                         static_cast<uintptr_t>(stride * ElementBytes(element)) | kMost;
  return static_cast<uint32_t>(bits & (~bits + 1));  // the lowest
}

// All that the choice of an algorithm depends on. x has w's type here, and y one that the library
// writes.
struct Shape {
  Element w_element;
  Element y_element;
  int64_t m, n, k;
  int64_t ldx, ldw, ldy;
  uint32_t x_alignment, w_alignment, y_alignment;
  auto operator<=>(const Shape&) const = default;
};

// The library thinks in columns: its matrices are ours transposed, y^T[n][m] = w[n][k] * x^T[k][m],
// so that its A is w (stored as w^T[k][n], hence transposed) and its B is x.
struct Plan {
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t w;
  cublasLtMatrixLayoutOpaque_t x;
  cublasLtMatrixLayoutOpaque_t y;
  cublasLtMatmulAlgo_t algorithm;
};

struct Region {
  std::byte* data = nullptr;
  int64_t stride = 0;  // elements
};

// Rows of staging start at multiples of 16 bytes, for the library's sake.
int64_t StagedStride(int64_t length, Element element) {
  const int64_t step = 16 / ElementBytes(element);
  return (length + step - 1) / step * step;
}

class CublasLtGemm final : public Gemm {
 public:
  CublasLtGemm(device::Device* device, const CublasLtOptions& options)
      : device_(device), options_(options) {}
  ~CublasLtGemm() override {
    if (handle_ != nullptr) cublasLtDestroy(handle_);
  }

  absl::Status Init() {
    RETURN_IF_ERROR(device_->MakeCurrent());
    RETURN_IF_CUBLAS_ERROR(cublasLtCreate(&handle_));
    ASSIGN_OR_RETURN(workspace_, device_->Allocate(options_.workspace_bytes));
    ASSIGN_OR_RETURN(staging_, device_->Allocate(options_.staging_bytes));
    return absl::OkStatus();
  }

  absl::Status Run(const GemmArgs& args, Stream stream) override {
    RETURN_IF_ERROR(CheckGemm(args));
    if (args.m == 0 || args.n == 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(const int64_t rows, RowsAtOnce(args));
    const absl::Status status = RunRows(args, rows, stream);
    if (status.ok()) return status;
    return base::Annotate(
        status,
        fmt::format("gemm of {} x {} {} (stride {}) with {} x {} {} (stride {}) into {} "
                    "(stride {})",
                    args.m, args.k, ElementName(args.x_element), args.ldx, args.n, args.k,
                    ElementName(args.w_element), args.ldw, ElementName(args.y_element), args.ldy));
  }

 private:
  static bool ConvertsX(const GemmArgs& args) { return args.x_element != args.w_element; }
  // bf16 to f16 goes by way of f32.
  static bool WidensX(const GemmArgs& args) {
    return ConvertsX(args) && args.x_element == Element::kBF16;
  }
  static bool NarrowsX(const GemmArgs& args) {
    return ConvertsX(args) && args.w_element != Element::kF32;
  }
  // The library writes f32 from all, and bf16 from bf16.
  static bool StagesY(const GemmArgs& args) {
    return args.y_element != Element::kF32 && args.w_element != args.y_element;
  }
  static int64_t StagedRowBytes(const GemmArgs& args) {
    int64_t bytes = 0;
    if (WidensX(args)) bytes += 4 * StagedStride(args.k, Element::kF32);
    if (NarrowsX(args)) bytes += 2 * StagedStride(args.k, args.w_element);
    if (StagesY(args)) bytes += 4 * StagedStride(args.n, Element::kF32);
    return bytes;
  }

  // Rows of x whose copies fit into the staging.
  absl::StatusOr<int64_t> RowsAtOnce(const GemmArgs& args) const {
    const int64_t row_bytes = StagedRowBytes(args);
    if (row_bytes == 0) return args.m;
    const auto rows = static_cast<int64_t>(options_.staging_bytes) / row_bytes;
    if (rows == 0) {
      return base::InvalidArgument("gemm: a row of k {} and n {} takes {} bytes of staging, of {}",
                                   args.k, args.n, row_bytes, options_.staging_bytes);
    }
    return std::min(rows, args.m);
  }

  absl::Status RunRows(const GemmArgs& args, int64_t rows, Stream stream) {
    RETURN_IF_ERROR(device_->MakeCurrent());
    for (int64_t row = 0; row < args.m; row += rows) {
      GemmArgs some = args;
      some.m = std::min(rows, args.m - row);
      some.x = At(args.x, row * args.ldx, args.x_element);
      some.y = const_cast<std::byte*>(At(args.y, row * args.ldy, args.y_element));
      RETURN_IF_ERROR(RunBlock(some, stream));
    }
    return absl::OkStatus();
  }

  // Rows that the staging has room for: converts what the library does not take, multiplies, and
  // converts what it does not write.
  absl::Status RunBlock(GemmArgs args, Stream stream) {
    if (args.k == 0) return RunEmpty(args, stream);
    std::byte* next = staging_->data();
    const auto take = [&](int64_t length, Element element) {
      const Region region{next, StagedStride(length, element)};
      next += args.m * region.stride * ElementBytes(element);
      return region;
    };
    if (WidensX(args)) {
      const Region wide = take(args.k, Element::kF32);
      RETURN_IF_ERROR(Widen(args, wide, stream));
      args.x = wide.data;
      args.ldx = wide.stride;
      args.x_element = Element::kF32;
    }
    if (NarrowsX(args)) {
      const Region narrow = take(args.k, args.w_element);
      RETURN_IF_ERROR(Launched("RoundRows", RoundRows({.x = static_cast<const float*>(args.x),
                                                       .x_stride = args.ldx,
                                                       .out = narrow.data,
                                                       .out_element = args.w_element,
                                                       .out_stride = narrow.stride,
                                                       .rows = args.m,
                                                       .dim = static_cast<int>(args.k)},
                                                      stream)));
      args.x = narrow.data;
      args.ldx = narrow.stride;
      args.x_element = args.w_element;
    }
    if (!StagesY(args)) return Multiply(args, stream);

    const Region product = take(args.n, Element::kF32);
    GemmArgs staged = args;
    staged.y = product.data;
    staged.y_element = Element::kF32;
    staged.ldy = product.stride;
    staged.then = GemmArgs::Then::kStore;
    RETURN_IF_ERROR(Multiply(staged, stream));
    auto* const sums = reinterpret_cast<float*>(product.data);
    if (args.then == GemmArgs::Then::kAdd) {
      RETURN_IF_ERROR(Launched("AddRows", AddRows({.x = sums,
                                                   .x_stride = product.stride,
                                                   .y = args.y,
                                                   .y_element = args.y_element,
                                                   .y_stride = args.ldy,
                                                   .rows = args.m,
                                                   .dim = static_cast<int>(args.n)},
                                                  stream)));
    }
    return Launched("RoundRows", RoundRows({.x = sums,
                                            .x_stride = product.stride,
                                            .out = args.y,
                                            .out_element = args.y_element,
                                            .out_stride = args.ldy,
                                            .rows = args.m,
                                            .dim = static_cast<int>(args.n)},
                                           stream));
  }

  // A sum of nothing.
  static absl::Status RunEmpty(const GemmArgs& args, Stream stream) {
    if (args.then == GemmArgs::Then::kAdd) return absl::OkStatus();
    const auto element = static_cast<size_t>(ElementBytes(args.y_element));
    return CudaFailed(
        "cudaMemset2DAsync",
        cudaMemset2DAsync(args.y, static_cast<size_t>(args.ldy) * element, 0,
                          static_cast<size_t>(args.n) * element, static_cast<size_t>(args.m),
                          static_cast<cudaStream_t>(stream)));
  }

  // bf16 rows as f32: added to zeros, for which there is a kernel already. Seldom needed: the
  // executor's rows are f32 where weights are.
  static absl::Status Widen(const GemmArgs& args, const Region& wide, Stream stream) {
    RETURN_IF_ERROR(CudaFailed(
        "cudaMemsetAsync",
        cudaMemsetAsync(wide.data, 0, static_cast<size_t>(args.m * wide.stride) * sizeof(float),
                        static_cast<cudaStream_t>(stream))));
    return Launched("AddRows", AddRows({.x = reinterpret_cast<float*>(wide.data),
                                        .x_stride = wide.stride,
                                        .y = args.x,
                                        .y_element = args.x_element,
                                        .y_stride = args.ldx,
                                        .rows = args.m,
                                        .dim = static_cast<int>(args.k)},
                                       stream));
  }

  absl::Status Multiply(const GemmArgs& args, Stream stream) {
    const Shape shape{.w_element = args.w_element,
                      .y_element = args.y_element,
                      .m = args.m,
                      .n = args.n,
                      .k = args.k,
                      .ldx = args.ldx,
                      .ldw = args.ldw,
                      .ldy = args.ldy,
                      .x_alignment = Alignment(args.x, args.ldx, args.w_element),
                      .w_alignment = Alignment(args.w, args.ldw, args.w_element),
                      .y_alignment = Alignment(args.y, args.ldy, args.y_element)};
    ASSIGN_OR_RETURN(Plan* const found, FindPlan(shape));
    Plan& plan = *found;
    const float alpha = 1;
    const float beta = args.then == GemmArgs::Then::kAdd ? 1 : 0;
    RETURN_IF_CUBLAS_ERROR(cublasLtMatmul(handle_, &plan.product, &alpha, args.w, &plan.w, args.x,
                                          &plan.x, &beta, args.y, &plan.y, args.y, &plan.y,
                                          &plan.algorithm, workspace_->data(), workspace_->size(),
                                          static_cast<cudaStream_t>(stream)));
    return absl::OkStatus();
  }

  // Valid until the next call.
  absl::StatusOr<Plan*> FindPlan(const Shape& shape) {
    if (const auto found = plans_.find(shape); found != plans_.end()) return &found->second;
    // Shapes of a prompt's last chunk are as many as there are lengths. Started anew when full:
    // those in use are back at once.
    if (plans_.size() >= options_.cached_shapes) plans_.clear();
    // Made where it stays: nothing says that the library's descriptors may be copied.
    Plan& plan = plans_[shape];
    if (const absl::Status status = MakePlan(shape, plan); !status.ok()) {
      plans_.erase(shape);
      return status;
    }
    return &plan;
  }

  absl::Status MakePlan(const Shape& shape, Plan& plan) {
    // Pedantic: whatever environment variables say, f32 is neither TF32 nor put together from bf16.
    const cublasComputeType_t compute =
        shape.w_element == Element::kF32 ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F;
    RETURN_IF_CUBLAS_ERROR(cublasLtMatmulDescInit(&plan.product, compute, CUDA_R_32F));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    RETURN_IF_CUBLAS_ERROR(cublasLtMatmulDescSetAttribute(
        &plan.product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)));
    const auto m = static_cast<uint64_t>(shape.m);
    const auto n = static_cast<uint64_t>(shape.n);
    const auto k = static_cast<uint64_t>(shape.k);
    const cudaDataType_t type = DataType(shape.w_element);
    RETURN_IF_CUBLAS_ERROR(cublasLtMatrixLayoutInit(&plan.w, type, k, n, shape.ldw));
    RETURN_IF_CUBLAS_ERROR(cublasLtMatrixLayoutInit(&plan.x, type, k, m, shape.ldx));
    RETURN_IF_CUBLAS_ERROR(
        cublasLtMatrixLayoutInit(&plan.y, DataType(shape.y_element), n, m, shape.ldy));
    return ChooseAlgorithm(shape, plan);
  }

  absl::Status ChooseAlgorithm(const Shape& shape, Plan& plan) {
    cublasLtMatmulPreferenceOpaque_t preference = {};
    RETURN_IF_CUBLAS_ERROR(cublasLtMatmulPreferenceInit(&preference));
    const uint64_t workspace = workspace_->size();
    // Split sums are added up in f32 in the workspace, so that what is rounded is rounded once, and
    // always in the same order.
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      return cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value));
    };
    RETURN_IF_CUBLAS_ERROR(set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace));
    RETURN_IF_CUBLAS_ERROR(set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions));
    RETURN_IF_CUBLAS_ERROR(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.w_alignment));
    RETURN_IF_CUBLAS_ERROR(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.x_alignment));
    RETURN_IF_CUBLAS_ERROR(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape.y_alignment));
    RETURN_IF_CUBLAS_ERROR(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.y_alignment));
    std::array<cublasLtMatmulHeuristicResult_t, 4> results = {};
    int count = 0;
    RETURN_IF_CUBLAS_ERROR(cublasLtMatmulAlgoGetHeuristic(
        handle_, &plan.product, &plan.w, &plan.x, &plan.y, &plan.y, &preference,
        static_cast<int>(results.size()), results.data(), &count));
    for (int i = 0; i < count; ++i) {
      if (results[i].state != CUBLAS_STATUS_SUCCESS) continue;
      plan.algorithm = results[i].algo;
      return absl::OkStatus();
    }
    return base::Internal("cublasLtMatmulAlgoGetHeuristic: none of {} algorithms fits", count);
  }

  static const std::byte* At(const void* base, int64_t index, Element element) {
    return static_cast<const std::byte*>(base) + index * ElementBytes(element);
  }

  device::Device* const device_;
  const CublasLtOptions options_;
  cublasLtHandle_t handle_ = nullptr;
  std::unique_ptr<device::Memory> workspace_;
  std::unique_ptr<device::Memory> staging_;
  std::map<Shape, Plan> plans_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Gemm>> CreateCublasLtGemm(device::Device* device,
                                                         const CublasLtOptions& options) {
  auto gemm = std::make_unique<CublasLtGemm>(device, options);
  RETURN_IF_ERROR(base::Annotate(gemm->Init(), "cuBLASLt"));
  return gemm;
}

}  // namespace smartgen::executor::cuda
