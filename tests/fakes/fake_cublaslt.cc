#include "tests/fakes/fake_cublaslt.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/selector/dtype.h"

namespace smartgen::fakes {
namespace {

CublasLtCalls calls;

struct Layout {
  cudaDataType type;
  uint64_t rows;
  uint64_t columns;
  int64_t stride;
};
struct Product {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t transpose_a;
};
struct Preference {
  uint64_t workspace;
  uint32_t reductions;
  uint32_t alignment[4];  // A, B, C, D
};
// What an algorithm was chosen for.
struct Chosen {
  uint64_t m, n, k;
  int64_t strides;
  uint32_t alignment[4];
};
static_assert(sizeof(Chosen) <= sizeof(cublasLtMatmulAlgo_t));

template <typename T, typename Opaque>
T& As(Opaque* opaque) {
  static_assert(sizeof(T) <= sizeof(Opaque));
  return *reinterpret_cast<T*>(opaque);
}

void Fault(std::string what) { calls.faults.push_back(std::move(what)); }

bool Fails(const char* call) {
  if (calls.fail != call) return false;
  calls.fail.clear();
  return true;
}

kv::DType DType(cudaDataType type) {
  switch (type) {
    case CUDA_R_32F:
      return kv::DType::kF32;
    case CUDA_R_16BF:
      return kv::DType::kBF16;
    case CUDA_R_16F:
      return kv::DType::kF16;
    default:
      Fault("a type that nobody has");
      return kv::DType::kF32;
  }
}

float Load(const void* data, const Layout& layout, uint64_t row, uint64_t column) {
  const kv::DType dtype = DType(layout.type);
  const auto at = static_cast<int64_t>(column) * layout.stride + static_cast<int64_t>(row);
  return selector::LoadElement(static_cast<const std::byte*>(data) + at * kv::DTypeBytes(dtype),
                               dtype);
}

Chosen ChosenFor(const Layout& a, const Layout& b, const Layout& d) {
  Chosen chosen = {};
  chosen.m = a.columns;
  chosen.n = b.columns;
  chosen.k = a.rows;
  chosen.strides = a.stride * 1000003 + b.stride * 1009 + d.stride;
  return chosen;
}

}  // namespace

CublasLtCalls& CublasLt() { return calls; }
void ResetCublasLt() { calls = {}; }

}  // namespace smartgen::fakes

using namespace smartgen::fakes;  // NOLINT: these are C functions

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (Fails("cublasLtCreate")) return CUBLAS_STATUS_NOT_SUPPORTED;
  ++calls.handles;
  *handle = reinterpret_cast<cublasLtHandle_t>(&calls);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) {
  --calls.handles;
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "CUBLAS_STATUS_SUCCESS" : "CUBLAS_STATUS_NOT_SUPPORTED";
}
const char* cublasLtGetStatusString(cublasStatus_t) { return "a fake's error"; }

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t product, size_t,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
  As<Product>(product) = {compute, scale, CUBLAS_OP_N};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t size) {
  if (attribute != CUBLASLT_MATMUL_DESC_TRANSA || size != sizeof(cublasOperation_t)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  std::memcpy(&As<Product>(product).transpose_a, value, size);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t,
                                                 cudaDataType type, uint64_t rows, uint64_t columns,
                                                 int64_t stride) {
  if (stride < static_cast<int64_t>(rows)) Fault("a stride that is shorter than a column");
  As<Layout>(layout) = {type, rows, columns, stride};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference,
                                                     size_t) {
  As<Preference>(preference) = {0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t size) {
  auto& to = As<Preference>(preference);
  void* at = nullptr;
  size_t want = sizeof(uint32_t);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      at = &to.workspace;
      want = sizeof(uint64_t);
      break;
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      at = &to.reductions;
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      at = &to.alignment[0];
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      at = &to.alignment[1];
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      at = &to.alignment[2];
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      at = &to.alignment[3];
      break;
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (size != want) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(at, value, size);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* count) {
  if (Fails("cublasLtMatmulAlgoGetHeuristic")) return CUBLAS_STATUS_NOT_SUPPORTED;
  ++calls.choices;
  const auto& how = As<Product>(product);
  const cudaDataType type = As<Layout>(a).type;
  const cudaDataType out = As<Layout>(d).type;
  // The table of types under cublasLtMatmul.
  if (type != As<Layout>(b).type || how.scale != CUDA_R_32F ||
      (out != CUDA_R_32F && (out != type || type == CUDA_R_32F))) {
    Fault("types that have no product");
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (type == CUDA_R_32F && how.compute != CUBLAS_COMPUTE_32F_PEDANTIC) Fault("f32 may be TF32");
  if ((As<Preference>(preference).reductions & ~CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0) {
    Fault("parts of a sum may be rounded to the output's type");
  }
  if (wanted < 2) return CUBLAS_STATUS_INVALID_VALUE;
  // The first one does not fit.
  results[0].state = CUBLAS_STATUS_NOT_SUPPORTED;
  results[1].state = CUBLAS_STATUS_SUCCESS;
  Chosen chosen = ChosenFor(As<Layout>(a), As<Layout>(b), As<Layout>(d));
  std::memcpy(chosen.alignment, As<Preference>(preference).alignment, sizeof(chosen.alignment));
  std::memcpy(&results[1].algo, &chosen, sizeof(chosen));
  *count = 2;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t,
                              cudaStream_t) {
  if (Fails("cublasLtMatmul")) return CUBLAS_STATUS_NOT_SUPPORTED;
  ++calls.products;
  const auto &la = As<Layout>(a_layout), &lb = As<Layout>(b_layout);
  const auto &lc = As<Layout>(c_layout), &ld = As<Layout>(d_layout);
  if (As<Product>(product).transpose_a != CUBLAS_OP_T) Fault("A is not transposed");
  if (la.rows != lb.rows || la.columns != ld.rows || lb.columns != ld.columns) {
    Fault("sizes that do not go together");
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const Chosen want = ChosenFor(la, lb, ld);
  const auto& chosen = As<const Chosen>(algorithm);
  if (chosen.m != want.m || chosen.n != want.n || chosen.k != want.k ||
      chosen.strides != want.strides) {
    Fault("the algorithm is another product's");
  }
  const std::pair<const void*, const Layout*> matrices[] = {{a, &la}, {b, &lb}, {c, &lc}, {d, &ld}};
  for (int i = 0; i < 4; ++i) {
    const auto& [data, layout] = matrices[i];
    const int64_t bytes = layout->stride * smartgen::kv::DTypeBytes(DType(layout->type));
    if (reinterpret_cast<uintptr_t>(data) % chosen.alignment[i] != 0 ||
        bytes % chosen.alignment[i] != 0) {
      Fault("less aligned than was promised");
    }
  }
  if (workspace == nullptr) Fault("no workspace");
  const float scale = *static_cast<const float*>(alpha);
  const float keep = *static_cast<const float*>(beta);
  for (uint64_t column = 0; column < ld.columns; ++column) {
    for (uint64_t row = 0; row < ld.rows; ++row) {
      double sum = 0;
      for (uint64_t i = 0; i < la.rows; ++i) {
        sum += double{Load(a, la, i, row)} * Load(b, lb, i, column);
      }
      sum *= scale;
      if (keep != 0) sum += double{keep} * Load(c, lc, row, column);
      const smartgen::kv::DType dtype = DType(ld.type);
      const auto at = static_cast<int64_t>(column) * ld.stride + static_cast<int64_t>(row);
      smartgen::selector::StoreElement(
          static_cast<float>(sum), dtype,
          static_cast<std::byte*>(d) + at * smartgen::kv::DTypeBytes(dtype));
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}

cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t) {
  std::memset(data, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemset2DAsync(void* data, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t) {
  for (size_t row = 0; row < height; ++row) {
    std::memset(static_cast<std::byte*>(data) + row * pitch, value, width);
  }
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) { return "a fake's error"; }
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorFake"; }
