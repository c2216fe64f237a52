// Products of rows with a weight matrix, which a library does on a GPU (cuBLASLt) and plain loops
// in tests (tests/fakes/fake_gemm.h).
#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "common/executor/cuda/kernels.h"

namespace smartgen::executor::cuda {

// y[m][n] = x[m][k] * w[n][k]^T: row i of y holds row i of x times each row of w, weights as model
// files have them.
struct GemmArgs {
  // Leading dimensions count elements of the matrix's type from one row to the next; at least the
  // row's length.
  const void* x = nullptr;  // f32 or bf16
  Element x_element = Element::kBF16;
  int64_t ldx = 0;
  const void* w = nullptr;  // f32, bf16 or f16
  Element w_element = Element::kBF16;
  int64_t ldw = 0;
  void* y = nullptr;  // f32 or bf16; does not overlap x or w
  Element y_element = Element::kF32;
  int64_t ldy = 0;
  int64_t m = 0;  // rows
  int64_t n = 0;  // columns of y
  int64_t k = 0;
  // What becomes of what stands in y: kAdd adds the product to it (a residual), kStore does not
  // read it.
  enum class Then : uint8_t { kStore, kAdd };
  Then then = Then::kStore;
};

// x is converted to w's element type (to nearest even) where the two differ; products are summed up
// in f32 in an order of the implementation's; the sum is rounded once to y's type. So y is within
// 1e-5 of the sum of |x * w| of the exact one, plus the two roundings. The same call gives the same
// bits again; a row's bits may depend on m.
//
// One call at a time: an implementation has memory of its own for a call, which the next on another
// stream would overwrite. All pointers are to memory that the device reads and writes, aligned to
// their type (to 16 bytes, rows too, for speed), and must stay until the stream has passed.
class Gemm {
 public:
  virtual ~Gemm() = default;
  // Queues the product and does not wait. m or n 0: nothing is done; k 0: the product is 0.
  // InvalidArgument names the field that does not fit, before anything is queued; Internal is the
  // library's error.
  virtual absl::Status Run(const GemmArgs& args, Stream stream) = 0;
};

// What every implementation checks first.
inline absl::Status CheckGemm(const GemmArgs& args) {
  if (args.m < 0 || args.n < 0 || args.k < 0) {
    return base::InvalidArgument("gemm: want sizes that are not negative, got m {} n {} k {}",
                                 args.m, args.n, args.k);
  }
  if (args.m == 0 || args.n == 0) return absl::OkStatus();
  if (args.x_element == Element::kF16) return base::InvalidArgument("gemm: want x of f32 or bf16");
  if (args.y_element == Element::kF16) return base::InvalidArgument("gemm: want y of f32 or bf16");
  if (args.ldx < args.k || args.ldw < args.k) {
    return base::InvalidArgument("gemm: want ldx and ldw of at least k {}, got {} and {}", args.k,
                                 args.ldx, args.ldw);
  }
  if (args.ldy < args.n) {
    return base::InvalidArgument("gemm: want ldy of at least n {}, got {}", args.n, args.ldy);
  }
  if (args.y == nullptr || (args.k > 0 && (args.x == nullptr || args.w == nullptr))) {
    return base::InvalidArgument("gemm: want x, w and y, got null");
  }
  return absl::OkStatus();
}

}  // namespace smartgen::executor::cuda
